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

    Student's where units vary. Wilson's where they are few, all alike, or each right or wrong as a whole: it says
    something where all are right, and is too wide rather than too narrow where a unit is a share itself.

    >>> print(unit_share(np.ones(31)))
    1.0000 [0.8897, 1.0000] (n=31)
    """
    n, mean = len(hits), unit_mean(hits)
    if mean.bounded and not np.isin(hits, (0.0, 1.0)).all():
        return Estimate(mean.value, max(mean.low, 0.0), min(mean.high, 1.0), n, CONFIDENCE)
    z2 = float(scipy.special.ndtri(0.5 + CONFIDENCE / 2)) ** 2
    centre, p = (mean.value + z2 / (2 * n)) / (1 + z2 / n), mean.value
    reach = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n**2))) / (1 + z2 / n)
    return Estimate(p, min(max(centre - reach, 0.0), p), max(min(centre + reach, 1.0), p), n, CONFIDENCE)


def jackknife(value: float, without: Floats, confidence: float = CONFIDENCE) -> Estimate:
    """Returns an estimate with the jackknife interval, given the value without each of the units.

    se² = (n − 1)/n · Σ (θ₋ᵢ − mean θ₋ᵢ)²; for smooth functions of means.
    """
    n = len(without)
    if n < LEAST_DOCUMENTS:
        return Estimate.without_interval(value, n, confidence)
    return _student(value, math.sqrt((n - 1) * float(np.var(without))), n, confidence)


def _student(value: float, error: float, n: int, confidence: float = CONFIDENCE) -> Estimate:
    reach = float(scipy.stats.t.ppf(0.5 + confidence / 2, n - 1)) * error
    return Estimate(value, value - reach, value + reach, n, confidence)
