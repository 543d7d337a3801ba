"""Laws made of others: a weighted sample, and the mixture that a language sees."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fairbits.checks import (
    Floats,
    finite_array,
    instances,
    nonnegative_array,
    representable,
    same_shape,
    weights_vector,
)
from fairbits.theory.distributions.base import Distribution, Tails
from fairbits.theory.moments import Moments, mixture_moments


class Empirical(Distribution):
    """The law of a weighted sample, by one sort and suffix sums."""

    def __init__(self, sample: ArrayLike, weights: ArrayLike | None = None) -> None:
        x = finite_array("sample", sample).ravel()
        representable("the square of the sample", float(np.max(np.abs(x))) * float(np.max(np.abs(x))))
        h = np.ones_like(x) if weights is None else nonnegative_array("weights", weights).ravel()
        same_shape("weights", h.shape, "sample", x.shape)
        h = weights_vector("weights", h, size=x.size)
        self._moments = Moments.of(x, weights=weights)
        self._positive = _SuffixSums(x[x > 0], h[x > 0])
        self._negative = _SuffixSums(-x[x < 0], h[x < 0])
        self._zero = float(h[x == 0].sum())

    @property
    def moments(self) -> Moments:
        """The sample's moments."""
        return self._moments

    def upper(self, x: Floats) -> Tails:
        """Returns the sums over elements above x."""
        return self._side(finite_array("x", x), self._positive, self._negative)

    def lower(self, x: Floats) -> Tails:
        """Returns the sums over elements below −x."""
        return self._side(finite_array("x", x), self._negative, self._positive)

    def _side(self, x: Floats, same: "_SuffixSums", other: "_SuffixSums") -> Tails:
        p, first, second = same.above(np.maximum(x, 0))
        if (x < 0).any():
            # what lies above a negative x: all of this side, the zeros, and the other side down to |x|
            far, near = other.above(np.maximum(-x, 0), inclusive=True), other.above(np.zeros_like(x))
            p = np.where(x < 0, p + self._zero + near[0] - far[0], p)
            first = np.where(x < 0, first - (near[1] - far[1]), first)
            second = np.where(x < 0, second + near[2] - far[2], second)
        return p, first, second


class _SuffixSums:
    """Sums of h, h·x, h·x² over the elements of x > 0 above a point."""

    def __init__(self, x: Floats, h: Floats) -> None:
        order = np.argsort(x)
        self._x = x[order]
        columns = [h[order], h[order] * self._x, h[order] * self._x**2]
        self._sums = [np.append(np.cumsum(c[::-1])[::-1], 0.0) for c in columns]

    def above(self, point: Floats, *, inclusive: bool = False) -> Tails:
        at = np.searchsorted(self._x, point, side="left" if inclusive else "right")
        return self._sums[0][at], self._sums[1][at], self._sums[2][at]


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
