"""Bounds and closed forms: the Lagrangian dual of the mean objective, and reverse water-filling."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fairbits.checks import Floats, finite_array, in_range, instance
from fairbits.errors import InputError
from fairbits.theory.allocation.problem import Ints, Problem


@dataclass(frozen=True)
class DualBound:
    """A certified lower bound and the price per byte that proves it."""

    value: float
    price: float


def lagrangian_bound(problem: Problem, budget: int, *, pi: ArrayLike | None = None) -> DualBound:
    """Returns max_{μ ≥ 0} Σ_l min_o (c_lo + μ·size_lo) − μ·capacity, with c = Σ_λ π_λ d.

    No allocation within the budget has a smaller mean damage (weak duality); the value equals that of the
    linear relaxation, so the gap to the optimum is at most one block's step on its convex hull.

    >>> problem = Problem(bits=(4, 8), sizes=[[4, 8], [4, 8]], damage=[[[2, 0], [1, 0]]])
    >>> lagrangian_bound(problem, 14)
    DualBound(value=0.5, price=0.25)
    """
    instance("problem", problem, Problem)
    return dual_bound(problem.mean_damage(pi), problem.sizes, capacity=problem.capacity(budget))


def dual_bound(costs: Floats, sizes: Ints, *, capacity: int) -> DualBound:
    """Returns the exact maximum of the dual of min Σ costs[block, option] within `capacity`."""
    # The dual is concave and linear between the prices at which two options of one block cost the same, so
    # its maximum is at one of them; a concave sequence is searched by bisection on its forward difference.
    fall = costs[:, :, None] - costs[:, None, :]
    rise = sizes[:, None, :] - sizes[:, :, None]
    steps = (rise > 0) & (fall > 0)
    prices = np.unique(np.append(fall[steps] / rise[steps], 0.0))

    def dual(price: float) -> float:
        return float((costs + price * sizes).min(axis=1).sum() - price * capacity)

    low, high = 0, len(prices) - 1
    while low < high:
        middle = (low + high) // 2
        if dual(float(prices[middle + 1])) > dual(float(prices[middle])):
            low = middle + 1
        else:
            high = middle
    price = float(prices[low])
    return DualBound(value=dual(price), price=price)


def reverse_waterfilling(variance: ArrayLike, mean_bits: float) -> Floats:
    """Returns the bits per block that minimise Σ_l v_l·2^(−2 b_l) at the given mean, each at least 0.

    b_l = mean + ½·log₂(v_l / geomean) over the blocks with b_l > 0; the others get 0 and the mean is refilled
    (reverse water-filling). `variance` is h·σ². A sanity check only: real widths are whole, and the law
    v·2^(−2b) holds for equally large blocks at high resolution.

    >>> reverse_waterfilling([16.0, 4.0, 1.0], 4.0)
    array([5., 4., 3.])
    """
    v = finite_array("variance", variance, ndim=1)
    if (v <= 0).any():
        raise InputError(f"variance holds {v.min():g}; every variance must be above 0: leave dead blocks out")
    mean = in_range("mean_bits", mean_bits, least=0.0)
    order = np.argsort(-v, kind="stable")
    half_logs = 0.5 * np.log2(v[order])
    count = np.arange(1, len(v) + 1)
    levels = (half_logs.cumsum() - mean * len(v)) / count  # the level if the first `count` are active
    active = int(np.flatnonzero(half_logs - levels >= 0)[-1])
    bits = np.empty_like(v)
    bits[order] = np.maximum(half_logs - levels[active], 0.0)
    return bits
