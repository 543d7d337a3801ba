"""Mean, variance, skewness and kurtosis, and how those of parts combine to those of their mixture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fairbits.core.array_checks import near_one, representable, weights_vector


@dataclass(frozen=True)
class Moments:
    """Count (infinite for a theoretical distribution), mean, variance, skewness and excess kurtosis."""

    n: float
    mean: float
    variance: float
    skewness: float
    kappa: float

    @property
    def sigma(self) -> float:
        return float(np.sqrt(self.variance))


def central_moments(n: float, mean: float, second: float, third: float, fourth: float, *, unit: float = 1.0) -> Moments:
    """Returns the moments, given the central ones of the data divided by `unit`; the shape of a constant is 0."""
    if second <= 0:
        return Moments(n, mean, 0.0, 0.0, 0.0)
    variance = representable("the variance", second * unit * unit)
    return Moments(n, mean, variance, third / second / math.sqrt(second), fourth / second / second - 3)


def mixture_moments(parts: Sequence[Moments], weights: ArrayLike, *, n: float = np.inf) -> Moments:
    """Returns the exact moments of Σ ā_l P_l, the pairwise formula of Chan and Pébay.

    With d_l = μ_l − μ and V = Σ ā(σ_l² + d_l²):
    κ = Σ ā[(κ_l+3)σ_l⁴ + 4d_lγ_lσ_l³ + 6d_l²σ_l² + d_l⁴]/V² − 3.
    """
    share = weights_vector("weights", weights, size=len(parts))
    parts = [part for part, weight in zip(parts, share, strict=True) if weight > 0]  # 0·∞ is not 0
    share = share[share > 0]
    mu, variance, skewness, kappa = (
        np.array([getattr(part, name) for part in parts]) for name in ("mean", "variance", "skewness", "kappa")
    )
    with np.errstate(over="ignore"):  # relative to the first mean, so that equal means stay exact
        from_first = representable("the distance of the means", mu - mu[0])
    shift = float(share @ from_first)
    mean, d = float(mu[0]) + shift, from_first - shift
    sizes, unit = near_one(np.concatenate([np.sqrt(variance), d]))
    sigma, d = np.split(sizes, 2)
    variance = sigma**2
    second = share @ (variance + d**2)
    third = share @ (skewness * sigma**3 + 3 * d * variance + d**3)
    fourth = share @ ((kappa + 3) * variance**2 + 4 * d * skewness * sigma**3 + 6 * d**2 * variance + d**4)
    return central_moments(n, mean, float(second), float(third), float(fourth), unit=unit)


def kappa_mixture(activation: ArrayLike, parts: Sequence[Moments]) -> float:
    """Returns the excess kurtosis of the mixture Σ ā_l P_l."""
    return mixture_moments(parts, activation).kappa
