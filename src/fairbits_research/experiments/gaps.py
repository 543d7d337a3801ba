"""Gaps between languages, compared between runs by resampling the same documents in both."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, isfinite

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.result import Answer, is_above

SPENT = 5
"""An interval leaves out 1/SPENT of the nominal share of the draws, because an extreme varies more than its draws do.

Leaving out the full share covered 82 to 92 % of true differences instead of 95 %; this covers 91 to 98 %, least where
noise exceeds the spread (simulated: Gaussian noise, 4 and 20 languages, 18 to 60 documents, 200 samples each).
Reductions in percent were not simulated.
"""


@dataclass(frozen=True, eq=False)
class LanguageGap:
    """The worst minus the best language of one run: the estimate, and its value on resampled documents.

    Draw i has the same documents in every run on the same text, so that runs can be compared draw by draw.
    """

    estimate: Estimate
    draws: Floats

    @classmethod
    def of(cls, frame: LanguageFrame) -> "LanguageGap":
        """Returns the gap of a frame; its draws are shifted so that their mean is the bias-corrected estimate."""
        estimate, bounded = frame.gap(), frame.bounded
        drawn = np.ptp(bounded.value + bounded.deviation, axis=1)
        return cls(estimate, drawn - drawn.mean() + estimate.value)

    def minus(self, reference: "LanguageGap", *, confidence: float = 0.95) -> Estimate:
        """Returns how much wider this gap is than the reference."""
        value = self.estimate.value - reference.estimate.value
        return interval_of_draws(value, self.draws - reference.draws, n=self.estimate.n, confidence=confidence)

    def reduction_from(self, reference: "LanguageGap") -> Estimate | None:
        """Returns by how many percent this gap is narrower than the reference; None where the reference may be 0."""
        if reference.estimate.low <= 0 or reference.draws.min() <= 0:
            return None
        value = 100 * (1 - self.estimate.value / reference.estimate.value)
        return interval_of_draws(value, 100 * (1 - self.draws / reference.draws), n=self.estimate.n)


def interval_of_draws(value: float, draws: Floats, *, n: int, confidence: float = 0.95) -> Estimate:
    """Returns a value with the central part of its draws as the interval, widened to contain the value."""
    tail = 50 * (1 - confidence) / SPENT
    low, high = (float(limit) for limit in np.percentile(draws, [tail, 100 - tail]))
    return Estimate(value, min(low, value), max(high, value), n, confidence)


def documents_for(estimate: Estimate, limit: float = 0.0) -> int | None:
    """Returns how many documents would separate the value from a limit if it does not change.

    None where no number would (the value is the limit), or where the interval is unbounded and says nothing about it.
    Intervals shrink as 1/√n.
    """
    distance = abs(estimate.value - limit)
    reach = estimate.value - estimate.low if estimate.value > limit else estimate.high - estimate.value
    return ceil(round(estimate.n * (reach / distance) ** 2, 6)) if distance > 0 and isfinite(reach) else None


def documents_needed(estimates: Mapping[str, Estimate], limit: float = 0.0) -> str:
    """Returns how many documents would decide what is undecided; an empty text where all is decided.

    >>> documents_needed({"GPTQ": Estimate(0.1, -0.1, 0.3, 40), "absmax": Estimate(0.1, 0.05, 0.3, 40)})
    'Undecided with 40 documents. If the values do not change, the number needed is 160 (GPTQ).'
    >>> documents_needed({"GPTQ": Estimate(0.1, float("-inf"), float("inf"), 3)})
    'Undecided with 3 documents, too few for an interval.'
    """
    doubtful = {name: value for name, value in estimates.items() if is_above(value, limit) is Answer.UNDECIDED}
    counts = {name: documents_for(value, limit) for name, value in doubtful.items()}
    parts = [f"{count} ({name})" for name, count in counts.items() if count is not None]
    n = max((value.n for value in doubtful.values()), default=0)
    if not parts:
        unbounded = not all(isfinite(value.low) and isfinite(value.high) for value in doubtful.values())
        return f"Undecided with {n} documents, too few for an interval." if unbounded else ""
    return f"Undecided with {n} documents. If the values do not change, the number needed is {', '.join(parts)}."
