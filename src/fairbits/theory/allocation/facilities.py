"""Which k of n candidates to open so that every client has a cheap one: the k-median and the k-center, exactly."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, eye_array, hstack, kron, vstack

from fairbits.checks import Floats, nonnegative_array, one_of, whole
from fairbits.errors import FairbitsError
from fairbits.theory.allocation.problem import Ints

OBJECTIVES = ("mean", "worst")


@dataclass(frozen=True, eq=False)
class Facilities:
    """The chosen candidates, the cost of the best of them for every client, and the objective value."""

    chosen: tuple[int, ...]
    cost: Floats
    objective: str
    value: float


def choose_facilities(cost: ArrayLike, k: int, *, objective: str = "mean") -> Facilities:
    """Returns the k columns of `cost` (clients, candidates) that minimise the mean or worst of min over columns.

    Solved by HiGHS to optimality, not by a greedy search. "worst" finds the least radius for which k candidates
    reach every client, and among the sets with that radius the one of the least mean.

    >>> cost = [[0, 1, 9], [1, 0, 9], [9, 9, 0]]
    >>> choose_facilities(cost, 2).chosen, choose_facilities(cost, 1, objective="worst").chosen
    ((0, 2), (0,))
    """
    table = nonnegative_array("cost", cost, ndim=2)
    whole("k", k, least=1, most=table.shape[1])
    radius = _least_radius(table, k) if one_of("objective", objective, OBJECTIVES) == "worst" else np.inf
    chosen = _median(table, k, radius=radius)
    nearest: Floats = table[:, chosen].min(axis=1)
    value = float(nearest.max() if objective == "worst" else nearest.mean())
    return Facilities(tuple(chosen), nearest, objective, value)


def _median(table: Floats, k: int, *, radius: float) -> list[int]:
    """Returns the k candidates of the least mean cost, none of which serves a client beyond the radius.

    Variables: x_s, whether candidate s is open, and y_λs, the share of client λ that s serves: Σ_s y_λs = 1,
    y_λs ≤ x_s.
    """
    clients, candidates = table.shape
    serve = clients * candidates
    each = kron(eye_array(clients), np.ones((1, candidates)))
    served = hstack([csr_array((clients, candidates)), each])
    opened = hstack([vstack([-eye_array(candidates)] * clients), eye_array(serve)])
    count = csr_array(np.concatenate([np.ones(candidates), np.zeros(serve)])[None])
    unit = float(table.max()) or 1.0
    found = _solve(
        np.concatenate([np.zeros(candidates), table.ravel() / (unit * clients)]),
        integrality=np.concatenate([np.ones(candidates), np.zeros(serve)]).astype(np.int64),
        upper=np.concatenate([np.ones(candidates), (table.ravel() <= radius).astype(float)]),
        constraints=[(served, 1.0, 1.0), (opened, -np.inf, 0.0), (count, k, k)],
    )
    if found is None:
        raise FairbitsError("HiGHS found no set although one exists; give costs of similar size")
    return np.flatnonzero(found[:candidates] > 0.5).tolist()


def _least_radius(table: Floats, k: int) -> float:
    """Returns the least cost within which k candidates reach every client, by bisection over all costs."""
    radii = np.unique(table)
    low, high = 0, len(radii) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _reaches(table <= radii[middle], k) else (middle + 1, high)
    return float(radii[low])


def _reaches(near: Any, k: int) -> bool:
    """Returns whether k candidates are near every client: a set cover."""
    if not near.any(axis=1).all():
        return False
    candidates = near.shape[1]
    found = _solve(
        np.ones(candidates),
        integrality=np.ones(candidates, dtype=np.int64),
        upper=np.ones(candidates),
        constraints=[(csr_array(near.astype(float)), 1.0, np.inf)],
    )
    return found is not None and round(float(found.sum())) <= k


def _solve(objective: Floats, *, integrality: Ints, upper: Floats, constraints: list[Any]) -> Floats | None:
    """Returns the optimal values of the variables, None if there are none."""
    result = milp(
        objective,
        integrality=integrality,
        bounds=Bounds(np.zeros(len(objective)), upper),
        constraints=[LinearConstraint(csr_array(matrix), low, high) for matrix, low, high in constraints],
        options={"mip_rel_gap": 0.0},
    )
    if result.status not in (0, 2):
        raise FairbitsError(f"HiGHS stopped without a solution: {result.message.strip()}")
    return None if result.status == 2 else result.x
