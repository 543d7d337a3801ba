"""Distributions of weights with closed-form tail moments, and mixtures of them.

The families are symmetric about their mean, and given by σ, mean and at most two shape numbers.
`upper(x)` and `lower(x)` are the moments of order 0, 1, 2 beyond x on either side. The exact error of the true
quantizer is a finite sum of them (`noise`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import scipy  # its modules are loaded when they are used
from numpy.typing import ArrayLike

from fairbits.core.array_checks import Floats, finite_array, nonnegative_array, weights_vector
from fairbits.core.checks import in_range
from fairbits.core.errors import InputError
from fairbits.models.weight_moments import Moments, mixture_moments

Tails = tuple[Floats, Floats, Floats]


class Distribution(ABC):
    """A distribution of weights with finite variance; `kappa` is excess kurtosis."""

    @property
    @abstractmethod
    def moments(self) -> Moments:
        """Mean, variance, skewness and excess kurtosis, exact."""

    @abstractmethod
    def upper(self, x: Floats) -> Tails:
        """Returns ∫_x^∞ tᵏ dP(t) for k = 0, 1, 2."""

    @abstractmethod
    def lower(self, x: Floats) -> Tails:
        """Returns ∫_{−∞}^{−x} |t|ᵏ dP(t) for k = 0, 1, 2 and x ≥ 0: the upper tails of −X."""

    def beyond(self, x: ArrayLike) -> Tails:
        """Returns E[|X|ᵏ; |X| > x] for k = 0, 1, 2 and x ≥ 0."""
        points = nonnegative_array("x", x)
        up, down = self.upper(points), self.lower(points)
        return up[0] + down[0], up[1] + down[1], up[2] + down[2]

    @cached_property
    def second_moment(self) -> float:
        """E[X²]."""
        return self.moments.variance + self.moments.mean**2

    @cached_property
    def absolute_moment(self) -> float:
        """E|X|."""
        return float(self.beyond([0.0])[1][0])


class Mixture(Distribution):
    """P_λ = Σ_l ā_l P_l: the effective distribution of a language (003-08)."""

    def __init__(self, parts: Sequence[Distribution], weights: ArrayLike) -> None:
        self.parts = tuple(parts)
        self.weights = weights_vector("weights", weights, size=len(self.parts))

    @property
    def moments(self) -> Moments:
        """The exact moments of the mixture, unequal means and variances included."""
        return mixture_moments([part.moments for part in self.parts], self.weights)

    def upper(self, x: Floats) -> Tails:
        """Returns Σ ā_l of the parts' upper tails."""
        return self._sum([part.upper(x) for part in self.parts])

    def lower(self, x: Floats) -> Tails:
        """Returns Σ ā_l of the parts' lower tails."""
        return self._sum([part.lower(x) for part in self.parts])

    def _sum(self, tails: Sequence[Tails]) -> Tails:
        stacked = np.tensordot(self.weights, np.array(tails), axes=1)
        return stacked[0], stacked[1], stacked[2]


_SIZE = 1e100
"""Means and standard deviations lie below this and above its inverse, so that fourth powers fit float64."""


@dataclass(frozen=True)
class Symmetric(Distribution):
    """A distribution symmetric about its mean; families give the tails of their unit-variance form."""

    sigma: float = 1.0
    mean: float = 0.0

    def __post_init__(self) -> None:
        in_range("sigma", self.sigma, least=1 / _SIZE, most=_SIZE)
        in_range("mean", self.mean, least=-_SIZE, most=_SIZE)

    @property
    @abstractmethod
    def kappa(self) -> float:
        """Excess kurtosis."""

    @abstractmethod
    def _unit_tails(self, z: Floats) -> Tails:
        """The upper tails of the distribution with mean 0 and variance 1, for z ≥ 0."""

    @property
    def moments(self) -> Moments:
        """Mean, variance, skewness 0 and κ."""
        return Moments(n=np.inf, mean=self.mean, variance=self.sigma**2, skewness=0.0, kappa=self.kappa)

    def upper(self, x: Floats) -> Tails:
        """Returns the upper tail moments at x."""
        return self._shifted(x, self.mean)

    def lower(self, x: Floats) -> Tails:
        """Returns the upper tail moments of −X at x."""
        return self._shifted(x, -self.mean)

    def _shifted(self, x: Floats, mean: float) -> Tails:
        with np.errstate(over="ignore"):
            z = (finite_array("x", x) - mean) / self.sigma
        p, first, second = self._unit_tails(np.minimum(np.abs(z), _SIZE))
        p, second = np.where(z < 0, 1 - p, p), np.where(z < 0, 1 - second, second)
        first = self.sigma * first
        return p, mean * p + first, mean**2 * p + 2 * mean * first + self.sigma**2 * second


