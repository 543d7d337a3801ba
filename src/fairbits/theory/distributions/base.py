"""What every distribution of weights answers.

`upper(x)` and `lower(x)` are the moments of order 0, 1, 2 of what lies beyond x on either side. The exact error of the
true quantizer is a finite sum of them (`fairbits.theory.noise`).
"""

from abc import ABC, abstractmethod
from functools import cached_property

from numpy.typing import ArrayLike

from fairbits.checks import Floats, nonnegative_array
from fairbits.theory.moments import Moments

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
