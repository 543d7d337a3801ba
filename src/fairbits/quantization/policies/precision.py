"""Policies of precision: how many bits each block has. All of them clip and round weights in the same way."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import comb
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.core.checks import in_range, one_of, sequence, whole
from fairbits.core.errors import InputError
from fairbits.models.scales.scheme import Objective, Rounding, Scheme
from fairbits.quantization.evidence import Evidence, How, Sensitivity
from fairbits.quantization.plan import Plan
from fairbits.quantization.policies.clipping import OBJECTIVE
from fairbits.quantization.policies.option import Option, PolicyOptions, input_weighted, policy
from fairbits.quantization.policies.plan_from_scheme import one_language, plan_from_scheme
from fairbits.text.language_codes import find_language

if TYPE_CHECKING:
    from fairbits.quantization.allocation import Allocation

HIGH: Final = 8
KEPT: Final = 0
"""Bits of a protected block, and the number that stands for a block that keeps its weights."""
TAU = 100.0
"""The research notes write τ without a number; this one gives the blocks that they name."""
WIDTHS = (3, 4, 5, 6, 8)

RoundingOption = Annotated[Rounding, Option("how weights are rounded")]
Slots = Literal[8, "full"]
BlocksOption = Annotated[int, Option("number of protected blocks")]
SlotsOption = Annotated[Slots, Option("protected blocks have 8 bits, or the model's full precision")]
ObjectiveOption = Annotated[Objective, Option(OBJECTIVE)]
ProtectFor = Annotated[
    Sequence[str] | None, Option("choose blocks for these languages alone, such as swh,yor", language=True)
]
ProtectObjective = Literal["mean", "worst", "gap"]
SUMMARIES: Mapping[str, Callable[[Floats], float]] = {
    "mean": lambda damage: float(damage.mean()),
    "worst": lambda damage: float(damage.max()),
    "gap": lambda damage: float(np.ptp(damage)),
}
GAP = (
    "the gap between the languages with the most and the least damage is a poor aim: it is small too where all are "
    "damaged much; compare with objective worst"
)
AVG_BITS = Option("mean bits per weight, such as 4.25", instead_of="bits")
SENSITIVITY, ALLOWED = "how the damage of a block is estimated", "bit widths that a block may have, such as 4,8"


def within_budget(
    sensitivity: Sensitivity, block_weights: Sequence[int], *, avg_bits: float, objective: Objective
) -> "tuple[Allocation, tuple[str, ...]]":
    """Returns the best bits of every block at `avg_bits` bits per weight on average, and notes.

    Only the codes of the blocks' linear layers count, not their scales. Objective "mean": least Σ D_λ; "worst": least
    max D_λ; "regret": least max (D_λ − the least that λ could have). The last two leave no language worse than the
    most bits that all blocks can have within the budget.
    """
    from fairbits.quantization.allocation import Problem, allocate_mean, allocate_worst

    widths = sensitivity.bits
    sizes = np.array([[-(-count * bits // 8) for bits in widths] for count in block_weights])
    problem = Problem(widths, sizes, damage=sensitivity.damage, languages=sensitivity.languages)
    uniform = max(option for option, bits in enumerate(widths) if bits <= avg_bits)
    plain = [uniform] * problem.n_blocks
    # bytes are rounded up block by block, which may exceed the budget a little: uniform bits must always fit
    budget = max(int(sum(block_weights) * avg_bits / 8), problem.total_bytes(plain))
    baseline = problem.total_damage(plain)
    with quiet_solver():
        if objective == "mean":
            allocation = allocate_mean(problem, budget)
        else:
            floor = None
            if objective == "regret":
                rows = np.eye(problem.n_languages)
                floor = [allocate_mean(problem, budget, pi=row).value for row in rows]
            allocation = allocate_worst(problem, budget, baseline=baseline, floor=floor)
    worse = [code for code, rises in zip(problem.languages, allocation.damage > baseline, strict=True) if rises]
    if objective != "mean" or not worse:
        return allocation, ()
    harmed = f"{', '.join(worse)} {'is' if len(worse) == 1 else 'are'} worse off"
    return allocation, (f"the mean damage is minimal, but {harmed} than with {widths[uniform]} bits everywhere",)


def best_protected(
    sensitivity: Sensitivity, *, bits: int, k: int, objective: ProtectObjective, slots: Slots = HIGH
) -> tuple[int, ...]:
    """Returns the k blocks to protect, the best of all sets."""
    from fairbits.quantization.allocation import protect_blocks

    low = sensitivity.at(bits)
    with quiet_solver():
        return protect_blocks(low, low - protection_gain(sensitivity, bits, slots), k=k, objective=objective)


def protection_gain(sensitivity: Sensitivity, bits: int, slots: Slots) -> Floats:
    """Returns the damage that protecting each block alone avoids, (languages, blocks)."""
    low = sensitivity.at(bits)
    return low if slots == "full" else low - sensitivity.at(HIGH)


def protected_bits(
    blocks: Sequence[int], *, n_blocks: int, options: PolicyOptions, slots: Slots = HIGH
) -> tuple[int, ...]:
    """Returns the bits of every block: HIGH or KEPT for protected ones, KEPT for those that the user keeps."""
    check_low(options.bits, slots)
    high = {**dict.fromkeys(blocks, KEPT if slots == "full" else HIGH), **dict.fromkeys(options.keep, KEPT)}
    return tuple(high.get(block, options.bits) for block in range(n_blocks))


def free_blocks(evidence: Evidence, options: PolicyOptions) -> list[int]:
    """Returns the blocks that the user does not keep."""
    return [block for block in range(evidence.n_blocks) if block not in options.keep]


def check_low(bits: int, slots: Slots = HIGH) -> None:
    """Raises unless blocks that are not protected have fewer bits than protected ones."""
    if slots not in get_args(Slots):
        raise InputError(f"slots is {slots!r:.40}; it must be 8 or full")
    if bits >= HIGH and slots != "full":
        raise InputError(f"bits is {bits}; protected blocks have {HIGH}, so the other blocks must have fewer")


def random_sets(n_blocks: int, k: int, *, count: int, seed: int) -> list[tuple[int, ...]]:
    """Returns `count` different sets of k blocks, all there are if there are fewer."""
    rng = np.random.default_rng(seed)
    wanted = min(count, comb(n_blocks, k))
    sets: dict[tuple[int, ...], None] = {}
    while len(sets) < wanted:
        sets[tuple(sorted(rng.choice(n_blocks, size=k, replace=False).tolist()))] = None
    return list(sets)


@contextmanager
def quiet_solver() -> Iterator[None]:
    """Sends what HiGHS prints from C to stderr, so that stdout holds results only."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


