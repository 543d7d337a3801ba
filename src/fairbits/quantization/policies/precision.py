"""Policies of precision: how many bits each block has. All of them clip and round weights in the same way."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import comb
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import numpy as np

from fairbits.core.checks import in_range, one_of, sequence, whole
from fairbits.core.errors import InputError
from fairbits.models.scales.scheme import Objective, Rounding, Scheme
from fairbits.quantization.evidence import Evidence, How, Sensitivity
from fairbits.quantization.plan import Plan
from fairbits.quantization.policies.clipping import OBJECTIVE
from fairbits.quantization.policies.option import Option, PolicyOptions, input_weighted, policy
from fairbits.quantization.policies.plan_from_scheme import plan_from_scheme

if TYPE_CHECKING:
    from fairbits.quantization.allocation import Allocation

HIGH = 8
"""Bits of a protected block."""
TAU = 100.0
"""The research notes write τ without a number; this one gives the blocks that they name."""
WIDTHS = (3, 4, 5, 6, 8)

RoundingOption = Annotated[Rounding, Option("how weights are rounded")]
BlocksOption = Annotated[int, Option("number of blocks with 8 bits")]
ObjectiveOption = Annotated[Objective, Option(OBJECTIVE)]
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


def best_protected(sensitivity: Sensitivity, *, bits: int, k: int, objective: Objective) -> tuple[int, ...]:
    """Returns the k blocks to keep at HIGH bits, the best of all sets."""
    from fairbits.quantization.allocation import protect_blocks

    with quiet_solver():
        return protect_blocks(sensitivity.at(bits), sensitivity.at(HIGH), k=k, objective=objective)


def protected_bits(blocks: Sequence[int], *, n_blocks: int, bits: int) -> tuple[int, ...]:
    """Returns HIGH bits for some blocks, `bits` for all others."""
    check_low(bits)
    return tuple(HIGH if block in blocks else bits for block in range(n_blocks))


def check_low(bits: int) -> None:
    """Raises unless blocks that are not protected have fewer bits than protected ones."""
    if bits >= HIGH:
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


@policy(reads_audit=True)
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
    blocks = tuple(block for block, value in enumerate(values) if value > tau)
    notes = [] if blocks else [f"no block has κ above {tau:g} (the largest is {values.max():.3g}), so all are alike"]
    shown = [float(f"{value:.4g}") for value in values]
    settings = {"tau": tau, "kappa": shown, "blocks": blocks, "rounding": rounding}
    bits = protected_bits(blocks, n_blocks=evidence.n_blocks, bits=options.bits)
    return plan_from_scheme("mixed", evidence, options, scheme=scheme, bits=bits, settings=settings, notes=notes)


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
) -> Plan:
    """Returns the bits with the least mean or worst damage, or regret, at `avg_bits` bits on average."""
    one_of("objective", objective, get_args(Objective))
    one_of("sensitivity", sensitivity, get_args(How))
    scheme = input_weighted(options, rounding)
    chosen = tuple(sorted({whole("a width", bits, least=2, most=8) for bits in sequence("widths", widths)}))
    if not chosen:
        raise InputError("widths is empty; give the bit widths that a block may have, such as 3, 4, 6")
    in_range("avg_bits", avg_bits, least=chosen[0], most=chosen[-1])
    table = evidence.sensitivity(chosen, sensitivity)
    allocation, notes = within_budget(table, evidence.block_weights, avg_bits=avg_bits, objective=objective)
    settings = {
        "bits": allocation.bits,
        "avg_bits": avg_bits,
        "objective": objective,
        "rounding": rounding,
        "expected": dict(zip(table.languages, allocation.damage.tolist(), strict=True)),
        "solver": allocation.solver,
        "optimal": allocation.optimal,
        "sensitivity": table.as_data(),
    }
    bits, notes = allocation.bits, (_sensitivity_note(scheme), *table.notes, *notes)
    return plan_from_scheme("allocate", evidence, options, scheme=scheme, bits=bits, settings=settings, notes=notes)


@policy()
def gateway(
    evidence: Evidence, options: PolicyOptions, *, k: BlocksOption = 3, rounding: RoundingOption = "gptq"
) -> Plan:
    """Returns 8 bits for the first and the last block and those nearest to ¾ of the depth, k in all (004-22)."""
    from fairbits.quantization.allocation import gateway_set

    blocks = gateway_set(evidence.n_blocks, k)
    several = len({block.stack for block in evidence.checkpoint.architecture.blocks}) > 1
    note = "the research notes assume one stack of blocks; encoder and decoder are counted as one"
    scheme, notes = input_weighted(options, rounding), [note] if several else []
    bits = protected_bits(blocks, n_blocks=evidence.n_blocks, bits=options.bits)
    settings = {"k": k, "blocks": blocks, "rounding": rounding}
    return plan_from_scheme("gateway", evidence, options, scheme=scheme, bits=bits, settings=settings, notes=notes)


@policy()
def protect(
    evidence: Evidence,
    options: PolicyOptions,
    *,
    k: BlocksOption = 3,
    objective: Annotated[Literal["mean", "worst"], Option(OBJECTIVE)] = "worst",
    sensitivity: Annotated[How, Option(SENSITIVITY)] = "measured",
    sets: Annotated[int, Option("number of random sets of blocks to compare with")] = 20,
    rounding: RoundingOption = "gptq",
) -> Plan:
    """Returns 8 bits for the k blocks with the least expected damage, and measures that set and `sets` random ones."""
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
    drawn = [some for some in random_sets(evidence.n_blocks, k, count=sets, seed=seed) if some != blocks]
    bits = [protected_bits(some, n_blocks=evidence.n_blocks, bits=options.bits) for some in (blocks, *drawn)]
    chosen, *random = (float(d.mean() if objective == "mean" else d.max()) for d in evidence.damage(bits))
    better = sum(value < chosen for value in random)
    settings = {
        "k": k,
        "objective": objective,
        "blocks": blocks,
        "rounding": rounding,
        "measured": chosen,
        "random": [{"blocks": some, "measured": value} for some, value in zip(drawn, random, strict=True)],
        "sensitivity": table.as_data(),
    }
    notes = [f"{better} of {len(random)} random sets of {k} blocks did better than the chosen set"] if random else []
    notes = [_sensitivity_note(scheme), *table.notes, *notes]
    return plan_from_scheme("protect", evidence, options, scheme=scheme, bits=bits[0], settings=settings, notes=notes)


def _sensitivity_note(scheme: Scheme) -> str:
    rounding = "by gptq" if scheme.rounding == "gptq" else "to nearest"
    return (
        "sensitivities are for rounding to nearest with scales set by the largest weight; the plan itself rounds "
        f"{rounding} with a clip weighted by the inputs"
    )
