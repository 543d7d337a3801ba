"""Estimates with intervals: bootstrap-t intervals and tests of one language, of all at once, and of sums of languages.

A bootstrap-t interval studentises every resample by the standard error of that resample, t* = (v* − v)/se*, and uses
the quantiles of t* where the normal interval would use ±1.96. That corrects for skewness of the damage, which is
pronounced: a few documents carry much of it. The quantiles are order statistics without interpolation, so a resample
that holds copies of a single document, whose se* is 0 and t* infinite, counts as extreme instead of spoiling a mean.
If such resamples are so many that the quantile itself is infinite, the interval is unbounded: there is no interval.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from fairbits.core.array_checks import Floats
from fairbits.core.checks import in_range, whole
from fairbits.core.errors import InputError
from fairbits.stats.resample import Replicates


@dataclass(frozen=True)
class Unbounded:
    """Says, as part of a type, that null in a file stands for a limit at infinity, which JSON does not have."""

    limit: float

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        number = core_schema.nullable_schema(handler(source))
        return core_schema.no_info_after_validator_function(lambda x: self.limit if x is None else x, number)


@dataclass(frozen=True)
class Estimate:
    """A point estimate, its confidence interval [low, high] and the number of units n behind it.

    If no interval can be formed, it is (−∞, ∞), which is null in JSON, and `bounded` is False. No decision that
    compares a limit with a number is then made by mistake: such an interval excludes nothing.
    """

    value: float
    low: Annotated[float, Unbounded(-math.inf)]
    high: Annotated[float, Unbounded(math.inf)]
    n: int
    confidence: float = 0.95

    @classmethod
    def without_interval(cls, value: float, n: int, confidence: float = 0.95) -> "Estimate":
        return cls(value, -math.inf, math.inf, n, confidence)

    def __post_init__(self) -> None:
        limits = (self.low, self.high)
        if not all(isinstance(limit, float) for limit in limits) or limits != (-math.inf, math.inf):
            object.__setattr__(self, "low", in_range("low", self.low))
            object.__setattr__(self, "high", in_range("high", self.high))
        object.__setattr__(self, "value", in_range("value", self.value))
        object.__setattr__(self, "n", whole("n", self.n, least=1))
        object.__setattr__(self, "confidence", in_range("confidence", self.confidence, above=0, below=1))
        if self.low > self.high:
            raise InputError(f"low is {self.low:g} and high is {self.high:g}; low must be at most high")

    def __str__(self) -> str:
        """Returns value, interval and n with three significant digits or four decimals, whichever is more."""
        if not self.bounded:
            return f"{_short(self.value)} (no interval, n={self.n})"
        value, low, high = (_short(number) for number in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}] (n={self.n})"

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.low)

    def transform(self, function: Callable[[float], float]) -> "Estimate":
        """Returns the estimate of a monotonic function of the number."""
        value = float(function(self.value))
        if not self.bounded:
            return replace(self, value=value)
        low, high = sorted(float(function(limit)) for limit in (self.low, self.high))
        return replace(self, value=value, low=low, high=high)

    def excludes(self, x: float) -> bool:
        return x < self.low or x > self.high

    def to_dict(self) -> dict[str, float | int | None]:
        """Returns the fields as plain numbers, ready for JSON; the limits are None if there is no interval."""
        return asdict(self) | ({} if self.bounded else {"low": None, "high": None})


def estimate_within(
    value: float, low: float, high: float, *, n: int, confidence: float, least: float = -math.inf
) -> Estimate:
    """Returns an estimate with these limits, cut at `least`; without an interval if one of them is not finite."""
    if not math.isfinite(low) or not math.isfinite(high):
        return Estimate.without_interval(float(value), n, confidence)
    return Estimate(float(value), max(float(low), least), max(float(high), least), n, confidence)


def _short(number: float) -> str:
    return f"{number:.4f}" if number == 0 or abs(number) >= 0.001 else f"{number:.3g}"


def studentised(deviation: Floats, error: Floats) -> Floats:
    """Returns deviation/error elementwise: 0 where the deviation is 0, ±∞ where only the error is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        t = deviation / error
    return np.where(deviation == 0, 0.0, t)