@policy(reads_audit=True, fixes=("scheme",))
def mixed(
    evidence: Evidence,
    options: PolicyOptions,
    *,
    tau: Annotated[float, Option("blocks with κ above it get 8 bits")] = TAU,
    rounding: RoundingOption = "gptq",
) -> Plan:
    """Returns 8 bits for blocks with κ_l > τ, `bits` for the others: bits(l) = 8 if κ_l > τ else 4."""
    in_range("tau", tau)
    check_low(options.bits)
    scheme = input_weighted(options, rounding)
    values = evidence.kappa()
    blocks = tuple(block for block, value in enumerate(values) if value > tau and block not in options.keep)
    notes = [] if blocks else [f"no block has κ above {tau:g} (the largest is {values.max():.3g}), so all are alike"]
    shown = [float(f"{value:.4g}") for value in values]
    settings = {"tau": tau, "kappa": shown, "blocks": blocks, "rounding": rounding}
    bits = protected_bits(blocks, n_blocks=evidence.n_blocks, options=options)
    return plan_from_scheme("mixed", evidence, options, scheme=scheme, bits=bits, settings=settings, notes=notes)


@policy(fixes=("scheme", "bits"))
def allocate(
    evidence: Evidence,
    options: PolicyOptions,
    *,
    avg_bits: Annotated[float, AVG_BITS],
    objective: ObjectiveOption = "worst",
    widths: Annotated[Sequence[int], Option(ALLOWED)] = WIDTHS,
    sensitivity: Annotated[How, Option(SENSITIVITY)] = "predicted",
    rounding: RoundingOption = "gptq",
) -> Plan:
    """Returns the bits with the least mean or worst damage, or regret, at `avg_bits` bits on average.

    Blocks that the user keeps count neither in the mean nor in the damage.
    """
    one_of("objective", objective, get_args(Objective))
    one_of("sensitivity", sensitivity, get_args(How))
    scheme = input_weighted(options, rounding)
    chosen = tuple(sorted({whole("a width", bits, least=2, most=8) for bits in sequence("widths", widths)}))
    if not chosen:
        raise InputError("widths is empty; give the bit widths that a block may have, such as 3, 4, 6")
    in_range("avg_bits", avg_bits, least=chosen[0], most=chosen[-1])
    free = free_blocks(evidence, options)
    table = evidence.sensitivity(chosen, sensitivity).of(blocks=free)
    block_weights = [evidence.block_weights[block] for block in free]
    allocation, notes = within_budget(table, block_weights, avg_bits=avg_bits, objective=objective)
    width_of = dict(zip(free, allocation.bits, strict=True))
    bits = [width_of.get(block, KEPT) for block in range(evidence.n_blocks)]
    settings = {
        "bits": [width or None for width in bits],
        "avg_bits": avg_bits,
        "objective": objective,
        "rounding": rounding,
        "expected": dict(zip(table.languages, allocation.damage.tolist(), strict=True)),
        "solver": allocation.solver,
        "optimal": allocation.optimal,
        "sensitivity": table.as_data(),
    }
    notes = (_sensitivity_note(scheme), *table.notes, *notes)
    return plan_from_scheme("allocate", evidence, options, scheme=scheme, bits=bits, settings=settings, notes=notes)


