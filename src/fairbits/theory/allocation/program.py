"""The integer program behind the worst-language allocation and the protection sets, solved by HiGHS."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, eye_array, hstack, kron

from fairbits.checks import Floats
from fairbits.errors import FairbitsError
from fairbits.theory.allocation.problem import Ints

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
