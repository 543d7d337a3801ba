"""Estimates of the chain T → A → R → D: how much of the effect of T on damage D passes through A and R.

T is the quality of tokenization, A alignment (or another mediator), R redundancy, and D = γ/R + noise. The estimates
are causal only if T–A, A–R and R–D have no unmeasured common cause given the covariates; robustness value and E-value
say how strong such a cause would have to be.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import statsmodels.api as sm
from numpy.typing import ArrayLike, NDArray

from fairbits.core.array_checks import Floats, finite_array, labels
from fairbits.core.checks import same_shape
from fairbits.core.errors import InputError
from fairbits.stats.intervals import Estimate
from fairbits_research.stats.correlation_tests import Rng, e_value, robustness_value

CONFIDENCE = 0.95
LEAST_FAMILIES = 5
CHUNK = 1_000_000  # weights held in memory at once
MOST_DROPPED = 0.05  # share of undefined resamples beyond which no interval is given


@dataclass(frozen=True)
class Link:
    """One regression coefficient of the chain: estimate, two-sided p and its robustness value."""

    estimate: Estimate
    p: float
    robustness: float


@dataclass(frozen=True)
class Mediation:
    """The effects on D of a change of T, the links of the chain, and how fragile the indirect effect is.

    `indirect` passes through A and R on any path, `chain` through T → A → R → D only. `dropped` of the
    `resamples` had no unique fit or a counterfactual R ≤ 0 and are not part of the intervals.
    """

    total: Estimate
    direct: Estimate
    indirect: Estimate
    chain: Estimate
    links: dict[str, Link]
    e_value: float
    e_value_limit: float
    clusters: int
    resamples: int
    dropped: int


@dataclass(frozen=True, eq=False)
class _Chain:
    """The data and the change of T; columns of C are centred and scaled."""

    T: Floats
    A: Floats
    R: Floats
    D: Floats
    C: Floats
    change: Floats


def mediate(
    T: ArrayLike,
    A: ArrayLike,
    *,
    R: ArrayLike,
    D: ArrayLike,
    covariates: ArrayLike | None = None,
    families: ArrayLike | None = None,
    change: float = 1.0,
    resamples: int = 10_000,
    rng: Rng = 0,
) -> Mediation:
    """Returns total, direct and indirect effects on D of T → T + change.

    A = a₀ + a₁T + C + ε, R = r₀ + r₁A + r₂T + C + ε, D = d₀ + γ/R + d₁A + d₂T + C + ε, each by least squares;
    indirect = mean_i [γ/(Rᵢ + (r₁a₁ + r₂)Δ) − γ/Rᵢ + d₁a₁Δ], chain = mean_i [γ/(Rᵢ + r₁a₁Δ) − γ/Rᵢ],
    direct = d₂Δ, total = Δ × slope of T in D ~ T + C, fitted separately. Intervals by the percentiles of a bootstrap
    over units, or over whole `families` when given.
    """
    data = _checked(T, A, R, D, covariates, change)
    codes, clusters = _clusters(families, len(data.T))
    point, fine = _effects(data, np.ones((1, len(data.T))))
    if not fine[0]:
        raise InputError(
            "the chain cannot be fitted, or the change of T takes R to 0 or below for some unit; "
            "T, A, 1/R and the covariates must not be collinear, and the change must be small enough"
        )
    draws = _draws(data, codes, clusters, resamples, np.random.default_rng(rng))
    low, high = np.quantile(draws, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2], axis=0)
    total, direct, indirect, chain = (
        Estimate(float(v), float(a), float(b), len(data.T)) for v, a, b in zip(point[0], low, high, strict=True)
    )
    return Mediation(
        total,
        direct,
        indirect,
        chain,
        _links(data),
        e_value(indirect.value, float(np.std(data.D, ddof=1))),
        e_value(_nearest_to_zero(indirect), float(np.std(data.D, ddof=1))),
        clusters,
        resamples,
        resamples - len(draws),
    )


def _checked(
    T: ArrayLike, A: ArrayLike, R: ArrayLike, D: ArrayLike, covariates: ArrayLike | None, change: float
) -> _Chain:
    t, a, r, d = (finite_array(name, value, ndim=1) for name, value in zip("TARD", (T, A, R, D), strict=True))
    for name, array in (("A", a), ("R", r), ("D", d)):
        same_shape(name, array.shape, "the shape of T", t.shape)
    for name, array in (("T", t), ("A", a), ("R", r), ("D", d)):
        if np.ptp(array) == 0:
            raise InputError(f"{name} is constant ({array[0]:g}); it must vary to be part of a chain")
    if (r <= 0).any():
        raise InputError(f"R holds {r.min():g} at {int(np.argmin(r))}; redundancy must be above 0, since D = γ/R")
    n = len(t)
    C = np.empty((n, 0)) if covariates is None else finite_array("covariates", covariates)
    C = C[:, None] if C.ndim == 1 else C
    if n < 8 + C.shape[1]:
        raise InputError(f"{n} units with {C.shape[1]} covariates; at least 8 plus the covariates must be given")
    if C.size and np.any(np.ptp(C, axis=0) == 0):
        raise InputError("a covariate is constant; drop it (the intercept is always included)")
    C = (C - C.mean(axis=0)) / C.std(axis=0) if C.size else C
    return _Chain(t, a, r, d, C, np.full(n, float(change)))


def _clusters(families: ArrayLike | None, n: int) -> tuple[NDArray[np.intp], int]:
    """Returns the cluster of every unit and the number of clusters; without families every unit is its own cluster."""
    if families is None:
        return np.arange(n), n
    codes = labels("families", families, n)
    size = int(codes.max()) + 1
    if size < LEAST_FAMILIES:
        raise InputError(f"{size} families given; at least {LEAST_FAMILIES} must be given to resample them")
    return codes, size


def _draws(data: _Chain, codes: NDArray[np.intp], clusters: int, resamples: int, rng: np.random.Generator) -> Floats:
    """Returns the effects of every resample of the clusters in which they are defined; raises if these are too few."""
    even = np.full(clusters, 1 / clusters)
    rows = max(1, CHUNK // len(codes))
    parts = []
    for start in range(0, resamples, rows):
        counts = rng.multinomial(clusters, even, size=min(rows, resamples - start))
        effects, fine = _effects(data, counts[:, codes].astype(np.float64))
        parts.append(effects[fine])
    draws = np.concatenate(parts)
    dropped = resamples - len(draws)
    if dropped > MOST_DROPPED * resamples:
        raise InputError(
            f"{dropped} of {resamples} resamples have no unique fit or a counterfactual R ≤ 0; at most "
            f"{MOST_DROPPED:.0%} may: give more units, fewer covariates or a smaller change of T"
        )
    return draws


def _designs(data: _Chain) -> list[tuple[Floats, Floats]]:
    """Returns the (design, outcome) of A, R, D and of the total effect; the coefficient of T is always column 1."""
    one = np.ones(len(data.T))
    T, A = data.T - data.T.mean(), data.A - data.A.mean()
    inverse = 1 / data.R - (1 / data.R).mean()
    return [
        (np.column_stack([one, T, data.C]), data.A),
        (np.column_stack([one, T, A, data.C]), data.R),
        (np.column_stack([one, T, A, inverse, data.C]), data.D),
        (np.column_stack([one, T, data.C]), data.D),
    ]


def _effects(data: _Chain, weights: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Returns (total, direct, indirect, chain) for every row of unit weights, and which rows are defined."""
    (fit_a, fine_a), (fit_r, fine_r), (fit_d, fine_d), (fit_t, fine_t) = (
        _weighted_fits(X, y, weights) for X, y in _designs(data)
    )
    a1, r2, r1 = fit_a[:, 1], fit_r[:, 1], fit_r[:, 2]
    d2, d1, gamma = fit_d[:, 1], fit_d[:, 2], fit_d[:, 3]
    share = weights / weights.sum(axis=1, keepdims=True)
    slope = r1 * a1
    start = np.broadcast_to(data.R, weights.shape)
    after = start + (slope + r2)[:, None] * data.change
    through = start + slope[:, None] * data.change
    used = weights > 0
    positive = (np.minimum(np.minimum(start, after), through) > 0) | ~used
    fine = fine_a & fine_r & fine_d & fine_t & positive.all(axis=1)
    safe = positive & used & fine[:, None]
    inverse = [np.where(safe, 1 / np.where(safe, R, 1.0), 0.0) for R in (start, after, through)]
    delta = share @ data.change
    indirect = gamma * (share * (inverse[1] - inverse[0])).sum(axis=1) + d1 * a1 * delta
    chain = gamma * (share * (inverse[2] - inverse[0])).sum(axis=1)
    return np.column_stack([fit_t[:, 1] * delta, d2 * delta, indirect, chain]), fine


