"""Policies of precision: how many bits each block has. All of them clip and round weights in the same way.

How many bits each block gets: within a budget, or for a few protected blocks.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import comb
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from fairbits.core.checks import in_range, one_of, sequence, whole
from fairbits.core.errors import InputError
from fairbits.models.scales.scheme import Objective, Rounding, Scheme
from fairbits.quantization.evidence import Evidence, How, Sensitivity
from fairbits.quantization.policies.clipping import OBJECTIVE
from fairbits.quantization.policies.option import Option, PolicyOptions, input_weighted, policy
from fairbits.quantization.policies.plan_from_scheme import assemble

if TYPE_CHECKING:
    from fairbits.core.array_checks import Floats
    from fairbits.quantization.allocation import Allocation
    from fairbits.quantization.plan import Plan


HIGH = 8
"""Bits of a protected block."""


def within_budget(
    sensitivity: Sensitivity, block_weights: Sequence[int], *, avg_bits: float, objective: Objective
) -> "tuple[Allocation, tuple[str, ...]]":
    """Returns the best width of every block at `avg_bits` bits per weight on average, and notes.

    Counted are the codes of the blocks' linear layers, not their scales; `avg_bits` lies within the widths. Objective
    "mean": least Σ D_λ; "worst": least max D_λ; "regret": least max (D_λ − the least that λ could have). The last two
    leave no language worse than the widest uniform width within the budget does.
    """
    import numpy as np  # heavy: policies are declared without it

    from fairbits.quantization.allocation import Problem, allocate_mean, allocate_worst

    widths = sensitivity.widths
    sizes = np.array([[-(-count * bits // 8) for bits in widths] for count in block_weights])
    problem = Problem(widths, sizes, damage=sensitivity.damage, languages=sensitivity.languages)
    uniform = max(option for option, bits in enumerate(widths) if bits <= avg_bits)
    plain = [uniform] * problem.n_blocks
    # bytes are rounded up block by block, which may exceed the budget a little: the uniform width must always fit
    budget = max(int(sum(block_weights) * avg_bits / 8), problem.total_bytes(plain))
    baseline = problem.total_damage(plain)
    with quiet_solver():
        if objective == "mean":
            found = allocate_mean(problem, budget)
        else:
            floor = None
            if objective == "regret":
                rows = np.eye(problem.n_languages)
                floor = [allocate_mean(problem, budget, pi=row).value for row in rows]
            found = allocate_worst(problem, budget, baseline=baseline, floor=floor)
    worse = [
        code for code, own, plainly in zip(problem.languages, found.damage, baseline, strict=True) if own > plainly
    ]
    if objective != "mean" or not worse:
        return found, ()
    are = "is" if len(worse) == 1 else "are"
    uniformly = f"with {widths[uniform]} bits everywhere"
    note = f"the mean damage is minimal, but {', '.join(worse)} {are} worse off than {uniformly}"
    return found, (note,)


def best_protected(sensitivity: Sensitivity, *, bits: int, k: int, objective: Objective) -> tuple[int, ...]:
    """Returns the k blocks to keep at HIGH bits, the best of all sets."""
    from fairbits.quantization.allocation import protect_blocks  # heavy: policies are declared without it

    with quiet_solver():
        return protect_blocks(sensitivity.at(bits), sensitivity.at(HIGH), k=k, objective=objective)


def protected_widths(blocks: Sequence[int], *, n_blocks: int, bits: int) -> tuple[int, ...]:
    """Returns HIGH bits for some blocks, `bits` for all others.

    >>> protected_widths((0, 3), n_blocks=4, bits=4)
    (8, 4, 4, 8)
    """
    check_low(bits)
    return tuple(HIGH if block in blocks else bits for block in range(n_blocks))


def check_low(bits: int) -> None:
    """Raises unless blocks that are not protected have fewer bits than those that are."""
    if bits >= HIGH:
        raise InputError(f"bits is {bits}; protected blocks have {HIGH}, so that the others must have fewer")


def random_sets(n_blocks: int, k: int, *, count: int, seed: int) -> list[tuple[int, ...]]:
    """Returns `count` different sets of k blocks, all there are if there are fewer.

    >>> random_sets(4, 4, count=20, seed=0)
    [(0, 1, 2, 3)]
    """
    import numpy as np  # heavy: policies are declared without it

    rng = np.random.default_rng(seed)
    wanted = min(count, comb(n_blocks, k))
    found: dict[tuple[int, ...], None] = {}
    while len(found) < wanted:
        found[tuple(sorted(rng.choice(n_blocks, size=k, replace=False).tolist()))] = None
    return list(found)


def value_of(damage: "Floats", objective: Objective) -> float:
    """Returns the mean or the worst of the languages' damages."""
    return float(damage.mean() if objective == "mean" else damage.max())


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


TAU = 100.0
"""The research notes write τ without a number; this one yields the blocks that they name."""
WIDTHS = (3, 4, 5, 6, 8)

