"""The exact allocations: least mean damage (knapsack) and least worst-language damage (integer program).

The allocation problem (sizes, damages, a budget in bytes) and its solution (one width per block).

The integer program behind the worst-language allocation and the protection sets, solved by HiGHS.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, eye_array, hstack, kron

from fairbits.core.array_checks import Floats, finite_array, nonnegative_array, weights_vector
from fairbits.core.checks import in_range, instance, one_of, positive, same_shape, sequence, whole
from fairbits.core.errors import FairbitsError, InputError
from fairbits.core.memory import DYNAMIC_PROGRAM_STATES

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False, init=False)
class Problem:
    """Sizes in bytes and additive damages of every block at every width.

    `damage[lang, block, option]` is the damage of `lang` when only `block` is stored at `bits[option]`; the
    damage of a whole allocation is the sum over blocks (interactions are ignored: measure the chosen one again).
    `sizes[block, option]` includes scales; `fixed_bytes` is everything that is never quantized.

    >>> problem = Problem(bits=(4, 8), sizes=[[4, 8], [4, 8]], damage=[[[2, 0], [1, 0]]], fixed_bytes=10)
    >>> problem.smallest_bytes
    18
    """

    bits: tuple[int, ...]
    sizes: Ints
    damage: Floats
    fixed_bytes: int = 0
    languages: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()

    def __init__(
        self,
        bits: Sequence[int],
        sizes: ArrayLike,
        *,
        damage: ArrayLike,
        fixed_bytes: int = 0,
        languages: Sequence[str] = (),
        blocks: Sequence[str] = (),
    ) -> None:
        widths = _widths(bits)
        size_table = _whole_array("sizes", sizes, ndim=2)
        damages = finite_array("damage", damage, ndim=3).copy()
        same_shape("sizes", size_table.shape[1:], "the number of bits options", (len(widths),))
        same_shape("damage", damages.shape[1:], "the shape of sizes", size_table.shape)
        for name, given, size in (
            ("languages", languages, len(damages)),
            ("blocks", blocks, len(size_table)),
        ):
            if isinstance(given, str) or len(sequence(name, given)) not in (0, size):
                raise InputError(f"{name} is {given!r}; it must be empty or hold {size} name(s), one per row")
        damages.setflags(write=False)
        size_table.setflags(write=False)
        values: dict[str, Any] = {
            "bits": widths,
            "sizes": size_table,
            "damage": damages,
            "fixed_bytes": whole("fixed_bytes", fixed_bytes, least=0),
            "languages": tuple(languages),
            "blocks": tuple(blocks),
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)

    @property
    def n_languages(self) -> int:
        """The number of languages."""
        return len(self.damage)

    @property
    def n_blocks(self) -> int:
        """The number of blocks."""
        return len(self.sizes)

    @property
    def smallest_bytes(self) -> int:
        """The total size with the smallest option everywhere: no budget below it can be met."""
        return self.fixed_bytes + int(self.sizes.min(axis=1).sum())

    def capacity(self, budget: int) -> int:
        """Returns the bytes that `budget` (total, fixed tensors included) leaves for the blocks.

        >>> Problem(bits=(4, 8), sizes=[[4, 8]], damage=[[[2, 0]]], fixed_bytes=10).capacity(15)
        5
        """
        total = whole("budget", budget, least=0)
        if total < self.smallest_bytes:
            raise InputError(
                f"budget is {total} bytes; the smallest feasible size is {self.smallest_bytes} bytes "
                f"({self.fixed_bytes} fixed): raise the budget, or allow fewer than {self.bits[0]} bits"
            )
        return total - self.fixed_bytes

    def total_damage(self, options: ArrayLike) -> Floats:
        """Returns the damage per language, Σ_l d[λ, l, option_l], of one option index per block.

        >>> Problem(bits=(4, 8), sizes=[[4, 8], [4, 8]], damage=[[[2, 0], [1, 0]]]).total_damage([1, 0])
        array([1.])
        """
        chosen = self._checked(options)
        picked: Floats = self.damage[:, np.arange(self.n_blocks), chosen]
        totals: Floats = picked.sum(axis=1)
        return totals

    def total_bytes(self, options: ArrayLike) -> int:
        """Returns the total size in bytes, fixed tensors included, of one option index per block.

        >>> Problem(bits=(4, 8), sizes=[[4, 8]], damage=[[[2, 0]]], fixed_bytes=10).total_bytes([1])
        18
        """
        chosen = self._checked(options)
        return self.fixed_bytes + int(self.sizes[np.arange(self.n_blocks), chosen].sum())

    def mean_damage(self, pi: ArrayLike | None) -> Floats:
        """Returns Σ_λ π_λ d[λ, block, option]; equal weights when `pi` is None.

        >>> Problem(bits=(4, 8), sizes=[[4, 8]], damage=[[[2, 0]], [[4, 0]]]).mean_damage([3, 1])
        array([[2.5, 0. ]])
        """
        weights = np.ones(self.n_languages) if pi is None else pi
        averaged: Floats = np.tensordot(weights_vector("pi", weights, size=self.n_languages), self.damage, axes=1)
        return averaged

    def _checked(self, options: ArrayLike) -> Ints:
        chosen = _whole_array("options", options, ndim=1)
        same_shape("options", chosen.shape, "the number of blocks", (self.n_blocks,))
        if (chosen >= len(self.bits)).any():
            raise InputError(f"options holds {chosen.max()}; every index must be below {len(self.bits)}")
        return chosen


@dataclass(frozen=True, eq=False)
class Allocation:
    """One width per block, its size and damage, and how close it is to the best possible."""

    bits: tuple[int, ...]
    options: tuple[int, ...]
    size_bytes: int
    damage: Floats
    objective: str
    value: float
    bound: float  # no allocation within the budget has an objective value below this
    solver: str
    optimal: bool  # value - bound is at most 1e-7 of the scale of the objective


def block_bytes(
    n_weights: ArrayLike,
    n_scales: ArrayLike,
    *,
    bits: Sequence[int],
    scale_bits: int = 16,
    float_bits: int = 16,
) -> Ints:
    """Returns the bytes of every block at every width, [block, option].

    ⌈n_weights·bits/8⌉ + ⌈n_scales·scale_bits/8⌉. Widths of `float_bits` and more keep the weights as floats
    and need no scales. `n_scales` counts zero points too, where there are any.

    >>> block_bytes([4096], [32], bits=(3, 4, 16))
    array([[1600, 2112, 8192]])
    """
    weights = _whole_array("n_weights", n_weights, ndim=1)
    scales = _whole_array("n_scales", n_scales, ndim=1)
    same_shape("n_scales", scales.shape, "the shape of n_weights", weights.shape)
    whole("scale_bits", scale_bits, least=0)
    whole("float_bits", float_bits, least=1)
    widths = np.array(_widths(bits), dtype=np.int64)
    codes: Ints = -(-weights[:, None] * widths // 8)
    scale_bytes = -(-scales * scale_bits // 8)
    return codes + np.where(widths < float_bits, scale_bytes[:, None], 0)


def make_allocation(
    problem: Problem,
    options: ArrayLike,
    *,
    objective: str,
    value: float,
    bound: float,
    solver: str,
    scale: float,
) -> Allocation:
    """Returns the Allocation of these options; it counts as optimal within 1e-7 of `scale`."""
    in_range("value", value)
    chosen = tuple(int(option) for option in np.asarray(options))
    damage = problem.total_damage(chosen)
    damage.setflags(write=False)
    return Allocation(
        bits=tuple(problem.bits[option] for option in chosen),
        options=chosen,
        size_bytes=problem.total_bytes(chosen),
        damage=damage,
        objective=objective,
        value=value,
        bound=min(bound, value),
        solver=solver,
        optimal=bool(value - bound <= 1e-7 * abs(scale)),
    )


def _widths(bits: Sequence[int]) -> tuple[int, ...]:
    widths = tuple(whole("bits", width, least=1, most=64) for width in sequence("bits", bits))
    if not widths or any(wide <= narrow for narrow, wide in pairwise(widths)):
        raise InputError(f"bits is {widths}; it must hold at least one width, in increasing order")
    return widths


def _whole_array(name: str, value: ArrayLike, *, ndim: int) -> Ints:
    array = nonnegative_array(name, value, ndim=ndim)
    if (array != np.rint(array)).any() or array.max() > 2**53:
        raise InputError(f"{name} holds {array.max():g} at most; every element must be a whole number up to 2^53")
    return array.astype(np.int64)


_TARGET = 1e3  # HiGHS stops within 1e-6 absolute; scaled to 1e3 that is 1e-9 of the reference
_MAX_CUTS = 100


@dataclass(frozen=True, eq=False)
class Program:
    """min max_row (or max_row − min_row) of Σ costs[row, block, option]·x, one option per block."""

    costs: Floats
    sizes: Ints
    capacity: int
    reference: float  # the size of the objective value, for scaling
    allowed: NDArray[np.bool_]  # options that may be chosen
    caps: Floats | None = None  # the largest total per row
    gap: bool = False  # minimise max − min instead of max
    exact_size: bool = False  # the total size equals the capacity
    known: Ints | None = None  # a choice known to be feasible

    def totals(self, options: Ints) -> Floats:
        """Returns the total cost per row."""
        picked: Floats = self.costs[:, np.arange(len(self.sizes)), options]
        totals: Floats = picked.sum(axis=1)
        return totals

    def value(self, options: Ints) -> float:
        """Returns the objective value of a choice."""
        totals = self.totals(options)
        return float(totals.max() - totals.min()) if self.gap else float(totals.max())

    def feasible(self, options: Ints) -> bool:
        """Returns whether a choice meets the size (exactly, in whole bytes) and the caps (to 1e-9)."""
        size = int(self.sizes[np.arange(len(self.sizes)), options].sum())
        size_ok = size == self.capacity if self.exact_size else size <= self.capacity
        return size_ok and (self.caps is None or bool((self.totals(options) <= loosened(self.caps, self.costs)).all()))


@dataclass(frozen=True, eq=False)
class Solution:
    """The chosen options, their objective value and a proved lower bound."""

    options: Ints
    value: float
    bound: float


def solve(program: Program, *, relative_gap: float = 0.0, time_limit: float | None = None) -> Solution | None:
    """Returns the best choice, or None when there is provably none; never worse than the known one.

    HiGHS works to tolerances, so a rounded solution may exceed the budget by a few bytes. Such a choice is excluded
    by a constraint (Σx over it ≤ blocks − 1) and the program is solved again, so that the result is exact.
    """
    n_blocks, n_options = program.sizes.shape
    n_x = n_blocks * n_options
    auxiliary = 2 if program.gap else 1
    objective = np.concatenate([np.zeros(n_x), [1.0, -1.0][:auxiliary]])
    bounds = Bounds(
        np.concatenate([np.zeros(n_x), np.full(auxiliary, -np.inf)]),
        np.concatenate([program.allowed.ravel().astype(float), np.full(auxiliary, np.inf)]),
    )
    integrality = np.concatenate([np.ones(n_x), np.zeros(auxiliary)])
    limits: Any = {"mip_rel_gap": relative_gap}
    if time_limit is not None:
        limits["time_limit"] = time_limit
    constraints = _constraints(program, auxiliary)
    for _ in range(_MAX_CUTS):
        result = milp(objective, integrality=integrality, bounds=bounds, constraints=constraints, options=limits)
        if result.status == 2 and program.known is None:
            return None
        if result.x is None:
            raise FairbitsError(
                f"HiGHS stopped without a solution: {result.message.strip()}; raise time_limit or the gap"
            )
        options = result.x[:n_x].reshape(n_blocks, n_options).argmax(axis=1).astype(np.int64)
        if program.feasible(options):
            bound = -np.inf if result.mip_dual_bound is None else float(result.mip_dual_bound)
            return _with_known(program, options, bound=bound * program.reference / _TARGET)
        cut = np.zeros((1, n_x + auxiliary))
        cut[0, np.arange(n_blocks) * n_options + options] = 1.0
        constraints.append(LinearConstraint(csr_array(cut), -np.inf, n_blocks - 1))
    raise FairbitsError(
        f"HiGHS returned {_MAX_CUTS} choices that exceed the budget by rounding; sizes from {program.sizes.min()} to "
        f"{program.sizes.max()} bytes are too uneven for it: give sizes in larger units"
    )


def _with_known(program: Program, options: Ints, *, bound: float) -> Solution:
    """Returns the better of the solution of HiGHS and the known one; raises if either violates the bound."""
    best = options
    if program.known is not None and program.value(program.known) < program.value(options):
        best = program.known
    value = program.value(best)
    if bound > value + 1e-6 * program.reference:
        raise FairbitsError(
            f"HiGHS claims that no choice is below {bound:g}, but one of {value:g} is known; "
            "this is a fault of the solver: give other units, or use another method"
        )
    return Solution(best, value, bound)


def loosened(caps: Floats, costs: Floats) -> Floats:
    """Returns caps raised by 1e-9 of themselves, so that rounding does not exclude a choice exactly at its cap."""
    raised: Floats = caps + 1e-9 * np.abs(caps) + 1e-12 * np.abs(costs).max()
    return raised


def _constraints(program: Program, auxiliary: int) -> list[LinearConstraint]:
    n_blocks, n_options = program.sizes.shape
    rows = program.costs.reshape(len(program.costs), -1) * (_TARGET / program.reference)
    columns = np.zeros((len(rows), auxiliary))
    columns[:, 0] = -1.0
    one_each = hstack([kron(eye_array(n_blocks), np.ones((1, n_options))), csr_array((n_blocks, auxiliary))])
    size_unit = _TARGET / max(1, int(program.sizes.max()))
    size_row = np.concatenate([program.sizes.ravel() * size_unit, np.zeros(auxiliary)])[None]
    capacity = program.capacity * size_unit
    constraints = [
        LinearConstraint(csr_array(one_each), 1.0, 1.0),
        LinearConstraint(csr_array(size_row), capacity if program.exact_size else -np.inf, capacity),
        LinearConstraint(csr_array(np.hstack([rows, columns])), -np.inf, 0.0),
    ]
    if program.gap:
        lowest = np.hstack([rows, np.roll(columns, 1, axis=1)])
        constraints.append(LinearConstraint(csr_array(lowest), 0.0, np.inf))
    if program.caps is not None:
        most = loosened(program.caps, program.costs) * (_TARGET / program.reference)
        constraints.append(LinearConstraint(csr_array(np.hstack([rows, 0.0 * columns])), -np.inf, most))
    return constraints


def allocate_mean(problem: Problem, budget: int, *, pi: ArrayLike | None = None, solver: str = "auto") -> Allocation:
    """Returns the allocation with the least mean damage Σ_λ π_λ D_λ within `budget` total bytes.

    A multiple-choice knapsack, solved exactly by dynamic programming over units of the greatest common
    divisor of the sizes: best_l(u) = min_o best_{l−1}(u − size_lo) + c_lo. "auto" takes HiGHS (zero gap) if
    blocks × units exceed DYNAMIC_PROGRAM_STATES; the result names the solver ("dp" or "highs").

    >>> problem = Problem(bits=(4, 8), sizes=[[4, 8], [4, 8]], damage=[[[2, 0], [1, 0]]])
    >>> allocate_mean(problem, 12).bits, allocate_mean(problem, 12).value
    ((8, 4), 1.0)
    """
    instance("problem", problem, Problem)
    one_of("solver", solver, ("auto", "dp", "highs"))
    costs = problem.mean_damage(pi)
    capacity = problem.capacity(budget)
    extra = problem.sizes - problem.sizes.min(axis=1, keepdims=True)
    unit = max(1, int(np.gcd.reduce(extra, axis=None)))
    room = min(capacity - int(problem.sizes.min(axis=1).sum()), int(extra.max(axis=1).sum())) // unit
    states = problem.n_blocks * (room + 1)
    if solver == "dp" and states > DYNAMIC_PROGRAM_STATES:
        raise InputError(
            f"the budget makes {states} states in units of {unit} bytes; the program takes {DYNAMIC_PROGRAM_STATES}: "
            "use solver='highs' or round the sizes to a coarser unit"
        )
    if solver == "highs" or states > DYNAMIC_PROGRAM_STATES:
        return _mean_by_program(problem, costs, capacity=capacity)
    options = _knapsack(costs, extra // unit, room=room)
    value = float(costs[np.arange(problem.n_blocks), options].sum())
    return make_allocation(problem, options, objective="mean", value=value, bound=value, solver="dp", scale=value)


def allocate_worst(
    problem: Problem,
    budget: int,
    *,
    relative_gap: float = 0.0,
    baseline: ArrayLike | None = None,
    floor: ArrayLike | None = None,
    time_limit: float | None = None,
) -> Allocation:
    """Returns the allocation with the least damage of the most damaged language within `budget` total bytes.

    min z s.t. Σ_{l,o} d_{λlo} x_{lo} ≤ z for every λ, Σ_o x_lo = 1, Σ size·x ≤ capacity, x ∈ {0, 1}.
    `baseline` caps every language: none ends more damaged than that vector (for example under the uniform
    width of equal size). `floor` turns the objective into regret, max_λ (D_λ − floor_λ). HiGHS proves the
    result to within `relative_gap` of its value, or stops after `time_limit` seconds with `optimal` False (an
    error if it has found nothing by then); the result is never worse than the greedy choice if that meets
    the baseline.

    >>> problem = Problem(bits=(4, 8), sizes=[[4, 8], [4, 8]], damage=[[[2, 0], [1, 0]], [[0, 0], [4, 0]]])
    >>> allocate_worst(problem, 12).bits, allocate_worst(problem, 12).value
    ((4, 8), 2.0)
    """
    instance("problem", problem, Problem)
    in_range("relative_gap", relative_gap, least=0.0, below=1.0)
    if time_limit is not None:
        positive("time_limit", time_limit)
    capacity = problem.capacity(budget)
    floors = _per_language(problem, "floor", floor)
    caps = _per_language(problem, "baseline", baseline)
    shift = np.zeros(problem.n_languages) if floors is None else floors
    costs = problem.damage - shift[:, None, None] / problem.n_blocks
    program = _program(costs, problem.sizes, capacity=capacity, caps=None if caps is None else caps - shift)
    solution = solve(program, relative_gap=relative_gap, time_limit=time_limit)
    if solution is None:
        raise InputError(
            f"no allocation within {budget} bytes keeps every language at or below baseline "
            f"{None if caps is None else caps.tolist()}; raise the budget or the baseline"
        )
    value = float((problem.total_damage(solution.options) - shift).max())
    return make_allocation(
        problem,
        solution.options,
        objective="worst" if floors is None else "regret",
        value=value,
        bound=solution.bound,
        solver="highs",
        scale=program.reference,
    )


def _per_language(problem: Problem, name: str, given: ArrayLike | None) -> Floats | None:
    if given is None:
        return None
    values = finite_array(name, given, ndim=1)
    same_shape(name, values.shape, "the number of languages", (problem.n_languages,))
    return values


def _mean_by_program(problem: Problem, costs: Floats, *, capacity: int) -> Allocation:
    program = _program(costs[None], problem.sizes, capacity=capacity, caps=None)
    solution = solve(program)
    assert solution is not None  # the greedy choice is known
    return make_allocation(
        problem,
        solution.options,
        objective="mean",
        value=solution.value,
        bound=solution.bound,
        solver="highs",
        scale=program.reference,
    )


def _program(costs: Floats, sizes: Ints, *, capacity: int, caps: Floats | None) -> Program:
    """Returns the program without the options that no choice as good as the greedy one can contain."""
    start = greedy_options(costs, sizes, capacity=capacity)
    greedy_value = float(costs[:, np.arange(len(sizes)), start].sum(axis=1).max())
    span = float(np.abs(costs).max())
    reference = max(abs(greedy_value), 1e-6 * span) or 1.0
    least = costs.min(axis=2, keepdims=True)
    lowest_total = costs - least + least.sum(axis=1, keepdims=True)  # per row, with this option and the best others
    limit = np.full(len(costs), greedy_value + 1e-9 * reference) if caps is None else loosened(caps, costs)
    allowed = (lowest_total <= limit[:, None, None]).all(axis=0)
    program = Program(costs, sizes, capacity=capacity, reference=reference, allowed=allowed, caps=caps)
    return replace(program, known=start) if program.feasible(start) else program


def greedy_options(costs: Floats, sizes: Ints, *, capacity: int) -> Ints:
    """Returns a greedy choice per block for min max_row Σ costs[row, block, option] within `capacity`.

    From the smallest option of every block on, the upgrade that lowers the objective most per byte is taken while one
    fits; where none lowers it, the one that lowers the mean most without raising the maximum. The exact solvers start
    from this choice, and leave out options that cannot be part of a better one.
    """
    index = np.arange(len(sizes))
    order = np.lexsort((costs.mean(axis=0), sizes), axis=1)  # smallest size first, then smallest mean cost
    options = order[:, 0].astype(np.int64)
    while True:
        now = costs[:, index, options]
        change = costs - now[:, :, None]
        extra = sizes - sizes[index, options][:, None]
        fits = (extra > 0) & (extra <= capacity - sizes[index, options].sum())
        total = now.sum(axis=1)
        gain = total.max() - (total[:, None, None] + change).max(axis=0)
        slack = 1e-12 * np.abs(costs).max()
        useful = fits & (gain > slack)
        if not useful.any():
            useful = fits & (gain >= -slack) & (change.mean(axis=0) < -slack)
            gain = -change.mean(axis=0)
        if not useful.any():
            return options
        rate = np.where(useful, gain / np.maximum(extra, 1), -np.inf)
        block, option = np.unravel_index(int(rate.argmax()), rate.shape)
        options[block] = option


def _knapsack(costs: Floats, units: Ints, *, room: int) -> Ints:
    """Returns the options of least total cost with Σ units ≤ room; every block has an option of 0."""
    best = np.zeros(room + 1)
    choice = np.zeros((len(costs), room + 1), dtype=np.uint8)  # at most 64 widths
    for block, (cost, unit) in enumerate(zip(costs, units, strict=True)):
        new = np.full(room + 1, math.inf)
        for option in np.argsort(unit, kind="stable"):
            need = int(unit[option])
            if need > room:
                break
            candidate = best[: room + 1 - need] + cost[option]
            better = candidate < new[need:]
            np.minimum(candidate, new[need:], out=new[need:])
            choice[block, need:][better] = option
        best = new
    options = np.zeros(len(costs), dtype=np.int64)
    left = room
    for block in range(len(costs) - 1, -1, -1):
        options[block] = choice[block, left]
        left -= int(units[block, options[block]])
    return options
