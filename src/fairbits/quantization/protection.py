"""Which k blocks to keep in high precision: exact search, and the research notes' gateway rule."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fairbits.core.array_checks import Floats, finite_array, nonnegative_array
from fairbits.core.checks import instance, one_of, positive, same_shape, whole
from fairbits.core.errors import InputError
from fairbits.core.memory import PROTECTION_SETS
from fairbits.quantization.allocation import Ints, Program, solve

MAX_SETS = 2_000_000
_OBJECTIVES = ("worst", "gap", "mean")


@dataclass(frozen=True, eq=False)
class Protection:
    """The blocks kept in high precision, the damage per language and the objective value."""

    blocks: tuple[int, ...]
    damage: Floats
    objective: str
    value: float
    bound: float  # no set of this size has a value below it; −inf where the method proves nothing
    method: str
    optimal: bool


def protect(
    damage_low: ArrayLike,
    damage_high: ArrayLike,
    *,
    k: int,
    objective: str = "worst",
    method: str = "exhaustive",
) -> Protection:
    """Returns the set S of exactly k blocks to keep in high precision that minimises the objective (004-22).

    D_λ(S) = Σ_l (damage_high if l ∈ S else damage_low)[λ, l]; "worst" = max_λ D_λ, "gap" = max − min over λ,
    "mean". The gap can be lowered by damaging the best language: report the worst language as well.
    "exhaustive" tries all C(L, k) sets, "milp" proves the same by HiGHS, "greedy" is a heuristic.

    >>> low = [[3, 1, 1, 2], [1, 1, 4, 1]]
    >>> protect(low, np.zeros((2, 4)), k=2).blocks
    (0, 2)
    """
    low, gain = _tables(damage_low, damage_high)
    n_blocks = low.shape[1]
    whole("k", k, least=1, most=n_blocks)
    one_of("objective", objective, _OBJECTIVES)
    one_of("method", method, ("exhaustive", "milp", "greedy"))
    bound, scale = -math.inf, 0.0
    if method == "exhaustive":
        blocks, bound = _best_set(low, gain, k=k, objective=objective)
    elif method == "greedy":
        blocks = _greedy_set(low, gain, k=k, objective=objective)
    else:
        blocks, bound, scale = _program_set(low, gain, k=k, objective=objective)
    damage = low.sum(axis=1) + gain[:, blocks].sum(axis=1)
    value = float(_value(damage[:, None], objective)[0])
    optimal = method == "exhaustive" or value - bound <= 1e-7 * scale
    return Protection(tuple(blocks), damage, objective, value, min(bound, value), method, optimal)


def gateway_set(n_blocks: int, k: int) -> tuple[int, ...]:
    """Returns the research notes' set: first and last block, then those nearest to 3L/4 (004-22, 004-26).

    A rule, not an optimum: its derivation does not use the damages. Ties go to the lower block, inside the
    bottleneck L/2 … 3L/4 that the documents assume.

    >>> gateway_set(12, 3)
    (0, 9, 11)
    """
    whole("n_blocks", n_blocks, least=2)
    whole("k", k, least=2, most=n_blocks)
    inner = sorted(range(1, n_blocks - 1), key=lambda block: (abs(block - 0.75 * n_blocks), block))
    return tuple(sorted({0, n_blocks - 1, *inner[: k - 2]}))


def gateway_misses(
    n_cases: int,
    *,
    rng: np.random.Generator,
    objective: str,
    n_languages: int = 2,
    n_blocks: int = 12,
    k: int = 3,
    gateway_factor: float = 2.0,
) -> float:
    """Returns the share of random additive cases whose best set lacks the first or the last block (004-21).

    Sensitivities are Gamma(2) per language and block, those of both gateways multiplied by `gateway_factor`;
    high precision does no damage. This refutes the theorem; it does not show how often it fails in a model.

    >>> gateway_misses(100, rng=np.random.default_rng(0), objective="gap")
    0.91
    """
    whole("n_cases", n_cases, least=1)
    instance("rng", rng, np.random.Generator)
    whole("n_languages", n_languages, least=1)
    whole("n_blocks", n_blocks, least=3)
    positive("gateway_factor", gateway_factor)
    gateways = [0, n_blocks - 1]
    misses = 0
    for _ in range(n_cases):
        low = rng.gamma(2.0, size=(n_languages, n_blocks))
        low[:, gateways] *= gateway_factor
        best = protect(low, np.zeros_like(low), k=k, objective=objective)
        misses += not set(gateways) <= set(best.blocks)
    return misses / n_cases


def amplification_sensitivity(errors: ArrayLike, norms: ArrayLike) -> Floats:
    """Returns the research notes' terms ε_i·Π_{j>i} ‖W_j‖, one per layer (004-23).

    As written; wrong for pre-LN residual networks, whose blocks add to the residual stream. With equal errors it
    selects the first layers if ‖W‖ > 1 and the last if ‖W‖ < 1, never both ends.

    >>> amplification_sensitivity([1, 1, 1], [2, 2, 2])
    array([4., 2., 1.])
    """
    eps = nonnegative_array("errors", errors, ndim=1)
    norm = nonnegative_array("norms", norms, ndim=1)
    same_shape("norms", norm.shape, "the shape of errors", eps.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        terms: Floats = eps * np.append(norm[:0:-1].cumprod()[::-1], 1.0)
    if not np.isfinite(terms).all():
        raise InputError(f"norms up to {norm.max():g} over {len(norm)} layers overflow; divide them by a constant")
    return terms


def _tables(damage_low: ArrayLike, damage_high: ArrayLike) -> tuple[Floats, Floats]:
    low = finite_array("damage_low", damage_low, ndim=2)
    high = finite_array("damage_high", damage_high, ndim=2)
    same_shape("damage_high", high.shape, "the shape of damage_low", low.shape)
    return low, high - low


def _value(damage: Floats, objective: str) -> Floats:
    """Returns the objective of every column of damage[lang, set]."""
    if objective == "mean":
        mean: Floats = damage.mean(axis=0)
        return mean
    worst: Floats = damage.max(axis=0)
    return worst if objective == "worst" else worst - damage.min(axis=0)


def _all_values(low: Floats, gain: Floats, *, k: int, objective: str) -> Iterator[tuple[Ints, Floats]]:
    """Yields all sets of size k in lexicographic order, in chunks, with their values."""
    n_blocks = low.shape[1]
    n_sets = math.comb(n_blocks, k)
    if n_sets > MAX_SETS:
        raise InputError(
            f"{n_blocks} blocks have {n_sets} sets of size {k}; at most {MAX_SETS} are enumerated: "
            "use method='milp', or a smaller k"
        )
    combinations = itertools.combinations(range(n_blocks), k)
    total = low.sum(axis=1)[:, None]
    while part := list(itertools.islice(combinations, PROTECTION_SETS)):
        sets = np.array(part, dtype=np.int64)
        damage = np.repeat(total, len(sets), axis=1)
        for column in sets.T:
            damage += gain[:, column]
        yield sets, _value(damage, objective)


def _best_set(low: Floats, gain: Floats, *, k: int, objective: str) -> tuple[list[int], float]:
    best, best_value = [0], math.inf
    for sets, values in _all_values(low, gain, k=k, objective=objective):
        first = int(values.argmin())
        if values[first] < best_value:
            best, best_value = sets[first].tolist(), float(values[first])
    return best, best_value


def _greedy_set(low: Floats, gain: Floats, *, k: int, objective: str) -> list[int]:
    chosen: list[int] = []
    damage = low.sum(axis=1)[:, None]
    for _ in range(k):
        values = _value(damage + gain, objective)
        values[chosen] = np.inf
        chosen.append(int(values.argmin()))
        damage = damage + gain[:, chosen[-1:]]
    return sorted(chosen)


def _program_set(low: Floats, gain: Floats, *, k: int, objective: str) -> tuple[list[int], float, float]:
    """Returns the best set by HiGHS, its proved bound and the scale of the proof."""
    costs = np.stack([low, low + gain], axis=2)
    if objective == "mean":
        costs = costs.mean(axis=0, keepdims=True)
    n_blocks = costs.shape[1]
    span = float(np.abs(costs).max()) or 1.0
    start = _greedy_set(low, gain, k=k, objective=objective)
    damage = low.sum(axis=1) + gain[:, start].sum(axis=1)
    program = Program(
        costs,
        np.tile(np.array([0, 1], dtype=np.int64), (n_blocks, 1)),
        capacity=k,
        reference=max(abs(float(_value(damage[:, None], objective)[0])), 1e-6 * span),
        allowed=np.ones((n_blocks, 2), dtype=np.bool_),
        gap=objective == "gap",
        exact_size=True,
        known=np.isin(np.arange(n_blocks), start).astype(np.int64),
    )
    solution = solve(program)
    assert solution is not None  # the greedy set is known
    return np.flatnonzero(solution.options).tolist(), solution.bound, program.reference