def _weighted_fits(X: Floats, y: Floats, weights: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Returns the least-squares fit for every row of weights, and which rows are not singular.

    Normal equations of scaled columns: all resamples at once are two matrix products and one batched solve.
    """
    n, p = X.shape
    scale = np.sqrt((X**2).mean(axis=0))
    Z = X / scale
    gram = (weights @ (Z[:, :, None] * Z[:, None, :]).reshape(n, p * p)).reshape(-1, p, p)
    fine = np.linalg.eigvalsh(gram)[:, 0] > 1e-9 * n
    gram[~fine] = np.eye(p)
    moment = weights @ (Z * y[:, None])
    return np.linalg.solve(gram, moment[:, :, None])[:, :, 0] / scale, fine


def _links(data: _Chain) -> dict[str, Link]:
    """Returns the coefficients T→A, A→R and 1/R→D of the point fits, with t intervals of ordinary least squares."""
    places = {"T->A": (0, 1), "A->R": (1, 2), "1/R->D": (2, 3)}
    designs, links = _designs(data), {}
    for name, (equation, column) in places.items():
        X, y = designs[equation]
        fit: Any = sm.OLS(y, X).fit()
        low, high = fit.conf_int(alpha=1 - CONFIDENCE)[column]
        estimate = Estimate(float(fit.params[column]), float(low), float(high), len(y))
        robustness = robustness_value(float(fit.tvalues[column]), int(fit.df_resid))
        links[name] = Link(estimate, float(fit.pvalues[column]), robustness)
    return links


def _nearest_to_zero(estimate: Estimate) -> float:
    return 0.0 if not estimate.excludes(0.0) else min(estimate.low, estimate.high, key=abs)
