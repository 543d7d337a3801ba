"""The greedy allocation: the baseline that the exact solvers are measured against."""

import numpy as np

from fairbits.checks import Floats, instance, one_of
from fairbits.theory.allocation.problem import Allocation, Ints, Problem, answer
from fairbits.theory.allocation.relaxation import dual_bound


def allocate_greedy(problem: Problem, budget: int, *, objective: str = "mean") -> Allocation:
    """Returns the allocation of repeated best upgrades: a heuristic, never better than the exact solvers.

    Starts from the smallest option of every block and takes, while one fits, the upgrade with the largest
    fall of the objective per byte. `objective` is "mean" (over languages) or "worst" (the most damaged
    language); where no upgrade lowers the worst, the one that lowers the mean most without raising the worst
    is taken. The bound is the Lagrangian dual (for "worst": the largest dual over single languages and mean).

    >>> problem = Problem(bits=(4, 8), sizes=[[4, 8], [4, 8]], damage=[[[2, 0], [1, 0]]])
    >>> allocate_greedy(problem, 12).bits
    (8, 4)
    """
    instance("problem", problem, Problem)
    one_of("objective", objective, ("mean", "worst"))
    capacity = problem.capacity(budget)
    mean = problem.mean_damage(None)
    rows = mean[None] if objective == "mean" else problem.damage
    options = greedy_options(rows, problem.sizes, capacity=capacity)
    value = float(rows[:, np.arange(problem.n_blocks), options].sum(axis=1).max())
    weightings = [mean] if objective == "mean" else [mean, *problem.damage]
    bound = max(dual_bound(costs, problem.sizes, capacity=capacity).value for costs in weightings)
    return answer(problem, options, objective=objective, value=value, bound=bound, solver="greedy", scale=abs(value))


def greedy_options(costs: Floats, sizes: Ints, *, capacity: int) -> Ints:
    """Returns the greedy option per block for min max_row Σ costs[row, block, option] within `capacity`."""
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
