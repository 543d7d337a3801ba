"""The policy that chooses: by what this project measured, or by the decision tree of the research notes as written.

The tree (section 7.2 of document 001, 6.3 of document 000): max κ < 5, standard quantization; max κ < 50, the same with
an evaluation per language; else 8 bits for outlier layers, calibration per language, or more bits; and more bits for
models with a large Var_λ[κ_eff]. What the notes leave open is read as follows. Standard quantization is rounding to
nearest with scales set by the largest weight (`rtn`), as nothing else of that time is plain. Outlier layers are the
blocks above the cut-off that led there, κ > 50. More bits are B_safe(max κ), above which the notes expect no disparity
(C3), and at least one more than asked for. A variance is large from 5.1, the only one that the notes give. Nothing
supports the cut-offs (001-23).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.core.checks import in_range, one_of
from fairbits.core.errors import InputError, count_of
from fairbits.kurtosis.checklist import HIGH_KAPPA, LOW_KAPPA, critical_bits, strategy_for
from fairbits.quantization.evidence import Evidence, Sensitivity
from fairbits.quantization.plan import Plan
from fairbits.quantization.policies.clipping import laaciq
from fairbits.quantization.policies.gptq import gptq
from fairbits.quantization.policies.option import Option, PolicyOptions, input_weighted, policy
from fairbits.quantization.policies.plan_from_scheme import plan_from_scheme
from fairbits.quantization.policies.precision import HIGH, best_protected, free_blocks, protected_bits
from fairbits.text.language_codes import language_from_code

if TYPE_CHECKING:
    from fairbits.stats.intervals import Estimate

Chooser = Literal["measured", "notes"]
Handling = Literal["mixed", "laaciq", "bits"]
LARGE_VARIANCE = 5.1
"""Var_λ[κ_eff] of BLOOM-560M, the example of the research notes (000, section 5.2); they give no cut-off."""
LIMIT = 0.1
"""Nats per token, about 10 % of perplexity per token: an arbitrary but round number."""
WIDTH = 3.92  # of a 95 % interval, in standard errors


@policy(reads_audit=True, fixes=("scheme",))
def auto(
    evidence: Evidence,
    options: PolicyOptions,
    *,
    chooser: Annotated[
        Chooser, Option("choose by what fairbits measured, or by the decision tree of the research notes")
    ] = "measured",
    limit: Annotated[
        float | None, Option("measured: worst predicted damage, nats per token; above it, more bits", default="0.1")
    ] = None,
    handling: Annotated[
        Handling | None, Option("notes: which of their three ways to take for max κ from 50", default="mixed")
    ] = None,
    variance: Annotated[float | None, Option("notes: Var[κ_eff] from which more bits are used", default="5.1")] = None,
) -> Plan:
    """Returns the plan of the policy that is chosen, and why, step by step in its notes.

    "measured": `gptq` on an equal mix; if the damage predicted for rounding to nearest exceeds `limit` in a language, 8
    bits for the fewest blocks that bring it within. "notes": the tree of the research notes.
    """
    if one_of("chooser", chooser, get_args(Chooser)) == "measured":
        _refuse(chooser, handling=handling, variance=variance)
        return _by_measurements(evidence, options, in_range("limit", LIMIT if limit is None else limit, above=0))
    _refuse(chooser, limit=limit)
    way: Handling = "mixed" if handling is None else handling
    one_of("handling", way, get_args(Handling))
    large = in_range("variance", LARGE_VARIANCE if variance is None else variance, least=0)
    return _by_notes(evidence, options, way, large)


def _refuse(chooser: Chooser, **others: Any) -> None:
    """Raises if an option of the other chooser was given."""
    for name, value in others.items():
        if value is not None:
            raise InputError(f"{name} is {value}, and the chooser is {chooser}, which has no use for it: leave it out")


def _by_measurements(evidence: Evidence, options: PolicyOptions, limit: float) -> Plan:
    """Returns gptq on an equal mix, with 8 bits in as many blocks as bring the predicted damage within the limit."""
    free, bits = free_blocks(evidence, options), options.bits
    table = evidence.sensitivity(tuple(sorted({bits, HIGH})), "predicted").of(blocks=free)
    predicted = table.at(bits).sum(axis=1)
    worst, name = float(predicted.max()), language_from_code(table.languages[int(np.argmax(predicted))]).name
    steps = [
        "gptq on an equal mix of languages: no policy of the research notes did better for the worst language at the "
        "same size, on any model measured",
        f"the damage predicted for rounding to nearest at {bits} bits, usually more than that of gptq, is largest in "
        f"{name}: {worst:.3g} nats per token, {'above' if worst > limit else 'within'} the limit of {limit:g}",
    ]
    settings: dict[str, Any] = {"limit": limit, "predicted": _rounded(table.languages, predicted)}
    if worst <= limit or bits >= HIGH:
        steps.append(f"so all blocks have {bits} bits{'' if worst <= limit else ', the most there are'}")
        return _explained(gptq(evidence, options), steps, chooser="measured", chosen="gptq", **settings)
    places = _fewest_protected(table, bits=bits, limit=limit)
    expected = _damage(table, places, bits=bits)
    blocks = tuple(free[place] for place in places)
    steps.append(
        f"so {_numbers(blocks)} of {evidence.n_blocks} have {HIGH} bits, the fewest that bring it within the limit: "
        f"{expected.max():.3g}"
        if expected.max() <= limit
        else f"so all blocks have {HIGH} bits, and even then it is {expected.max():.3g}: evaluate before use"
    )
    wide = protected_bits(blocks, n_blocks=evidence.n_blocks, options=options)
    plan = plan_from_scheme("auto", evidence, options, scheme=input_weighted(options, "gptq"), bits=wide)
    settings |= {"blocks": blocks, "expected": _rounded(table.languages, expected)}
    return _explained(plan, steps, chooser="measured", chosen="gptq", **settings)


def _fewest_protected(table: Sensitivity, *, bits: int, limit: float) -> tuple[int, ...]:
    """Returns the fewest blocks of a table that need HIGH bits for no language to exceed the limit; all if none do."""
    low, high = 1, table.damage.shape[1]
    places = tuple(range(high))
    while low < high:  # the damage of the best set falls with its size
        k = (low + high) // 2
        tried = best_protected(table, bits=bits, k=k, objective="worst")
        enough = _damage(table, tried, bits=bits).max() <= limit
        low, high, places = (low, k, tried) if enough else (k + 1, high, places)
    return places


def _damage(table: Sensitivity, places: Sequence[int], *, bits: int) -> Floats:
    """Returns the damage of each language if some blocks have HIGH bits."""
    chosen = np.isin(np.arange(table.damage.shape[1]), places)
    damage: Floats = np.where(chosen, table.at(HIGH), table.at(bits)).sum(axis=1)
    return damage


def _by_notes(evidence: Evidence, options: PolicyOptions, way: Handling, large: float) -> Plan:
    """Returns what the decision tree of the research notes leads to."""
    kappa, spread = evidence.kappa(), evidence.kappa_eff()
    top, variance = float(kappa.max()), float(np.var([estimate.value for estimate in spread.values()]))
    special = top >= HIGH_KAPPA
    raised = variance >= large or (special and way == "bits")
    width = min(HIGH, max(options.bits + 1, ceil(critical_bits(top)))) if raised else options.bits
    outliers = tuple(np.flatnonzero(kappa > HIGH_KAPPA).tolist()) if special and way == "mixed" else ()
    steps = [
        f"max κ is {top:.3g} (block {np.argmax(kappa)}), {_class_of(top)}; the research notes say: "
        f"{strategy_for(top).text.rstrip('.')}",
        *([_way_note(way, outliers, width)] if special else []),
        _variance_note(spread, variance, large=large, width=width),
        "standard quantization is read as rounding to nearest with scales set by the largest weight (rtn)",
        "nothing measured supports these cut-offs (001-23): compare with gptq and with --chooser measured",
    ]
    chosen, name = replace(options, bits=width), "rtn"
    if special and way == "laaciq":
        plan, name = laaciq(evidence, chosen), "laaciq"
    else:
        bits = [HIGH if block in outliers else width for block in range(evidence.n_blocks)]
        plan = plan_from_scheme("auto", evidence, chosen, scheme=chosen.nearest, bits=bits)
    settings: dict[str, Any] = {"max_kappa": float(f"{top:.4g}"), "block": int(np.argmax(kappa)), "blocks": outliers}
    settings |= {"handling": way, "variance": large, "kappa_eff_variance": float(f"{variance:.4g}")}
    settings["kappa_eff"] = _rounded(tuple(spread), np.array([estimate.value for estimate in spread.values()]))
    return _explained(plan, steps, chooser="notes", chosen=name, bits=options.bits, **settings)


def _class_of(top: float) -> str:
    if top < LOW_KAPPA:
        return f"below {LOW_KAPPA:g}"
    return f"from {LOW_KAPPA:g} to {HIGH_KAPPA:g}" if top < HIGH_KAPPA else f"{HIGH_KAPPA:g} or more"


def _way_note(way: Handling, outliers: tuple[int, ...], width: int) -> str:
    """Returns which of the three ways is taken, and how to take the others."""
    taken = {
        "mixed": f"mixed precision, {HIGH} bits in {_numbers(outliers)}, where κ is above {HIGH_KAPPA:g}",
        "laaciq": "calibration per language, the policy laaciq",
        "bits": f"more bits everywhere: {width}",
    }
    others = " and ".join(f"--handling {other}" for other in taken if other != way)
    return f"of the three ways this plan takes {taken[way]}; {others} take the others"


def _variance_note(spread: "Mapping[str, Estimate]", variance: float, *, large: float, width: int) -> str:
    """Returns Var[κ_eff] against its cut-off, and how much of it comes from the choice of text."""
    noise = [((estimate.high - estimate.low) / WIDTH) ** 2 for estimate in spread.values() if estimate.bounded]
    share = f" (about {np.mean(noise):.2g} of it is sampling noise)" if noise else ""
    answer = f"at least {large:g}, so {width} bits" if variance >= large else f"below {large:g}, so no more bits for it"
    return f"Var[κ_eff] over {count_of(len(spread), 'language')} is {variance:.3g}{share}, {answer}"


def _numbers(blocks: Sequence[int]) -> str:
    return f"{'block' if len(blocks) == 1 else 'blocks'} {', '.join(map(str, blocks)) or 'none'}"


def _rounded(languages: tuple[str, ...], values: Floats) -> dict[str, float]:
    return {code: float(f"{value:.4g}") for code, value in zip(languages, values, strict=True)}


def _explained(plan: Plan, steps: list[str], **settings: Any) -> Plan:
    """Returns a plan of this policy, with its settings and the steps that led to it as notes."""
    numbered = [f"{number}. {step}" for number, step in enumerate(steps, 1)]
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
    return replace(plan, policy="auto", settings={**plan.settings, **plain}, notes=(*plan.notes, *numbered))
