"""READ FIRST. The policies: each a short function from what is known of a model to a Plan.

| policy   | what it does                                                             | reads text |
|----------|--------------------------------------------------------------------------|------------|
| rtn      | the largest weight is a level, the others go to the nearest              | no         |
| aciq     | Banner's closed forms for Gaussian and Laplace weights                   | no         |
| kappa    | the founding documents' α = σ·(2.5 + 0.3 ln(1 + κ))                      | no         |
| mse      | the exact clip: the step of least squared error                          | no         |
| weighted | the exact clip, every weight counting with E[x²] of its input            | yes        |
| laaciq   | the same for the mean, the worst or the worst regret of languages, or one | yes        |
| mixed    | 8 bits where κ_l > τ, else 4 (option B of the founding documents)        | yes        |
| allocate | bits per block within a size budget, by what each block costs each language | yes     |
| gateway  | first and last block and the bottleneck at 8 bits (their theorem 3)      | yes        |
| protect  | the k blocks at 8 bits whose protection helps most, as measured          | yes        |
| gptq     | errors are made up for by later weights, under a mixture of languages    | yes        |

The default is gptq with equal weights. Policies of widths are carried out with its rounding, so that they differ from
it in widths alone. Every policy takes `Options`; what else it takes stands in its signature, and `decide` refuses the
rest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from inspect import Parameter, signature
from typing import Any, Literal

import numpy as np

from fairbits.checks import in_range, one_of, weights_vector, whole
from fairbits.errors import InputError
from fairbits.language.catalog import find_language
from fairbits.plans import Calibration, Objective, Plan, Rounding
from fairbits.policies.assemble import (
    Embeddings,
    Method,
    Options,
    assemble,
    check_groups,
    equal_mix,
    one_language,
    with_all_text,
)
from fairbits.policies.widths import HIGH, best_protected, protected_widths, random_sets, value_of, within_budget
from fairbits.risk.evidence import Evidence, How
from fairbits.risk.outliers import FOUNDERS_THRESHOLD
from fairbits.theory.allocation import gateway_set

__all__ = ["DEFAULT", "POLICIES", "Embeddings", "Options", "check", "decide", "reads_text", "takes"]

DEFAULT = "gptq"
ENGLISH = "eng_Latn"
WIDTHS = (3, 4, 5, 6, 8)
Mixture = Literal["equal", "english", "minimax"] | Mapping[str, float]

BLIND = (
    "This policy clips without knowing what the model does with its weights. In real language models a few of the "
    "largest weights are vital: cutting them off can destroy the model although the error of its weights gets smaller. "
    "Evaluate before use, or take weighted, laaciq or gptq, which look at the inputs."
)


def rtn(evidence: Evidence, options: Options) -> Plan:
    """Returns rounding to nearest with the largest weight of every group as a level."""
    return assemble("rtn", evidence, options, method=Method("absmax"))


def aciq(evidence: Evidence, options: Options, *, law: Literal["gaussian", "laplace"] = "gaussian") -> Plan:
    """Returns Banner's thresholds: α = 2.56 σ for Gaussian weights at 4 bits, α = 5.03 b for Laplace ones."""
    one_of("law", law, ("gaussian", "laplace"))
    return assemble("aciq", evidence, options, method=Method(law), settings={"law": law}, notes=[BLIND])


def kappa(evidence: Evidence, options: Options) -> Plan:
    """Returns the founding documents' thresholds α = σ·(2.5 + 0.3 ln(1 + κ)), on their symmetric grid (000-21)."""
    notes = [BLIND]
    if options.bits != 4:
        notes.append(
            f"the founding documents give f(κ, B) for 4 bits only; its constants are used at {options.bits} too"
        )
    if isinstance(options.group, int):
        notes.append(f"κ of {options.group} weights is far too low on average; the documents mean κ of a layer")
    return assemble("kappa", evidence, replace(options, grid="symmetric"), method=Method("kappa"), notes=notes)


def mse(evidence: Evidence, options: Options) -> Plan:
    """Returns the exact clip: of all steps the one with the least Σ (w − Q(w))²."""
    return assemble("mse", evidence, options, method=Method("exact"), notes=[BLIND])


def weighted(evidence: Evidence, options: Options) -> Plan:
    """Returns the exact clip of Σ_j h_j (w_j − Q(w_j))², h_j = E[x_j²], the mean of all languages."""
    return assemble("weighted", evidence, options, method=Method("exact", "mean"))


