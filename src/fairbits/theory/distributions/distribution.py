"""The interface of distributions of weights, and mixtures of them.

`upper(x)` and `lower(x)` are the moments of order 0, 1, 2 beyond x on either side. The exact error of the true
quantizer is a finite sum of them (`fairbits.theory.noise`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from fairbits.checks import (
    Floats,
    instances,
    nonnegative_array,
    weights_vector,
)
from fairbits.theory.moments import Moments, mixture_moments

Tails = tuple[Floats, Floats, Floats]


class Distribution(ABC):
    """A law of weights with finite variance; `kappa` is excess kurtosis."""

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
        """Returns E[|X|ᵏ; |X| > x] for k = 0, 1, 2 and x ≥ 0.

        >>> from fairbits.theory.distributions import Gaussian
        >>> [round(float(v), 4) for v in Gaussian().beyond(2.0)]
        [0.0455, 0.108, 0.2615]
        """
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
    """P_λ = Σ_l ā_l P_l: the effective distribution of a language (003-08).

    >>> from fairbits.theory.distributions import Gaussian
    >>> wide = Mixture([Gaussian(sigma=1), Gaussian(sigma=3)], [0.5, 0.5])
    >>> round(wide.moments.kappa, 2)
    1.92
    """

    def __init__(self, parts: Sequence[Distribution], weights: ArrayLike) -> None:
        self.parts: tuple[Distribution, ...] = instances("parts", parts, Distribution)
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
