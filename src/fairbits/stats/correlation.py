"""Correlations across languages, with intervals that hold for few languages."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # its modules are loaded when they are used
from numpy.typing import ArrayLike

from fairbits.core.array_checks import Floats, finite_array, near_one
from fairbits.core.checks import in_range, one_of, same_shape, whole
from fairbits.core.errors import InputError
from fairbits.core.memory import RESAMPLED_COUNTS
from fairbits.stats.intervals import Estimate
from fairbits.stats.resample import Rng, generator

INTERVALS = ("fisher", "percentile", "bca")


@dataclass(frozen=True)
class Correlation:
    """A correlation with interval, its two-sided p value and the degrees of freedom of its t test."""

    estimate: Estimate
    p: float
    df: int


def pearson(
    x: ArrayLike,
    y: ArrayLike,
    *,
    interval: str = "fisher",
    confidence: float = 0.95,
    resamples: int = 10_000,
    rng: Rng = 0,
) -> Correlation:
    """Returns Pearson's r of x and y with interval, p and degrees of freedom.

    r = Σ(x−x̄)(y−ȳ)/√(Σ(x−x̄)² Σ(y−ȳ)²);  t = r√(n−2)/√(1−r²) on n−2 degrees of freedom.
    fisher: tanh(artanh r ± z/√(n−3)), which covers at small n too (assumes bivariate normal data);
    percentile, bca: bootstrap over pairs, too narrow below about 30 pairs.

    >>> print(pearson([1, 2, 3, 4, 5, 6], [2, 1, 4, 3, 6, 5]).estimate)
    0.8286 [0.0519, 0.9807] (n=6)
    """
    a, b = paired("x", x, other_name="y", other=y, least=4)
    r, p = (float(number) for number in scipy.stats.pearsonr(a, b))
    spread = 1.0 / np.sqrt(len(a) - 3)
    return _correlation(_rowwise_pearson, a, b, r, p, spread, interval, confidence, resamples, rng)


def spearman(
    x: ArrayLike,
    y: ArrayLike,
    *,
    interval: str = "fisher",
    confidence: float = 0.95,
    resamples: int = 10_000,
    rng: Rng = 0,
) -> Correlation:
    """Returns Spearman's rank correlation of x and y with interval, p and degrees of freedom.

    ρ = Pearson's r of the mid-ranks; p by t on n−2 degrees of freedom.
    fisher: tanh(artanh ρ ± z √((1+ρ²/2)/(n−3))) (Bonett and Wright 2000); percentile, bca as in `pearson`.

    >>> round(spearman([1, 2, 3, 4, 5], [1, 3, 2, 5, 4]).estimate.value, 2)
    0.8
    """
    a, b = paired("x", x, other_name="y", other=y, least=4)
    r, p = (float(number) for number in scipy.stats.spearmanr(a, b))
    spread = np.sqrt((1 + r * r / 2) / (len(a) - 3))
    return _correlation(_rowwise_spearman, a, b, r, p, spread, interval, confidence, resamples, rng)


def paired(name: str, value: ArrayLike, *, other_name: str, other: ArrayLike, least: int) -> tuple[Floats, Floats]:
    """Returns two finite vectors of equal length, at least `least`, neither of them constant, both scaled near 1."""
    a = near_one(finite_array(name, value, ndim=1, least=least))[0]
    b = near_one(finite_array(other_name, other, ndim=1, least=least))[0]
    same_shape(name, a.shape, f"the shape of {other_name}", b.shape)
    for label, array in ((name, a), (other_name, b)):
        # below this bound scipy calls an input nearly constant, and r is rounding noise
        if np.linalg.norm(array - array.mean()) <= 1e-13 * abs(array.mean()):
            raise InputError(f"{label} is constant ({array[0]:g}); it must vary for a correlation to exist")
    return a, b


def fisher_interval(r: float, spread: float, confidence: float) -> tuple[float, float]:
    """Returns tanh(artanh r ± z·spread); the single point r where |r| = 1.

    >>> [round(limit, 3) for limit in fisher_interval(-0.834, 1 / 11**0.5, 0.95)]
    [-0.946, -0.544]
    """
    if abs(r) >= 1.0:
        return r, r
    reach = scipy.stats.norm.ppf(0.5 + confidence / 2) * spread
    centre = np.arctanh(r)
    return float(np.tanh(centre - reach)), float(np.tanh(centre + reach))


def _correlation(
    statistic: Callable[..., Floats],
    a: Floats,
    b: Floats,
    r: float,
    p: float,
    spread: float,
    interval: str,
    confidence: float,
    resamples: int,
    rng: Rng,
) -> Correlation:
    one_of("interval", interval, INTERVALS)
    in_range("confidence", confidence, above=0, below=1)
    r = float(np.clip(r, -1, 1))
    if interval == "fisher":
        low, high = fisher_interval(r, spread, confidence)
    else:
        low, high = _bootstrap_interval(statistic, a, b, interval, confidence, resamples, rng)
    return Correlation(Estimate(r, low, high, len(a), confidence), p, len(a) - 2)


def _bootstrap_interval(
    statistic: Callable[..., Floats],
    a: Floats,
    b: Floats,
    interval: str,
    confidence: float,
    resamples: int,
    rng: Rng,
) -> tuple[float, float]:
    whole("resamples", resamples, least=100)
    outcome: Any = scipy.stats.bootstrap(
        (a, b),
        statistic,
        n_resamples=resamples,
        batch=max(1, RESAMPLED_COUNTS // len(a)),
        vectorized=True,
        paired=True,
        confidence_level=confidence,
        method="BCa" if interval == "bca" else "percentile",
        rng=generator(rng),
    )
    low, high = (float(limit) for limit in outcome.confidence_interval)
    return low, high


def _rowwise_pearson(x: Floats, y: Floats, axis: int = -1) -> Floats:
    """Returns Pearson's r along the last axis; raises if one side of a resample is constant."""
    x, y = np.moveaxis(np.asarray(x), axis, -1), np.moveaxis(np.asarray(y), axis, -1)
    if not (np.ptp(x, axis=-1).all() and np.ptp(y, axis=-1).all()):
        raise InputError(
            "a bootstrap resample is constant, so its correlation does not exist; "
            "too few distinct values for a bootstrap: use interval='fisher'"
        )
    u = x - x.mean(axis=-1, keepdims=True)
    v = y - y.mean(axis=-1, keepdims=True)
    norms = np.sqrt((u * u).sum(axis=-1) * (v * v).sum(axis=-1))
    if norms.min() < 1e-200:  # next to an outlier the other values may be so small that their squares underflow
        u, v = (side / np.abs(side).max(axis=-1, keepdims=True) for side in (u, v))
        norms = np.sqrt((u * u).sum(axis=-1) * (v * v).sum(axis=-1))
    r: Floats = np.clip((u * v).sum(axis=-1) / norms, -1.0, 1.0)
    return r


def _rowwise_spearman(x: Floats, y: Floats, axis: int = -1) -> Floats:
    return _rowwise_pearson(scipy.stats.rankdata(x, axis=axis), scipy.stats.rankdata(y, axis=axis), axis)