def laaciq(
    evidence: Evidence, options: Options, *, objective: Objective | None = None, language: str | None = None
) -> Plan:
    """Returns the exact clip for the worst language, unless another objective is given, or for one language alone.

    The steps that each language alone would choose are saved beside the model (option A).
    """
    if language is None:
        aim, pi = objective or "worst", equal_mix(evidence)
    elif objective is None:
        aim, pi = "mean", one_language(evidence, find_language(language).code)
    else:
        raise InputError(f"objective {objective} and language {language} were given; one language has no objective")
    return assemble(
        "laaciq",
        evidence,
        options,
        method=Method("exact", aim),
        pi=pi,
        thresholds=True,
        settings={"objective": aim} if language is None else {"language": find_language(language).code},
    )


def mixed(
    evidence: Evidence, options: Options, *, tau: float = FOUNDERS_THRESHOLD, rounding: Rounding = "gptq"
) -> Plan:
    """Returns 8 bits for blocks with κ_l > τ, `bits` for the others: bits(l) = 8 if κ_l > τ else 4.

    The founding documents write τ without a number; 100 is what yields the blocks that they name.
    """
    in_range("tau", tau)
    values = evidence.kappa()
    blocks = tuple(int(block) for block in np.flatnonzero(values > tau))
    notes = [] if blocks else [f"no block has κ above {tau:g} (the largest is {values.max():.3g}): all are alike"]
    return assemble(
        "mixed",
        evidence,
        options,
        method=_underneath(rounding),
        bits=protected_widths(blocks, n_blocks=evidence.n_blocks, bits=options.bits),
        settings={
            "tau": tau,
            "kappa": [float(f"{each:.4g}") for each in values],
            "blocks": blocks,
            "rounding": rounding,
        },
        notes=notes,
    )


def allocate(
    evidence: Evidence,
    options: Options,
    *,
    avg_bits: float,
    objective: Objective = "worst",
    widths: Sequence[int] = WIDTHS,
    sensitivity: How = "predicted",
    rounding: Rounding = "gptq",
) -> Plan:
    """Returns the widths with the least mean or worst damage, or regret, among those of `avg_bits` on average.

    The average is over the codes of the blocks' linear maps; steps, embedding and head are not counted.
    """
    one_of("objective", objective, ("mean", "worst", "regret"))
    one_of("sensitivity", sensitivity, ("predicted", "measured"))
    chosen = tuple(sorted({whole("a width", bits, least=2, most=8) for bits in widths}))
    table = evidence.sensitivity(chosen, sensitivity)
    found, notes = within_budget(table, evidence.block_weights, avg_bits=avg_bits, objective=objective)
    settings = {
        "bits": found.bits,
        "avg_bits": avg_bits,
        "objective": objective,
        "rounding": rounding,
        "expected": dict(zip(table.languages, found.damage.tolist(), strict=True)),
        "solver": found.solver,
        "optimal": found.optimal,
        "sensitivity": table.as_data(),
    }
    return assemble(
        "allocate",
        evidence,
        options,
        method=_underneath(rounding),
        bits=found.bits,
        settings=settings,
        notes=(*table.notes, *notes),
    )


def gateway(evidence: Evidence, options: Options, *, k: int = 3, rounding: Rounding = "gptq") -> Plan:
    """Returns 8 bits for the first and the last block and those nearest to ¾ of the depth, k in all (004-22)."""
    blocks = gateway_set(evidence.n_blocks, k)
    stacks = {block.stack for block in evidence.checkpoint.architecture.blocks}
    notes = ["the documents think of one stack of blocks; encoder and decoder are counted as one"]
    return assemble(
        "gateway",
        evidence,
        options,
        method=_underneath(rounding),
        bits=protected_widths(blocks, n_blocks=evidence.n_blocks, bits=options.bits),
        settings={"k": k, "blocks": blocks, "rounding": rounding},
        notes=notes if len(stacks) > 1 else (),
    )


def protect(
    evidence: Evidence,
    options: Options,
    *,
    k: int = 3,
    objective: Objective = "worst",
    sensitivity: How = "measured",
    sets: int = 20,
    rounding: Rounding = "gptq",
) -> Plan:
    """Returns 8 bits for the k blocks that promise the least damage; that set is measured beside random ones.

    What blocks cost adds up in the choice only; the set, and `sets` others of its size, are then measured whole.
    """
    whole("sets", sets, least=0)
    one_of("objective", objective, ("mean", "worst"))
    one_of("sensitivity", sensitivity, ("predicted", "measured"))
    table = evidence.sensitivity((options.bits, HIGH), sensitivity)
    blocks = best_protected(table, bits=options.bits, k=k, objective=objective)
    seed = 0 if options.calibration is None else options.calibration.seed
    others = [each for each in random_sets(evidence.n_blocks, k, count=sets, seed=seed) if each != blocks]
    widths = [protected_widths(each, n_blocks=evidence.n_blocks, bits=options.bits) for each in (blocks, *others)]
    own, *rest = (value_of(damage, objective) for damage in evidence.damage(widths))
    better = sum(value < own for value in rest)
    settings = {
        "k": k,
        "objective": objective,
        "blocks": blocks,
        "rounding": rounding,
        "measured": own,
        "random": [{"blocks": each, "measured": value} for each, value in zip(others, rest, strict=True)],
        "sensitivity": table.as_data(),
    }
    notes = [f"{better} of {len(rest)} random sets of {k} blocks measured better than the chosen one"] if rest else []
    return assemble(
        "protect",
        evidence,
        options,
        method=_underneath(rounding),
        bits=widths[0],
        settings=settings,
        notes=(*table.notes, *notes),
    )