@dataclass(frozen=True)
class Gaussian(Symmetric):
    """N(mean, σ²)."""

    @property
    def kappa(self) -> float:
        """0."""
        return 0.0

    def _unit_tails(self, z: Floats) -> Tails:
        density = np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
        p = scipy.special.ndtr(-z)
        return p, density, p + z * density


@dataclass(frozen=True)
class Uniform(Symmetric):
    """Uniform with standard deviation σ, so on mean ± √3·σ."""

    @property
    def kappa(self) -> float:
        """−1.2."""
        return -1.2

    def _unit_tails(self, z: Floats) -> Tails:
        end = np.sqrt(3.0)
        z = np.minimum(z, end)
        return (end - z) / (2 * end), (3 - z**2) / (4 * end), (3 * end - z**3) / (6 * end)


@dataclass(frozen=True)
class Laplace(Symmetric):
    """Laplace with standard deviation σ; its own scale is `laplace_b` = σ/√2."""

    @property
    def kappa(self) -> float:
        """3."""
        return 3.0

    @property
    def laplace_b(self) -> float:
        """b of the density e^(−|x|/b) / 2b."""
        return float(self.sigma / np.sqrt(2))

    def _unit_tails(self, z: Floats) -> Tails:
        b = np.sqrt(0.5)
        p = np.exp(-z / b) / 2
        return p, p * (z + b), p * (z**2 + 2 * z * b + 2 * b**2)


@dataclass(frozen=True)
class StudentT(Symmetric):
    """Student's t with `dof` ≥ 2.05 degrees of freedom, scaled to standard deviation σ; at 2 σ is infinite."""

    dof: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("dof", self.dof, least=2.05, most=1e12)

    @classmethod
    def with_kappa(cls, kappa: float, *, sigma: float = 1.0) -> Self:
        """Returns the t distribution of excess kurtosis κ > 0: dof = 4 + 6/κ."""
        return cls(sigma=sigma, dof=4 + 6 / in_range("kappa of a t distribution", kappa, above=0.0))

    @property
    def kappa(self) -> float:
        """6/(dof − 4), infinite for dof ≤ 4."""
        return 6 / (self.dof - 4) if self.dof > 4 else np.inf

    def _unit_tails(self, z: Floats) -> Tails:
        dof = self.dof
        scale = np.sqrt((dof - 2) / dof)
        t = z / scale
        density = scipy.stats.t.pdf(t, dof)
        p = scipy.special.stdtr(dof, -t)
        first = density * (dof + t**2) / (dof - 1)
        second = (t * density * (dof + t**2) + dof * p) / (dof - 2)
        return p, scale * first, scale**2 * second


