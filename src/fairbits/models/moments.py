"""Moments that merge, and the two readings of "effective kurtosis".

Mean, variance, skewness and kurtosis merge like the moments of a mixture, which is the pairwise formula of Chan and
Pébay: shards and threads give the result of one pass, up to rounding in float64.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from fairbits.core.array_checks import Floats, finite_array, near_one, nonnegative_array, representable, weights_vector
from fairbits.core.checks import in_range, instance, instances, same_shape
from fairbits.core.errors import InputError


@dataclass(frozen=True)
class Moments:
    """Count (or total weight), mean, variance, skewness and excess kurtosis; `a + b` merges two samples.

    >>> whole = Moments.of([1.0, 2.0, 4.0, 9.0])
    >>> parts = Moments.of([1.0, 2.0]) + Moments.of([4.0, 9.0])
    >>> round(whole.kappa, 6) == round(parts.kappa, 6)
    True
    """

    n: float
    mean: float
    variance: float
    skewness: float
    kappa: float

    def __post_init__(self) -> None:
        if not _infinite(self.n):  # a theoretical distribution has no count
            in_range("n", self.n, above=0.0)
        in_range("mean", self.mean)
        in_range("variance", self.variance, least=0.0)
        in_range("skewness", self.skewness)
        if not _infinite(self.kappa):  # a t law with few degrees of freedom has infinite κ
            in_range("kappa", self.kappa, least=-2.0 - 1e-9)

    @classmethod
    def of(cls, sample: ArrayLike, *, weights: ArrayLike | None = None) -> Self:
        """Returns the population moments of a (weighted) sample; shape moments of a constant are 0.

        >>> Moments.of([-1.0, 1.0], weights=[1.0, 3.0]).variance
        0.75
        """
        x = finite_array("sample", sample).ravel()
        if weights is None:
            h, total = None, float(x.size)
        else:
            raw = nonnegative_array("weights", weights).ravel()
            same_shape("weights", raw.shape, "sample", x.shape)
            h = weights_vector("weights", raw, size=x.size)
            with np.errstate(over="ignore"):
                total = representable("the sum of the weights", float(raw.sum()))
        # scaling by powers of two is exact, and keeps fourth powers from overflow and underflow
        x, unit = near_one(x)
        mean = _weighted_mean(x, h)
        d = x - mean
        mean, d = mean + (shift := _weighted_mean(d, h)), d - shift
        d, width = near_one(d)
        square = d * d
        powers = (_weighted_mean(square, h), _weighted_mean(square * d, h), _weighted_mean(square * square, h))
        return cls._from_central(total, mean * unit, *powers, unit=width * unit)

    @classmethod
    def _from_central(
        cls, n: float, mean: float, second: float, third: float, fourth: float, *, unit: float = 1.0
    ) -> Self:
        """Returns the moments, given the central ones of the data divided by `unit`."""
        if second <= 0:
            return cls(n, mean, 0.0, 0.0, 0.0)
        variance = representable("the variance", second * unit * unit)
        return cls(n, mean, variance, third / second / math.sqrt(second), fourth / second / second - 3)

    @property
    def sigma(self) -> float:
        """√variance."""
        return float(np.sqrt(self.variance))

    def __add__(self, other: "Moments") -> "Moments":
        instance("what is added", other, Moments)
        total = self.n + other.n
        if not np.isfinite(total):
            raise InputError("moments of a theoretical distribution have no count; merge samples, mix distributions")
        return mixture_moments([self, other], [self.n / total, other.n / total], n=total)


def _infinite(value: float) -> bool:
    return isinstance(value, float) and value == math.inf


def _weighted_mean(x: Floats, h: Floats | None) -> float:
    return float(np.mean(x)) if h is None else float(np.dot(x, h))


def mixture_moments(parts: Sequence[Moments], weights: ArrayLike, *, n: float = np.inf) -> Moments:
    """Returns the exact moments of Σ ā_l P_l.

    With d_l = μ_l − μ and V = Σ ā(σ_l² + d_l²):
    κ = Σ ā[(κ_l+3)σ_l⁴ + 4d_lγ_lσ_l³ + 6d_l²σ_l² + d_l⁴]/V² − 3.

    >>> one, three = Moments(1, 0, 1.0, 0, 0), Moments(1, 0, 9.0, 0, 0)
    >>> round(mixture_moments([one, three], [0.5, 0.5]).kappa, 2)
    1.92
    """
    parts = instances("parts", parts, Moments)
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
    return Moments._from_central(n, mean, float(second), float(third), float(fourth), unit=unit)


def kappa_weighted(activation: ArrayLike, kappa: ArrayLike) -> float:
    """Returns the research notes' κ_eff(λ) = Σ_l ā_l(λ)·κ_l (000-12); `activation` is normalised to ā.

    It is the kurtosis of the mixture only when all σ_l and all means are equal: see `kappa_mixture`.

    >>> round(kappa_weighted([0.2, 0.8], [150.0, 8.0]), 1)
    36.4
    """
    values = finite_array("kappa", kappa, ndim=1)
    return float(weights_vector("activation", activation, size=values.size) @ values)


def kappa_mixture(activation: ArrayLike, parts: Sequence[Moments]) -> float:
    """Returns the true excess kurtosis of the mixture Σ ā_l P_l.

    >>> parts = [Moments(1, 0, 4.0, 0, 150.0), Moments(1, 0, 1.0, 0, 8.0)]
    >>> round(kappa_mixture([0.2, 0.8], parts), 1)
    191.7
    """
    return mixture_moments(parts, activation).kappa