@policy(fixes=("scheme",))
def gateway(
    evidence: Evidence,
    options: PolicyOptions,
    *,
    k: BlocksOption = 3,
    slots: SlotsOption = HIGH,
    protect_for: ProtectFor = None,
    sensitivity: Annotated[How, Option(SENSITIVITY, needs="protect_for")] = "measured",
    rounding: RoundingOption = "gptq",
) -> Plan:
    """Returns protection of the first and the last block and those nearest to ¾ of the depth, k in all (004-22).

    With `protect_for`, the research notes' low-resource languages, the other k − 2 are the blocks with the largest
    Σ_λ sensitivity over these languages, as the third step of their proof has it (004-25).
    """
    from fairbits.quantization.allocation import gateway_set

    one_of("sensitivity", sensitivity, get_args(How))
    languages = _protected_languages(evidence, protect_for)
    scheme = input_weighted(options, rounding)
    settings: dict[str, Any] = {"k": k, "slots": slots, "rounding": rounding}
    blocks, notes = gateway_set(evidence.n_blocks, k), []  # checks k
    bits = protected_bits(blocks, n_blocks=evidence.n_blocks, options=options, slots=slots)  # checks bits and slots
    if len({block.stack for block in evidence.checkpoint.architecture.blocks}) > 1:
        notes.append("the research notes assume one stack of blocks; encoder and decoder are counted as one")
    if protect_for is not None:
        table = evidence.sensitivity((options.bits, *_high(slots)), sensitivity)
        gain = protection_gain(table.of(languages), options.bits, slots)
        blocks = gateway_set(evidence.n_blocks, k, gain=gain)
        bits = protected_bits(blocks, n_blocks=evidence.n_blocks, options=options, slots=slots)
        shown = [float(f"{value:.4g}") for value in gain.sum(axis=0)]
        settings |= {"protect_for": languages, "sensitivity": table.as_data(), "gain": shown}
        notes += [_sensitivity_note(scheme), *table.notes, _gateway_note(gain.sum(axis=0), blocks)]
    settings["blocks"] = blocks
    return plan_from_scheme("gateway", evidence, options, scheme=scheme, bits=bits, settings=settings, notes=notes)


