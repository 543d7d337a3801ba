"""Means and shares over independent units, such as sections or languages that were held out, with intervals."""

import math

import numpy as np
import scipy  # its modules are loaded when they are used

from fairbits.core.array_checks import Floats
from fairbits.core.units import LEAST_DOCUMENTS
from fairbits.stats.intervals import Estimate

CONFIDENCE = 0.95


def unit_mean(values: Floats) -> Estimate:
    """Returns the mean of one number per unit with Student's interval.

    Units that are too few, or all alike, give no interval: how much they vary is then not known.

    >>> print(unit_mean(np.array([0.1, 0.2, 0.3, 0.2, 0.2])))
    0.2000 [0.1122, 0.2878] (n=5)
    """
    n, mean = len(values), float(np.mean(values))
    if n < LEAST_DOCUMENTS or np.ptp(values) == 0:
        return Estimate.without_interval(mean, n, CONFIDENCE)
    return _student(mean, float(np.std(values, ddof=1)) / math.sqrt(n), n)


def unit_share(hits: Floats) -> Estimate:
    """Returns the mean share of hits over units, with an interval within 0 and 1.

    Wilson's interval where every unit is right or wrong as a whole; it says something where all are right, too.
    Student's otherwise.

    >>> print(unit_share(np.ones(31)))
    1.0000 [0.8897, 1.0000] (n=31)
    """
    n, share = len(hits), float(np.mean(hits))
    if n >= LEAST_DOCUMENTS and np.isin(hits, (0.0, 1.0)).all():
        low, high = scipy.stats.binomtest(round(share * n), n).proportion_ci(CONFIDENCE, method="wilson")
        return Estimate(share, min(float(low), share), max(float(high), share), n, CONFIDENCE)
    mean = unit_mean(hits)
    if not mean.bounded:
        return mean
    return Estimate(mean.value, max(mean.low, 0.0), min(mean.high, 1.0), n, CONFIDENCE)


def jackknife(value: float, without: Floats) -> Estimate:
    """Returns an estimate with the jackknife interval, given the value without each of the units.

    se² = (n − 1)/n · Σ (θ₋ᵢ − mean θ₋ᵢ)²; for smooth functions of means.
    """
    n = len(without)
    if n < LEAST_DOCUMENTS:
        return Estimate.without_interval(value, n, CONFIDENCE)
    return _student(value, math.sqrt((n - 1) * float(np.var(without))), n)


def _student(value: float, error: float, n: int) -> Estimate:
    reach = float(scipy.stats.t.ppf(0.5 + CONFIDENCE / 2, n - 1)) * error
    return Estimate(value, value - reach, value + reach, n, CONFIDENCE)