def order_quantile(t: Floats, level: float) -> Floats:
    """Returns the order statistic of rank ⌈level·(B+1)⌉ along the first axis; never interpolated, may be infinite."""
    count = t.shape[0]
    rank = int(np.clip(np.ceil(round(level * (count + 1), 9)) - 1, 0, count - 1))
    quantile: Floats = np.asarray(np.partition(t, rank, axis=0)[rank])
    return quantile


def reach(quantile: Floats, error: Floats) -> Floats:
    """Returns quantile·error, how far a limit is from its estimate: 0 where the error is 0, whatever the quantile."""
    with np.errstate(invalid="ignore"):
        return np.where(error == 0, 0.0, quantile * error)


def marginal(replicates: Replicates, confidence: float) -> tuple[Floats, Floats]:
    """Returns the equal-tailed bootstrap-t limits of every language; an unbounded limit is infinite.

    They are v − t*_{(1+c)/2}·se and v − t*_{(1−c)/2}·se with t* = (v* − v)/se*: second-order correct under skewness.
    """
    level = 0.5 + confidence / 2
    t = studentised(replicates.deviation, replicates.replicate_error)
    low = replicates.value - reach(order_quantile(t, level), replicates.error)
    high = replicates.value + reach(order_quantile(-t, level), replicates.error)
    return low, high


def simultaneous(replicates: Replicates, confidence: float) -> tuple[Floats, Floats]:
    """Returns max-T limits that cover all languages at once with the given confidence.

    They are v ± q·se with q the quantile of max_λ |t*_λ|. The dependence between languages is the resamples',
    so they are narrower than Bonferroni limits.
    """
    t = studentised(replicates.deviation, replicates.replicate_error)
    margin = reach(order_quantile(np.abs(t).max(axis=1, initial=0.0), confidence), replicates.error)
    return replicates.value - margin, replicates.value + margin


def combination(replicates: Replicates, coefficients: Floats, confidence: float) -> tuple[float, float, float]:
    """Returns value and bootstrap-t limits of Σ a_λ v_λ."""
    level = 0.5 + confidence / 2
    value, error, t = _combined(replicates, coefficients)
    if error == 0:
        return value, value, value
    return (value, value - float(order_quantile(t, level)) * error, value + float(order_quantile(-t, level)) * error)


def combination_p(replicates: Replicates, coefficients: Floats) -> float:
    """Returns the two-sided bootstrap-t p value of Σ a_λ v_λ = 0: the test that inverts `combination`."""
    value, error, star = _combined(replicates, coefficients)
    return float(_two_sided(studentised(np.array(value), np.array(error)), star))


def _combined(replicates: Replicates, coefficients: Floats) -> tuple[float, float, Floats]:
    """Returns Σ a_λ v_λ, its standard error, and t* of every replicate.

    se*² = Σ a_λ a_μ ρ_λμ se*_λ se*_μ, with the correlations ρ of the estimates held fixed.
    """
    value = float(coefficients @ replicates.value)
    error = float(np.sqrt(max(float(coefficients @ replicates.covariance @ coefficients), 0.0)))
    scaled = coefficients * replicates.replicate_error
    spread = np.sqrt(np.maximum(np.einsum("bi,ij,bj->b", scaled, replicates.correlation, scaled, optimize=True), 0))
    return value, error, studentised(replicates.deviation @ coefficients, spread)


def p_values(replicates: Replicates) -> Floats:
    """Returns the two-sided bootstrap-t p value of v_λ = 0 for every language.

    p = min(1, 2(1 + min(#{t* ≥ t}, #{t* ≤ t}))/(B+1)), t = v/se: the test that inverts `marginal`.
    """
    t = studentised(replicates.value, replicates.error)
    star = studentised(replicates.deviation, replicates.replicate_error)
    return _two_sided(t, star)


def holm(pvalues: ArrayLike) -> Floats:
    """Returns the p values adjusted by Holm's step-down method, in the given order.

    p̃₍ᵢ₎ = max_{j≤i} min(1, (m−j+1) p₍ⱼ₎); family-wise error is controlled under any dependence.
    """
    # statsmodels' multipletests gives the same, but collects garbage at every call: half a second next to a model
    p = np.asarray(pvalues, dtype=np.float64)
    order = np.argsort(p)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted


def _two_sided(t: Floats, star: Floats) -> Floats:
    tail = np.minimum((star >= t).sum(axis=0), (star <= t).sum(axis=0))
    p: Floats = np.minimum(1.0, 2.0 * (1 + tail) / (len(star) + 1))
    return p
