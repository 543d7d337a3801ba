"""Correlations across languages, with intervals that hold for few languages."""

from dataclasses import dataclass

import numpy as np
import scipy  # its modules are loaded when they are used
from numpy.typing import ArrayLike

from fairbits.core.array_checks import Floats, finite_array, near_one
from fairbits.core.checks import in_range, same_shape
from fairbits.core.errors import InputError
from fairbits.stats.intervals import Estimate


@dataclass(frozen=True)
class Correlation:
    """A correlation with interval, its two-sided p value and the degrees of freedom of its t test."""

    estimate: Estimate
    p: float
    df: int


def spearman(x: ArrayLike, y: ArrayLike, *, confidence: float = 0.95) -> Correlation:
    """Returns Spearman's rank correlation of x and y with interval, p and degrees of freedom.

    ρ = Pearson's r of the mid-ranks; p by t on n−2 degrees of freedom. The interval is
    tanh(artanh ρ ± z √((1+ρ²/2)/(n−3))) (Bonett and Wright 2000).
    """
    a, b = check_pairs(x, y)
    r, p = (float(number) for number in scipy.stats.spearmanr(a, b))
    spread = np.sqrt((1 + r * r / 2) / (len(a) - 3))
    in_range("confidence", confidence, above=0, below=1)
    r = float(np.clip(r, -1, 1))
    low, high = fisher_interval(r, spread, confidence)
    return Correlation(Estimate(r, low, high, len(a), confidence), p, len(a) - 2)


def pearson_fisher(x: ArrayLike, y: ArrayLike, *, confidence: float = 0.95) -> Correlation:
    """Returns Pearson's r of x and y with Fisher's interval tanh(artanh r ± z/√(n−3)), p and degrees of freedom.

    r = Σ(x−x̄)(y−ȳ)/√(Σ(x−x̄)² Σ(y−ȳ)²);  t = r√(n−2)/√(1−r²) on n−2 degrees of freedom. The interval covers at small
    n too; it assumes bivariate normal data.
    """
    a, b = check_pairs(x, y)
    r, p = (float(number) for number in scipy.stats.pearsonr(a, b))
    in_range("confidence", confidence, above=0, below=1)
    r = float(np.clip(r, -1, 1))
    low, high = fisher_interval(r, 1.0 / np.sqrt(len(a) - 3), confidence)
    return Correlation(Estimate(r, low, high, len(a), confidence), p, len(a) - 2)


def check_pairs(x: ArrayLike, y: ArrayLike, *, least: int = 4) -> tuple[Floats, Floats]:
    """Returns two finite vectors of equal length, at least `least`, neither of them constant, both scaled near 1."""
    a = near_one(finite_array("x", x, ndim=1, least=least))[0]
    b = near_one(finite_array("y", y, ndim=1, least=least))[0]
    same_shape("x", a.shape, "the shape of y", b.shape)
    for name, array in (("x", a), ("y", b)):
        # below this bound scipy calls an input nearly constant, and r is rounding noise
        if np.linalg.norm(array - array.mean()) <= 1e-13 * abs(array.mean()):
            raise InputError(f"{name} is constant ({array[0]:g}); it must vary for a correlation to exist")
    return a, b


def fisher_interval(r: float, spread: float, confidence: float) -> tuple[float, float]:
    """Returns tanh(artanh r ± z·spread); the single point r where |r| = 1."""
    if abs(r) >= 1.0:
        return r, r
    reach = scipy.stats.norm.ppf(0.5 + confidence / 2) * spread
    centre = np.arctanh(r)
    return float(np.tanh(centre - reach)), float(np.tanh(centre + reach))
