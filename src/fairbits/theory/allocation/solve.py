"""The exact allocations: least mean damage (knapsack) and least worst-language damage (integer program)."""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from fairbits.checks import Floats, finite_array, in_range, instance, one_of, positive, same_shape
from fairbits.errors import InputError
from fairbits.memory import DYNAMIC_PROGRAM_STATES
from fairbits.theory.allocation.problem import Allocation, Ints, Problem, make_allocation
from fairbits.theory.allocation.program import Program, loosened, solve


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
