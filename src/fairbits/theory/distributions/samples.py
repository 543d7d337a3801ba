"""Laws made of others: a weighted sample, and the mixture that a language sees."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fairbits.checks import (
    Floats,
    instances,
    weights_vector,
)
from fairbits.theory.distributions.base import Distribution, Tails
from fairbits.theory.moments import Moments, mixture_moments


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