@policy(fixes=("scheme",))
def protect(
    evidence: Evidence,
    options: PolicyOptions,
    *,
    k: BlocksOption = 3,
    slots: SlotsOption = HIGH,
    objective: Annotated[ProtectObjective, Option(OBJECTIVE)] = "worst",
    protect_for: ProtectFor = None,
    sensitivity: Annotated[How, Option(SENSITIVITY)] = "measured",
    sets: Annotated[int, Option("number of random sets of blocks to compare with")] = 20,
    rounding: RoundingOption = "gptq",
) -> Plan:
    """Returns protection of the k blocks with the least expected damage, and measures that set and `sets` random ones.

    Damage is that of the languages in `protect_for`, of all languages without it.
    """
    free = free_blocks(evidence, options)
    whole("the number of blocks that may be protected", len(free), least=2)
    whole("k", k, least=1, most=len(free) - 1)
    whole("sets", sets, least=0)
    summary = SUMMARIES[one_of("objective", objective, get_args(ProtectObjective))]
    one_of("sensitivity", sensitivity, get_args(How))
    languages = _protected_languages(evidence, protect_for)
    scheme = input_weighted(options, rounding)
    check_low(options.bits, slots)
    table = evidence.sensitivity((options.bits, *_high(slots)), sensitivity)
    chosen = table.of(languages, free)
    places = best_protected(chosen, bits=options.bits, k=k, objective=objective, slots=slots)
    seed = 0 if options.calibration is None else options.calibration.seed
    drawn = [some for some in random_sets(len(free), k, count=sets, seed=seed) if some != places]
    blocks, *others = (tuple(free[place] for place in some) for some in (places, *drawn))
    bits = [
        protected_bits(some, n_blocks=evidence.n_blocks, options=options, slots=slots) for some in (blocks, *others)
    ]
    rows = [evidence.languages.index(code) for code in languages]
    measured, *random = (summary(damage[rows]) for damage in evidence.damage(bits))
    better = sum(value < measured for value in random)
    settings = {
        "k": k,
        "slots": slots,
        "objective": objective,
        "blocks": blocks,
        "rounding": rounding,
        "measured": measured,
        "random": [{"blocks": some, "measured": value} for some, value in zip(others, random, strict=True)],
        "sensitivity": table.as_data(),
    } | ({} if protect_for is None else {"protect_for": languages})
    notes = [f"{better} of {len(random)} random sets of {k} blocks did better than the chosen set"] if random else []
    notes = [_sensitivity_note(scheme), *table.notes, *notes, *([GAP] if objective == "gap" else [])]
    return plan_from_scheme("protect", evidence, options, scheme=scheme, bits=bits[0], settings=settings, notes=notes)


def _high(slots: Slots) -> tuple[int, ...]:
    """Returns the width at which protected blocks do damage; none if they keep their weights."""
    return () if slots == "full" else (HIGH,)


def _protected_languages(evidence: Evidence, named: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the languages that blocks are chosen for: those that the user named, or all."""
    if named is None:
        return evidence.languages
    codes = [find_language(name, user_codes=evidence.languages).code for name in sequence("protect_for", named)]
    if not codes:
        raise InputError("protect_for is empty; name languages, such as swh,yor, or leave it out")
    for code in codes:
        one_language(evidence, code)  # raises if it is not one of the languages
    return tuple(dict.fromkeys(codes))


def _gateway_note(gain: Floats, blocks: Sequence[int]) -> str:
    """Returns where the first and the last block stand among all, by what their protection gains."""
    places = {block: int((gain > gain[block]).sum()) + 1 for block in (0, len(gain) - 1)}
    ends = " and ".join(f"block {block} is in place {place}" for block, place in places.items())
    best = sorted(np.argsort(-gain, kind="stable")[: len(blocks)].tolist())
    return (
        f"the first and the last block are protected because the research notes say so; by sensitivity {ends} of "
        f"{len(gain)}, and the largest sum would be in blocks {', '.join(map(str, best))} (the policy protect does not "
        "force the ends)"
    )


def _sensitivity_note(scheme: Scheme) -> str:
    rounding = "by gptq" if scheme.rounding == "gptq" else "to nearest"
    return (
        "sensitivities are for rounding to nearest with scales set by the largest weight; the plan itself rounds "
        f"{rounding} with a clip weighted by the inputs"
    )
