"""How many bits each block gets: within a budget, or for a few protected blocks."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import comb
from typing import TYPE_CHECKING

from fairbits.errors import InputError
from fairbits.model.scheme import Objective
from fairbits.quantization.evidence import Sensitivity

if TYPE_CHECKING:
    from fairbits.checks import Floats
    from fairbits.theory.allocation import Allocation

HIGH = 8
"""Bits of a protected block."""


def within_budget(
    sensitivity: Sensitivity, block_weights: Sequence[int], *, avg_bits: float, objective: Objective
) -> "tuple[Allocation, tuple[str, ...]]":
    """Returns the best width of every block at `avg_bits` bits per weight on average, and notes.

    Counted are the codes of the blocks' linear maps, not their scales; `avg_bits` lies within the widths. Objective
    "mean": least Σ D_λ; "worst": least max D_λ; "regret": least max (D_λ − the least that λ could have). The last two
    leave no language worse than the widest uniform width within the budget does.
    """
    import numpy as np  # heavy: policies are declared without it

    from fairbits.theory.allocation import Problem, allocate_mean, allocate_worst

    widths = sensitivity.widths
    sizes = [[-(-count * bits // 8) for bits in widths] for count in block_weights]
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
    """Returns the k blocks to keep at HIGH bits: of all sets, if they can be enumerated, or by integer program."""
    from fairbits.theory.allocation import protect  # heavy: policies are declared without it
    from fairbits.theory.allocation.protection import MAX_SETS

    low, high = sensitivity.at(bits), sensitivity.at(HIGH)
    method = "exhaustive" if comb(low.shape[1], k) <= MAX_SETS else "milp"
    with quiet_solver():
        return protect(low, high, k=k, objective=objective, method=method).blocks


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
