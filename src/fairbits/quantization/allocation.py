"""How many bits each block gets, exactly: one integer program, solved by HiGHS.

The damages of blocks are taken to add up. With x_lo = 1 if block l has option o,

    min z  s.t.  Σ_{l,o} d_{λlo} x_lo ≤ z for every row λ,  Σ_o x_lo = 1,  Σ size·x ≤ capacity,  x ∈ {0, 1}.

The rows are the languages (least damage of the worst of them, or least regret), or one row, their mean. Which k blocks
to keep in high precision is the same program: two options of sizes 0 and 1, and a total size of exactly k. For the
least gap, max_λ D_λ − min_λ D_λ, a second unknown m is subtracted: D_λ − m ≤ z and D_λ ≥ m for every language.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, eye_array, hstack, kron

from fairbits.core.array_checks import Floats, weights_vector
from fairbits.core.checks import whole
from fairbits.core.errors import FairbitsError, InputError

Ints = NDArray[np.int64]

_TARGET = 1e3  # HiGHS stops within 1e-6 absolute; scaled to 1e3 that is 1e-9 of the value
_MAX_CUTS = 100
_GAP_NODES = 4_000  # of the search for the least gap, which can take days to prove: many sets nearly close it


@dataclass(frozen=True, eq=False)
class Problem:
    """Sizes in bytes and additive damages (languages, blocks, options) of every block at every number of bits."""

    bits: tuple[int, ...]
    sizes: Ints
    damage: Floats
    languages: tuple[str, ...] = ()

    @property
    def n_languages(self) -> int:
        return len(self.damage)

    @property
    def n_blocks(self) -> int:
        return len(self.sizes)

    def total_damage(self, options: ArrayLike) -> Floats:
        """Returns the damage per language, Σ_l d[λ, l, option_l], of one option index per block."""
        totals: Floats = self.damage[:, np.arange(self.n_blocks), np.asarray(options)].sum(axis=1)
        return totals

    def total_bytes(self, options: ArrayLike) -> int:
        return int(self.sizes[np.arange(self.n_blocks), np.asarray(options)].sum())


@dataclass(frozen=True, eq=False)
class Allocation:
    """The bits of every block, their size and damage, and the value of the objective; HiGHS has proved it optimal."""

    bits: tuple[int, ...]
    options: tuple[int, ...]
    size_bytes: int
    damage: Floats
    value: float
    solver: str = "highs"
    optimal: bool = True


def allocate_mean(problem: Problem, budget: int, *, pi: ArrayLike | None = None) -> Allocation:
    """Returns the allocation with the least mean damage Σ_λ π_λ D_λ within `budget` bytes; π equal without `pi`."""
    weights = weights_vector("pi", np.ones(problem.n_languages) if pi is None else pi, size=problem.n_languages)
    costs = np.tensordot(weights, problem.damage, axes=1)
    options = _solve(costs[None], problem.sizes, capacity=budget)
    return _allocation(problem, options, value=float(costs[np.arange(problem.n_blocks), options].sum()))


def allocate_worst(
    problem: Problem, budget: int, *, baseline: ArrayLike | None = None, floor: ArrayLike | None = None
) -> Allocation:
    """Returns the least damage of the worst language within `budget` bytes; `floor` turns damage into regret."""
    shift = np.zeros(problem.n_languages) if floor is None else np.asarray(floor)
    costs = problem.damage - shift[:, None, None] / problem.n_blocks
    caps = None if baseline is None else np.asarray(baseline) - shift
    options = _solve(costs, problem.sizes, capacity=budget, caps=caps)
    return _allocation(problem, options, value=float((problem.total_damage(options) - shift).max()))


def protect_blocks(damage_low: Floats, damage_high: Floats, *, k: int, objective: str = "worst") -> tuple[int, ...]:
    """Returns the k blocks to keep in high precision for the least mean or worst damage, or the least gap.

    Damages are (languages, blocks). The gap is max_λ D_λ − min_λ D_λ (004-22); all languages may be damaged more for
    it. In large cases it is the least that was found in 4,000 nodes of the search, not proved to be the least of all.
    """
    costs = np.stack([damage_low, damage_high], axis=2)
    if objective == "mean":
        costs = costs.mean(axis=0, keepdims=True)
    sizes = np.tile(np.array([0, 1], dtype=np.int64), (costs.shape[1], 1))
    return tuple(np.flatnonzero(_solve(costs, sizes, capacity=k, least=k, gap=objective == "gap")).tolist())


def gateway_set(n_blocks: int, k: int, *, gain: ArrayLike | None = None) -> tuple[int, ...]:
    """Returns the research notes' set: first and last block, then those nearest to 3L/4 (004-22, 004-26).

    With `gain` (languages, blocks), what each language gains if a block is protected, the remaining k − 2 slots go to
    the blocks with the largest Σ_λ gain_λ, as their algorithm has it (004-25). A rule, not an optimum: first and last
    block are taken whatever they gain. Ties go to the lower block.
    """
    whole("n_blocks", n_blocks, least=2)
    whole("k", k, least=2, most=n_blocks)
    rank = np.abs(np.arange(n_blocks) - 0.75 * n_blocks) if gain is None else -np.sum(np.asarray(gain), axis=0)
    inner = sorted(range(1, n_blocks - 1), key=lambda block: (rank[block], block))
    return tuple(sorted({0, n_blocks - 1, *inner[: k - 2]}))


def _allocation(problem: Problem, options: Ints, *, value: float) -> Allocation:
    chosen = tuple(options.tolist())
    bits = tuple(problem.bits[option] for option in chosen)
    return Allocation(bits, chosen, problem.total_bytes(chosen), problem.total_damage(chosen), value)


def _solve(
    costs: Floats,
    sizes: Ints,
    *,
    capacity: int,
    least: int | None = None,
    caps: Floats | None = None,
    gap: bool = False,
) -> Ints:
    """Returns the option of every block that minimises the largest row of Σ costs[row, block, option], or their `gap`.

    The total size is at most `capacity` and at least `least`. The relaxation to fractions gives the size of the value,
    to which costs are scaled. HiGHS works to tolerances, so a rounded solution may exceed the capacity by a few bytes;
    it is then excluded (Σx over it ≤ blocks − 1), and the program solved again.
    """
    n_blocks, n_options = sizes.shape
    index = np.arange(n_blocks)
    limits = None if caps is None else caps + 1e-9 * np.abs(caps) + 1e-12 * np.abs(costs).max()  # rounding is no excess
    span = float(np.abs(costs).max()) or 1.0
    bounds = None if limits is None else limits / span
    _, relaxed = _run(costs / span, sizes, capacity, least, bounds, [], gap=gap, whole=False)
    # fractions can nearly always close the gap, so its size is that of the costs
    unit = max(abs(relaxed) * span, (1.0 if gap else 1e-6) * span) / _TARGET
    cuts: list[LinearConstraint] = []
    for _ in range(_MAX_CUTS):
        x, _ = _run(costs / unit, sizes, capacity, least, None if limits is None else limits / unit, cuts, gap=gap)
        options: Ints = x.reshape(n_blocks, n_options).argmax(axis=1).astype(np.int64)
        size, totals = int(sizes[index, options].sum()), costs[:, index, options].sum(axis=1)
        if (least or 0) <= size <= capacity and (limits is None or (totals <= limits).all()):
            return options
        cut = np.zeros((1, n_blocks * n_options + 2))
        cut[0, index * n_options + options] = 1.0
        cuts.append(LinearConstraint(csr_array(cut), -np.inf, n_blocks - 1))
    raise FairbitsError(
        f"HiGHS returned {_MAX_CUTS} choices that exceed the budget by rounding; sizes from {sizes.min()} to "
        f"{sizes.max()} bytes are too uneven for it: give sizes in larger units"
    )


def _run(
    costs: Floats,
    sizes: Ints,
    capacity: int,
    least: int | None,
    limits: Floats | None,
    cuts: list[LinearConstraint],
    *,
    gap: bool = False,
    whole: bool = True,
) -> tuple[Floats, float]:
    """Returns x and z; the unknowns are x, then m, which is 0 unless it is the least row of a gap, and z."""
    n_blocks, n_options = sizes.shape
    rows = costs.reshape(len(costs), -1)
    size_unit = _TARGET / max(1, int(sizes.max()))
    size_row = csr_array(np.append(sizes.ravel() * size_unit, [0.0, 0.0])[None])
    one_each = hstack([kron(eye_array(n_blocks), np.ones((1, n_options))), csr_array((n_blocks, 2))])
    constraints = [
        LinearConstraint(csr_array(one_each), 1.0, 1.0),
        LinearConstraint(size_row, -np.inf if least is None else least * size_unit, capacity * size_unit),
        LinearConstraint(csr_array(np.hstack([rows, np.full((len(rows), 2), -1.0)])), -np.inf, 0.0),
        *cuts,
    ]
    if limits is not None:
        constraints.append(LinearConstraint(csr_array(np.hstack([rows, np.zeros((len(rows), 2))])), -np.inf, limits))
    if gap:
        constraints.append(
            LinearConstraint(csr_array(np.hstack([-rows, np.tile([1.0, 0.0], (len(rows), 1))])), -np.inf, 0.0)
        )
    n_x, free = n_blocks * n_options, np.inf if gap else 0.0
    result = milp(
        np.append(np.zeros(n_x + 1), 1.0),
        integrality=np.append(np.full(n_x, int(whole)), [0, 0]),
        bounds=Bounds(np.append(np.zeros(n_x), [-free, -np.inf]), np.append(np.ones(n_x), [free, np.inf])),
        constraints=constraints,
        options={"mip_rel_gap": 0.0, "node_limit": _GAP_NODES} if gap and whole else {"mip_rel_gap": 0.0},
    )
    if result.status == 2:
        raise InputError(f"no allocation within {capacity} bytes keeps every language at or below its baseline")
    if result.status != 0 and not (gap and result.x is not None):
        raise FairbitsError(f"HiGHS stopped without a solution: {result.message.strip()}")
    return result.x[:n_x], float(result.x[-1])