@dataclass(frozen=True)
class GeneralisedGaussian(Symmetric):
    """Density ∝ exp(−|x/c|^shape): 1 is Laplace, 2 Gaussian, ∞ uniform."""

    shape: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("shape", self.shape, above=0.05)

    @classmethod
    def with_kappa(cls, kappa: float, *, sigma: float = 1.0) -> Self:
        """Returns the distribution of excess kurtosis κ, −1.2 + 1e-9 ≤ κ < 1e9: Γ(5/p)Γ(1/p)/Γ(3/p)² = κ + 3."""
        in_range("kappa of a generalised Gaussian", kappa, least=-1.2 + 1e-9, below=1e9)
        root = scipy.optimize.brentq(
            lambda v: _ggd_log_raw_kurtosis(np.exp(v)) - np.log(kappa + 3),
            np.log(0.05),
            np.log(1e6),
            xtol=1e-14,
        )
        return cls(sigma=sigma, shape=float(np.exp(root)))

    @property
    def kappa(self) -> float:
        """Γ(5/p)Γ(1/p)/Γ(3/p)² − 3 for shape p."""
        return float(np.exp(_ggd_log_raw_kurtosis(self.shape)) - 3)

    def _unit_tails(self, z: Floats) -> Tails:
        p = self.shape
        scale = np.exp((scipy.special.gammaln(1 / p) - scipy.special.gammaln(3 / p)) / 2)
        ratio = np.exp(scipy.special.gammaln(2 / p) - scipy.special.gammaln(1 / p))
        mass, first, second = (_ggd_share_beyond(z / scale, p, k) / 2 for k in (1, 2, 3))
        return mass, scale * ratio * first, second


def _ggd_share_beyond(y: Floats, p: float, k: int) -> Floats:
    """Returns Γ(k/p, yᵖ)/Γ(k/p)."""
    with np.errstate(over="ignore"):
        u = y**p
    # where yᵖ is tiny, 1 − yᵏ/Γ(1 + k/p): for large p, yᵖ underflows long before y does
    near = 1 - np.minimum(y, 1.0) ** k / scipy.special.gamma(1 + k / p)
    return np.where(u < 1e-30, near, scipy.special.gammaincc(k / p, u))


def _ggd_log_raw_kurtosis(p: float) -> float:
    return float(scipy.special.gammaln(5 / p) + scipy.special.gammaln(1 / p) - 2 * scipy.special.gammaln(3 / p))


@dataclass(frozen=True)
class GaussianScaleMixture(Symmetric):
    """A share 1 − ε of narrow and ε of wide Gaussians with one mean; `spread` = wide σ / narrow σ ≥ 1."""

    epsilon: float = 0.01
    spread: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("epsilon", self.epsilon, above=0.0, below=1.0)
        in_range("spread", self.spread, least=1.0, most=1e60)

    @classmethod
    def with_kappa(cls, kappa: float, *, epsilon: float, sigma: float = 1.0) -> Self:
        """Returns the mixture of excess kurtosis κ; possible for 0 ≤ κ < 3(1−ε)/ε."""
        in_range("epsilon", epsilon, above=0.0, below=1.0)
        in_range(
            f"kappa of a scale mixture with epsilon {epsilon:g}",
            kappa,
            least=0.0,
            below=3 * (1 - epsilon) / epsilon,
        )
        between = np.sqrt(kappa / (3 * epsilon * (1 - epsilon)))
        narrow = 1 - epsilon * between
        if narrow <= 0:
            raise InputError(f"kappa is {kappa:g} with epsilon {epsilon:g}; it must be further below 3(1−ε)/ε")
        return cls(sigma=sigma, epsilon=epsilon, spread=float(np.sqrt(1 + between / narrow)))

    @property
    def kappa(self) -> float:
        """3·(E σ⁴ / (E σ²)² − 1)."""
        r, e = self.spread**2, self.epsilon
        return 3 * ((1 - e + e * r**2) / (1 - e + e * r) ** 2 - 1)

    def _unit_tails(self, z: Floats) -> Tails:
        narrow = 1 / np.sqrt(1 - self.epsilon + self.epsilon * self.spread**2)
        bulk = Gaussian(sigma=narrow).upper(z)
        wide = Gaussian(sigma=narrow * self.spread).upper(z)
        e = self.epsilon
        p, first, second = ((1 - e) * b + e * w for b, w in zip(bulk, wide, strict=True))
        return p, first, second
