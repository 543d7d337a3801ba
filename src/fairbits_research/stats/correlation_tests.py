"""Tests of a correlation by permutation and given covariates, their power, and sensitivity to unmeasured causes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, permutations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import integrate, special, stats

from fairbits.core.array_checks import Floats, finite_array, near_one
from fairbits.core.errors import InputError
from fairbits.stats.correlation import check_pairs, fisher_interval
from fairbits.stats.intervals import Estimate

Integers = NDArray[np.intp]
Rng = np.random.Generator | int  # a generator, or its seed
CHUNK = 2_000_000  # elements held in memory at once
TIE = 1e-10  # correlations closer than this count as equal, so that rounding never decides


@dataclass(frozen=True)
class PermutationTest:
    """A correlation, its two-sided permutation p, the number of permutations, and whether these are all."""

    r: float
    p: float
    permutations: int
    exact: bool


@dataclass(frozen=True)
class PartialCorrelation:
    """A partial correlation with interval, parametric p on df degrees of freedom, and its permutation p."""

    estimate: Estimate
    p: float
    df: int
    permutation_p: float
    exact: bool


def permutation_test(x: ArrayLike, y: ArrayLike, *, resamples: int = 99_999, rng: Rng = 0) -> PermutationTest:
    """Returns the two-sided permutation p of the correlation of x and y.

    p = #{π : |r(x, y∘π)| ≥ |r|} / #π over all permutations when there are at most `resamples` of them,
    otherwise (1 + hits)/(1 + resamples) over random ones; the p value is valid at every n.
    """
    a, b = check_pairs(x, y)
    u, v = a - a.mean(), b - b.mean()
    norm = float(np.linalg.norm(u) * np.linalg.norm(v))
    r = float(u @ v) / norm
    hits, count, exact = 0, 0, math.factorial(len(a)) <= resamples
    for order in _orders(len(a), resamples, np.random.default_rng(rng)):
        hits += int(np.count_nonzero(np.abs(v[order] @ u) / norm >= abs(r) - TIE))
        count += len(order)
    p = hits / count if exact else (1 + hits) / (1 + count)
    return PermutationTest(float(np.clip(r, -1, 1)), p, count, exact)


def partial_correlation(
    x: ArrayLike, y: ArrayLike, *, covariates: ArrayLike, resamples: int = 99_999, rng: Rng = 0
) -> PartialCorrelation:
    """Returns the correlation of x and y given k covariates, with parametric and Freedman–Lane p.

    r = corr(M x, M y), M = I − Z(ZᵀZ)⁻¹Zᵀ, Z = [1, covariates];  t = r√df/√(1−r²), df = n−2−k;
    95 % interval tanh(artanh r ± z/√(n−k−3)). Freedman and Lane: y* = (I−M)y + π(M y), r* = corr(M x, M y*).
    Assumes that y depends linearly on the covariates and that the residuals are exchangeable.
    """
    a, b = check_pairs(x, y, least=5)
    basis, k = _basis(covariates, len(a))
    u, v = _residual("x", a, basis), _residual("y", b, basis)
    r = float(np.clip(u @ v / (np.linalg.norm(u) * np.linalg.norm(v)), -1, 1))
    df = len(a) - 2 - k
    t = np.inf if abs(r) == 1.0 else abs(r) * np.sqrt(df / (1 - r * r))
    hits, count, exact = 0, 0, math.factorial(len(a)) <= resamples
    for order in _orders(len(a), resamples, np.random.default_rng(rng)):
        # Freedman and Lane permute the residuals of y, add the fit back and take residuals again. The fit drops out of
        # M y*, so r* needs only the permuted residuals and how much of them the covariates explain.
        shuffled = v[order]
        explained = ((shuffled @ basis) ** 2).sum(axis=1)
        norms = np.linalg.norm(u) * np.sqrt(np.maximum(v @ v - explained, 0.0))
        hits += int(np.count_nonzero(np.abs(shuffled @ u) >= (abs(r) - TIE) * norms))
        count += len(order)
    permutation_p = hits / count if exact else (1 + hits) / (1 + count)
    low, high = fisher_interval(r, 1 / np.sqrt(len(a) - k - 3), 0.95)
    estimate = Estimate(r, low, high, len(a))
    return PartialCorrelation(estimate, float(2 * stats.t.sf(t, df)), df, permutation_p, exact)


def _orders(n: int, resamples: int, rng: np.random.Generator) -> Iterator[Integers]:
    """Yields chunks of index rows (permutation, unit): all permutations if they are few, else random ones."""
    rows = max(1, CHUNK // n)
    if math.factorial(n) <= resamples:
        everything = permutations(range(n))
        while chunk := list(islice(everything, rows)):
            yield np.array(chunk, dtype=np.intp)
        return
    for start in range(0, resamples, rows):
        yield np.argsort(rng.random((min(rows, resamples - start), n)), axis=1)


def _basis(covariates: ArrayLike, n: int) -> tuple[Floats, int]:
    """Returns an orthonormal basis of [1, covariates] and the number of covariates."""
    Z = finite_array("covariates", covariates)
    Z = Z[:, None] if Z.ndim == 1 else Z
    k = Z.shape[1]
    if n - k < 4:
        raise InputError(f"{k} covariate(s) for {n} units; n − k must be at least 4: use fewer covariates")
    if np.any(np.ptp(Z, axis=0) == 0):
        raise InputError("a covariate is constant; drop it (the intercept is always included)")
    Z = np.column_stack([near_one(column)[0] for column in Z.T])
    scaled = (Z - Z.mean(axis=0)) / Z.std(axis=0)
    if np.linalg.matrix_rank(scaled, tol=1e-8 * np.sqrt(n)) < k:
        raise InputError(f"the {k} covariates are collinear; drop those that are combinations of others")
    return np.linalg.qr(np.column_stack([np.ones(n), scaled]))[0], k


def _residual(name: str, array: Floats, basis: Floats) -> Floats:
    residual = array - basis @ (basis.T @ array)
    if np.linalg.norm(residual) <= 1e-10 * np.linalg.norm(array - array.mean()):
        raise InputError(f"{name} is a combination of the covariates; nothing is left to correlate")
    return residual


def correlation_power(rho: float, n: int, *, alpha: float = 0.05) -> float:
    """Returns the probability that the two-sided t test of ρ = 0 at level α rejects, given ρ and n.

    1 − ∫_{−c}^{c} f(r; ρ, n) dr,  c = t/√(n−2+t²),  t = t_{1−α/2, n−2},
    f the exact density of r for bivariate normal data (Hotelling 1953).
    """
    t = stats.t.isf(alpha / 2, n - 2)
    critical = float(np.arcsinh(t / np.sqrt(n - 2)))  # artanh of the critical r
    centre, reach = float(np.arctanh(rho)), 15.0 / float(np.sqrt(n - 3))
    low, high = max(-critical, centre - reach), min(critical, centre + reach)
    if low >= high:
        return 1.0
    accepted, _ = integrate.quad(_density, low, high, args=(rho, n), epsabs=1e-11, limit=200)
    return float(np.clip(1.0 - accepted, 0.0, 1.0))


def sample_size_for_power(rho: float, power: float) -> int:
    """Returns the least n at which the two-sided test of ρ = 0 at level 5 % has at least the given power.

    By Fisher's planning formula, Φ(ζ√(n−3) − z) + Φ(−ζ√(n−3) − z) with ζ = artanh ρ: the textbook number, which is
    conservative. The exact number is the same or one to two smaller.
    """
    low, high = 3, 4
    while _fisher_power(rho, high) < power:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _fisher_power(rho, middle) >= power else (middle, high)
    return high


def _fisher_power(rho: float, n: int) -> float:
    shift = np.arctanh(rho) * np.sqrt(n - 3)
    critical = stats.norm.isf(0.05 / 2)
    return float(stats.norm.cdf(shift - critical) + stats.norm.cdf(-shift - critical))


def _density(z: float, rho: float, n: int) -> float:
    """Exact density of z = artanh r; the Jacobian 1 − r² is folded into the exponent of (1 − r²)."""
    r = np.tanh(z)
    log_one_minus_r2 = -2.0 * np.log(np.cosh(z))
    log_density = (
        np.log(n - 2.0)
        + special.gammaln(n - 1.0)
        - special.gammaln(n - 0.5)
        - 0.5 * np.log(2 * np.pi)
        + 0.5 * (n - 1.0) * np.log1p(-rho * rho)
        + 0.5 * (n - 2.0) * log_one_minus_r2
        - (n - 1.5) * np.log1p(-rho * r)
    )
    return float(np.exp(log_density) * special.hyp2f1(0.5, 0.5, n - 0.5, 0.5 * (rho * r + 1.0)))


def e_value(effect: float, sd: float) -> float:
    """Returns the E-value of an effect on a continuous outcome with standard deviation `sd`.

    RR ≈ exp(0.91·|effect|/sd), E = RR + √(RR(RR−1)) (VanderWeele and Ding 2017): the risk ratio with which an
    unmeasured cause would have to be tied to both sides to explain the effect away; 1 means none is needed.
    """
    ratio = float(np.exp(0.91 * abs(effect) / sd))
    return float(ratio + np.sqrt(ratio * (ratio - 1)))


def robustness_value(t: float, df: int) -> float:
    """Returns the share of residual variance an unmeasured cause must explain, on both sides, to void a link.

    RV = ½(√(f⁴ + 4f²) − f²) = 2/(1 + √(1 + 4/f²)), f = |t|/√df (Cinelli and Hazlett 2020); 0 fragile, towards 1 robust.
    """
    f = abs(t) / math.sqrt(df)
    return 2 / (1 + math.hypot(1, 2 / f)) if f > 0 else 0.0
