"""Measured: the scores of a policy on one text over several seeds, as frames of languages; and numbers for tables."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fairbits.evaluation.scores import Scores
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate, combination, estimate_within
from fairbits.stats.worst_language import worst_difference

Measure = Literal["divergence", "loss"]
"""KL(p_reference ‖ p_quantized), or the loss of the quantized model minus that of the reference."""


@dataclass(frozen=True, eq=False)
class Measured:
    """One policy on one text, once for every seed."""

    policy: str
    scores: tuple[Scores, ...]

    @property
    def size_bytes(self) -> int:
        """The size of the quantized model; the largest over the seeds."""
        return max(seed_scores.quantized.size_bytes for seed_scores in self.scores)

    @property
    def damage(self) -> LanguageFrame:
        """Added nats per token, the mean over seeds."""
        return self.frame("loss", "nats_per_token")

    @property
    def kl(self) -> LanguageFrame:
        """The divergence in nats per token, the mean over seeds."""
        return self.frame("divergence", "nats_per_token")

    def frame(self, measure: Measure, unit: str, languages: Collection[str] | None = None) -> LanguageFrame:
        """Returns a measure of every document in a unit, the mean over seeds, in all or some languages."""
        key = measure, unit, None if languages is None else frozenset(languages)
        if key not in self._frames:
            frames = [frame_of(seed_scores, measure, unit) for seed_scores in self.scores]
            values = np.mean([frame.values for frame in frames], axis=0)
            together = replace(frames[0], values=values)
            self._frames[key] = together if languages is None else only(together, languages)
        return self._frames[key]

    @cached_property
    def _frames(self) -> dict[Any, LanguageFrame]:
        return {}


def frame_of(scores: Scores, measure: Measure, unit: str) -> LanguageFrame:
    """Returns a measure of every document in bits per byte or nats per token."""
    return scores.frame(unit, measure=measure)


def only(frame: LanguageFrame, languages: Collection[str]) -> LanguageFrame:
    """Returns a frame with some of its languages."""
    rows = np.isin(frame.lang, list(languages))
    return replace(
        frame,
        lang=frame.lang[rows],
        document=frame.document[rows],
        values=frame.values[rows],
        weights=frame.weights[rows],
    )


def contrast_counts(mine: LanguageFrame, base: LanguageFrame) -> tuple[int, int, int, int]:
    """Returns how many languages are lower and higher than at the base, and how many significantly so."""
    contrast = mine.contrast(base)
    sides: list[int] = []
    for chosen in (contrast.differences, contrast.significant()):
        values = [difference.value for difference in chosen.values()]
        sides += [sum(value < 0 for value in values), sum(value > 0 for value in values)]
    return sides[0], sides[1], sides[2], sides[3]


def paired_ratios(mine: LanguageFrame, base: LanguageFrame) -> tuple[Estimate, Estimate]:
    """Returns the worst damage of a frame as a multiple of the other's worst, and the mean as one of its mean.

    Both frames hold the same documents, which are resampled together. The damage of every language must be positive.
    The worst is compared on the logarithm, corrected for selection; the mean by the delta method,
    Δ log(m/n) = Δm/m − Δn/n.
    """
    joint = mine.draw_jointly(base)
    if not joint.languages:
        plain = mine.worst()[1].value / base.worst()[1].value, mine.mean().value / base.mean().value
        worst, mean = (Estimate.without_interval(ratio, len(set(mine.document)), mine.confidence) for ratio in plain)
        return worst, mean
    size = len(joint.languages) // 2
    means = [float(joint.value[half].mean()) for half in (slice(size), slice(size, None))]
    shares = np.repeat([1 / means[0], -1 / means[1]], size) / size
    centre = float(np.log(means[0] / means[1]))
    limits = (float(np.exp(centre + deviation)) for deviation in combination(joint, shares, mine.confidence)[1:])
    mean = estimate_within(means[0] / means[1], *limits, n=joint.clusters, confidence=mine.confidence)
    return worst_difference(joint.logarithm(), mine.confidence).transform(np.exp), mean


def number(value: float, decimals: int = 4) -> str:
    """Returns a number as tables write it.

    >>> number(0.04321), number(-0.5, 2)
    ('0.0432', '−0.50')
    """
    text = f"{abs(value):.{decimals}f}"
    sign = "−" if value < 0 and float(text) else ""
    return sign + text


def shown(estimate: Estimate) -> str:
    """Returns an estimate with its interval."""
    return f"{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}]"
