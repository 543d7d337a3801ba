"""The moments of a sample, and the research notes' reading of "effective kurtosis"."""

import numpy as np
from numpy.typing import ArrayLike

from fairbits.core.array_checks import Floats, finite_array, near_one, weights_vector
from fairbits.models.weight_moments import Moments, central_moments


def sample_moments(sample: ArrayLike, *, weights: ArrayLike | None = None) -> Moments:
    """Returns the population moments of a (weighted) sample; shape moments of a constant are 0."""
    x = finite_array("sample", sample).ravel()
    h = None if weights is None else weights_vector("weights", np.ravel(weights), size=x.size)
    total = float(x.size if weights is None else np.sum(weights))
    # scaling by powers of two is exact, and keeps fourth powers from overflow and underflow
    x, unit = near_one(x)
    mean = _weighted_mean(x, h)
    d = x - mean
    mean, d = mean + (shift := _weighted_mean(d, h)), d - shift
    d, width = near_one(d)
    square = d * d
    powers = (_weighted_mean(square, h), _weighted_mean(square * d, h), _weighted_mean(square * square, h))
    return central_moments(total, mean * unit, *powers, unit=width * unit)


def _weighted_mean(x: Floats, h: Floats | None) -> float:
    return float(np.mean(x)) if h is None else float(np.dot(x, h))


def kappa_weighted(activation: ArrayLike, kappa: ArrayLike) -> float:
    """Returns the research notes' κ_eff(λ) = Σ_l ā_l(λ)·κ_l (000-12); `activation` is normalised to ā.

    It is the kurtosis of the mixture only when all σ_l and all means are equal: see `kappa_mixture`.
    """
    values = finite_array("kappa", kappa, ndim=1)
    return float(weights_vector("activation", activation, size=values.size) @ values)
