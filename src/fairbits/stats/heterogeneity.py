"""Random-effects spread of damage between languages: how much they truly differ, noise removed."""

import numpy as np
from scipy import optimize, stats

from fairbits.checks import Floats, in_range, instance
from fairbits.errors import InputError
from fairbits.stats.estimate import Estimate
from fairbits.stats.resample import Replicates


def random_effects_sd(replicates: Replicates, *, confidence: float = 0.95) -> Estimate:
    """Returns τ, the standard deviation of true damage between languages, with its Q-profile interval.

    v ~ N(μ1, τ²I + Σ): with orthonormal contrasts z of v (free of μ) that diagonalise Σ into s_k,
    Q(τ²) = Σ z_k²/(τ² + s_k) ~ χ²_{L−1}. Point: Q(τ̂²) = L−1 (Paule–Mandel), 0 if Q(0) is smaller;
    interval: the τ² whose Q lies between χ² quantiles (Viechtbauer 2007). Assumes normal effects, known Σ.
    """
    in_range("confidence", confidence, above=0, below=1)
    z, s = _contrasts(replicates)
    df = len(z)
    upper, lower = (float(stats.chi2.ppf(tail, df)) for tail in (0.5 + confidence / 2, 0.5 - confidence / 2))
    tau, low, high = (np.sqrt(_solve(z, s, level)) for level in (df, upper, lower))
    return Estimate(tau, low, high, df + 1, confidence)


def between_variance(replicates: Replicates) -> float:
    """Returns τ̂², the Paule–Mandel variance of true damage between languages."""
    z, s = _contrasts(replicates)
    return _solve(z, s, len(z))


def _contrasts(replicates: Replicates) -> tuple[Floats, Floats]:
    size = len(instance("replicates", replicates, Replicates).value)
    if size < 2:
        raise InputError(f"{size} language(s) given; at least 2 must be given to compare languages")
    centring = np.eye(size) - 1 / size
    basis = np.linalg.svd(centring)[0][:, : size - 1]
    s, vectors = np.linalg.eigh(basis.T @ replicates.covariance @ basis)
    z: Floats = vectors.T @ basis.T @ replicates.value
    return z, np.maximum(s, 0.0)


def _solve(z: Floats, s: Floats, level: float) -> float:
    """The τ² ≥ 0 at which Q(τ²) falls to `level`; 0 where Q starts below it."""
    squares = z**2
    highest = float(squares.sum()) / level  # Q(τ²) ≤ Σz²/τ², so the root lies below
    if highest == 0:
        return 0.0
    floor = highest * 1e-12

    def excess(tau2: float) -> float:
        return float((squares / (tau2 + s)).sum()) - level

    if excess(floor) <= 0:
        return 0.0
    return float(optimize.brentq(excess, floor, highest * (1 + 1e-9), xtol=floor))
