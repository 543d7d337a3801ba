"""Pearson's correlation across languages, with Fisher's interval or one by bootstrap."""

from dataclasses import replace
from typing import Any

import numpy as np
import scipy  # its modules are loaded when they are used
from numpy.typing import ArrayLike

from fairbits.core.array_checks import Floats
from fairbits.core.checks import one_of, whole
from fairbits.core.errors import InputError
from fairbits.core.memory import RESAMPLED_COUNTS
from fairbits.stats.correlation import Correlation, check_pairs, pearson_fisher
from fairbits_research.stats.correlation_tests import Rng

INTERVALS = ("fisher", "percentile", "bca")


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

    fisher: `pearson_fisher`, which covers at small n too (assumes bivariate normal data);
    percentile, bca: bootstrap over pairs, too narrow below about 30 pairs.
    """
    one_of("interval", interval, INTERVALS)
    result = pearson_fisher(x, y, confidence=confidence)
    if interval == "fisher":
        return result
    low, high = _bootstrap_interval(*check_pairs(x, y), interval, confidence, resamples=resamples, rng=rng)
    return replace(result, estimate=replace(result.estimate, low=low, high=high))


def _bootstrap_interval(
    a: Floats, b: Floats, interval: str, confidence: float, *, resamples: int, rng: Rng
) -> tuple[float, float]:
    whole("resamples", resamples, least=100)
    result: Any = scipy.stats.bootstrap(
        (a, b),
        _rowwise_pearson,
        n_resamples=resamples,
        batch=max(1, RESAMPLED_COUNTS // len(a)),
        vectorized=True,
        paired=True,
        confidence_level=confidence,
        method="BCa" if interval == "bca" else "percentile",
        rng=np.random.default_rng(rng),
    )
    low, high = (float(limit) for limit in result.confidence_interval)
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