RoundingOption = Annotated[Rounding, Option("how weights are rounded")]
BlocksOption = Annotated[int, Option("number of blocks that keep 8 bits")]
ObjectiveOption = Annotated[Objective, Option(OBJECTIVE)]
AVG_BITS = Option("mean bits per weight, such as 4.25", instead_of="bits")
SENSITIVITY, ALLOWED = "how the damage of a block is estimated", "widths that a block may have, such as 4,8"


@policy(reads_audit=True)
def mixed(
    evidence: Evidence,
    options: PolicyOptions,
    *,
    tau: Annotated[float, Option("blocks with κ above it keep 8 bits")] = TAU,
    rounding: RoundingOption = "gptq",
) -> "Plan":
    """Returns 8 bits for blocks with κ_l > τ, `bits` for the others: bits(l) = 8 if κ_l > τ else 4."""
    in_range("tau", tau)
    check_low(options.bits)
    scheme = input_weighted(options, rounding)
    values = evidence.kappa()
    blocks = tuple(block for block, value in enumerate(values) if value > tau)
    notes = [] if blocks else [f"no block has κ above {tau:g} (the largest is {values.max():.3g}): all are alike"]
    return assemble(
        "mixed",
        evidence,
        options,
        scheme=scheme,
        bits=protected_widths(blocks, n_blocks=evidence.n_blocks, bits=options.bits),
        settings={
            "tau": tau,
            "kappa": [float(f"{each:.4g}") for each in values],
            "blocks": blocks,
            "rounding": rounding,
        },
        notes=notes,
    )


@policy(fixes=("bits",))
def allocate(
    evidence: Evidence,
    options: PolicyOptions,
    *,
    avg_bits: Annotated[float, AVG_BITS],
    objective: ObjectiveOption = "worst",
    widths: Annotated[Sequence[int], Option(ALLOWED)] = WIDTHS,
    sensitivity: Annotated[How, Option(SENSITIVITY)] = "predicted",
    rounding: RoundingOption = "gptq",
) -> "Plan":
    """Returns the widths with the least mean or worst damage, or regret, among those with `avg_bits` bits on average.

    The average is over the codes of the blocks' linear layers; scales, embedding and head are not counted.
    """
    one_of("objective", objective, get_args(Objective))
    one_of("sensitivity", sensitivity, get_args(How))
    scheme = input_weighted(options, rounding)
    chosen = tuple(sorted({whole("a width", bits, least=2, most=8) for bits in sequence("widths", widths)}))
    if not chosen:
        raise InputError("widths is empty; it must hold the numbers of bits that a block may have, such as 3, 4, 6")
    in_range("avg_bits", avg_bits, least=chosen[0], most=chosen[-1])
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
        scheme=scheme,
        bits=found.bits,
        settings=settings,
        notes=(_sensitivity_note(scheme), *table.notes, *notes),
    )


@policy()
def gateway(
    evidence: Evidence, options: PolicyOptions, *, k: BlocksOption = 3, rounding: RoundingOption = "gptq"
) -> "Plan":
    """Returns 8 bits for the first and the last block and those nearest to ¾ of the depth, k in all (004-22)."""
    from fairbits.quantization.allocation import gateway_set  # heavy: policies are declared without it

    blocks = gateway_set(evidence.n_blocks, k)
    stacks = {block.stack for block in evidence.checkpoint.architecture.blocks}
    notes = ["the documents assume one stack of blocks; encoder and decoder are counted as one"]
    return assemble(
        "gateway",
        evidence,
        options,
        scheme=input_weighted(options, rounding),
        bits=protected_widths(blocks, n_blocks=evidence.n_blocks, bits=options.bits),
        settings={"k": k, "blocks": blocks, "rounding": rounding},
        notes=notes if len(stacks) > 1 else (),
    )


@policy()
def protect(
    evidence: Evidence,
    options: PolicyOptions,
    *,
    k: BlocksOption = 3,
    objective: Annotated[Literal["mean", "worst"], Option(OBJECTIVE)] = "worst",
    sensitivity: Annotated[How, Option(SENSITIVITY)] = "measured",
    sets: Annotated[int, Option("random sets of blocks to compare with")] = 20,
    rounding: RoundingOption = "gptq",
) -> "Plan":
    """Returns 8 bits for the k blocks that promise the least damage, and compares that set with random ones.

    The choice assumes that the damages of blocks add up. The chosen set and `sets` random ones of its size are then
    measured as a whole.
    """
    whole("the number of blocks", evidence.n_blocks, least=2)
    whole("k", k, least=1, most=evidence.n_blocks - 1)
    whole("sets", sets, least=0)
    one_of("objective", objective, ("mean", "worst"))
    one_of("sensitivity", sensitivity, get_args(How))
    check_low(options.bits)
    scheme = input_weighted(options, rounding)
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
        scheme=scheme,
        bits=widths[0],
        settings=settings,
        notes=(_sensitivity_note(scheme), *table.notes, *notes),
    )


def _sensitivity_note(scheme: Scheme) -> str:
    """Returns how the rounding that sensitivities are computed for differs from that of the plan."""
    own = "by gptq" if scheme.rounding == "gptq" else "to nearest"
    return (
        "sensitivities are for rounding to nearest with scales set by the largest weight; the plan itself rounds "
        f"{own} with a clip weighted by the inputs"
    )