def gptq(evidence: Evidence, options: Options, *, mix: Mixture = "equal") -> Plan:
    """Returns GPTQ under Σ_λ π_λ H_λ, with the exact weighted clip inside; `mix` says how languages are weighed.

    "equal"; "english" as is usual elsewhere, with as many tokens as all languages have together; given weights;
    "minimax": searched for the least worst damage.
    """
    settings: dict[str, Any] = {"mix": mix if isinstance(mix, str) else "given"}
    notes: tuple[str, ...] = ()
    if not isinstance(mix, str):
        pi = _given_mix(evidence, mix)
    elif one_of("mix", mix, ("equal", "english", "minimax")) == "minimax":
        found = evidence.minimax()
        pi, notes = dict(found.pi), found.notes
        settings["rounds"] = found.rounds
    elif mix == "equal":
        pi = equal_mix(evidence)
    else:
        pi = {code: weight for code, weight in one_language(evidence, ENGLISH).items() if weight}
        options = with_all_text(options, count=len(evidence.languages))
    return assemble("gptq", evidence, options, method=_underneath("gptq"), pi=pi, settings=settings, notes=notes)


POLICIES: Mapping[str, Callable[..., Plan]] = {
    each.__name__: each for each in (rtn, aciq, kappa, mse, weighted, laaciq, mixed, allocate, gateway, protect, gptq)
}
WITHOUT_TEXT = (rtn, aciq, kappa, mse)
FIXED = {"kappa": {"grid"}, "allocate": {"bits"}}
"""Options that a policy sets by itself."""


def reads_text(policy: str) -> bool:
    """Returns whether a policy needs text of every language."""
    return POLICIES[one_of("policy", policy, tuple(POLICIES))] not in WITHOUT_TEXT


def takes(policy: str) -> tuple[str, ...]:
    """Returns the names of what a policy can be told.

    >>> takes("aciq")
    ('bits', 'group', 'grid', 'embeddings', 'law')
    """
    one_of("policy", policy, tuple(POLICIES))
    common = [each.name for each in fields(Options) if each.name != "calibration"]
    own = [name for name, each in signature(POLICIES[policy]).parameters.items() if each.kind is Parameter.KEYWORD_ONLY]
    return tuple(name for name in (*common, *own) if name not in FIXED.get(policy, ()))


def check(policy: str, told: Mapping[str, Any]) -> None:
    """Raises if a policy does not take one of these options, or lacks one."""
    known = takes(policy)
    for name in told:
        if name not in known:
            raise InputError(f"{policy} takes no {name}; it takes {', '.join(known)}")
    if policy == "allocate" and "avg_bits" not in told:
        raise InputError("allocate needs avg_bits, the mean width of the blocks' weights, such as 4.25")


def decide(policy: str, evidence: Evidence, *, calibration: Calibration | None = None, **told: Any) -> Plan:
    """Returns the plan of a policy that is told these options; those that it does not take are refused."""
    check(policy, told)
    common = {name: value for name, value in told.items() if name in Options.__dataclass_fields__}
    own = {name: value for name, value in told.items() if name not in common}
    options = Options(**common, calibration=calibration)
    check_groups(evidence, options)  # before anything that takes time
    return POLICIES[policy](evidence, options, **own)


def _underneath(rounding: Rounding) -> Method:
    """Returns how weights are rounded where a policy decides widths or weights of languages only."""
    one_of("rounding", rounding, ("gptq", "nearest"))
    return Method("exact", "mean", rounding)


def _given_mix(evidence: Evidence, given: Mapping[str, float]) -> dict[str, float]:
    """Returns given weights, scaled to sum to 1; languages that are not named have none."""
    named = {find_language(name).code: weight for name, weight in given.items()}
    for code in named:
        one_language(evidence, code)  # is one of them
    weights = weights_vector("mix", [named.get(code, 0.0) for code in evidence.languages], size=len(evidence.languages))
    return dict(zip(evidence.languages, weights.tolist(), strict=True))
