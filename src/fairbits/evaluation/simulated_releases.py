"""Simulated releases: what a gate would read of a release whose true damage is known, drawn from a small evaluation.

Documents are drawn with replacement from those of the pilot, in all languages at once where they are parallel, and
their damage is rescaled so that the worst language truly has the wanted damage and the others keep their ratio to it.
The noise of the pilot is not counted twice:

* languages seem to differ more than they do: the ratios are those of `shrunken`, which spread as the true damages do;
* documents drawn from n vary by (n−1)/n less than the text that the n are a sample of: deviations are multiplied by
  √(n/(n−1));
* tokens that change are counts. A document has a propensity, and its count is binomial. Propensities deviate from
  their language's only as much as counts do beyond the binomial noise, and move to the wanted share on the logit scale,
  so that none leaves 0 to 1.

That documents keep their relative deviations when the damage grows or shrinks is a heuristic.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy  # its modules are loaded when they are used
from numpy.typing import NDArray

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.resample import LinkedLanguages, link_languages
from fairbits.stats.worst_language import shrunken

RESAMPLES = 399  # of a simulated release: exact order statistics at 95 %; their noise adds 0.1 % to 2.5 % that pass
JOINED = 256  # more documents are joined at random to about as many: mean, spread and skewness of sums stay the same
LEAST_RATE = 1e-6  # of a document, so that its logit is finite


@dataclass(frozen=True, eq=False)
class PilotDocuments:
    """The documents of a small evaluation, from which releases are drawn; `counts` of tokens change, or damage."""

    frame: LanguageFrame
    counts: bool

    @cached_property
    def damage(self) -> dict[str, float]:
        """The damage of every language, without the noise of the pilot."""
        drawn = self.frame.bounded
        centre = shrunken(drawn) if len(drawn.languages) > 1 else drawn.value
        if centre.max() <= 0:
            raise InputError(
                "no language of the pilot has lost anything, so its damage cannot be scaled to a limit; use scores of "
                "a model with fewer bits"
            )
        least = LEAST_RATE if self.counts else -np.inf
        return dict(zip(drawn.languages, np.maximum(centre, least).tolist(), strict=True))

    @cached_property
    def _linked(self) -> tuple[LinkedLanguages, ...]:
        frame = self.frame
        lang, document = (np.unique(column, return_inverse=True)[1] for column in (frame.lang, frame.document))
        return link_languages(lang, document, values=frame.values, weights=frame.weights)

    def rescaled(self, worst: float) -> "RescaledDocuments":
        """Returns the documents with the true damage `worst` in the worst language."""
        factor, groups = worst / max(self.damage.values()), []
        for group in self._linked:
            means = np.zeros_like(group.values)
            for i, column in enumerate(group.columns.tolist()):
                rows, true = group.present[:, i], factor * self.damage[self.frame.languages[column]]
                values, weights = group.values[rows, i], group.weights[rows, i]
                if self.counts:
                    means[rows, i] = moved(propensities(values, weights), weights, share=true)
                else:
                    deviation = values - values.sum() / weights.sum() * weights
                    means[rows, i] = true * weights + factor * deviation * np.sqrt(len(values) / (len(values) - 1))
            groups.append(replace(group, values=means))
        return RescaledDocuments(self.frame, self.counts, tuple(groups))


@dataclass(frozen=True, eq=False)
class RescaledDocuments:
    """Documents of known damage; the values of `groups` are propensities if `counts`."""

    frame: LanguageFrame
    counts: bool
    groups: tuple[LinkedLanguages, ...]

    def draw(self, times: float, rng: np.random.Generator) -> LanguageFrame:
        """Returns a release with this many times as many documents as the pilot."""
        codes, values, weights, ids = zip(*self._parts(times, rng), strict=True)
        names = np.array(self.frame.languages)
        return replace(
            self.frame,
            lang=names[np.concatenate(codes)],
            document=np.concatenate([part + 10**9 * i for i, part in enumerate(ids)]),
            values=np.concatenate(values),
            weights=np.concatenate(weights),
            resamples=RESAMPLES,
            seed=int(rng.integers(2**31)),
        )

    def _parts(
        self, times: float, rng: np.random.Generator
    ) -> Iterator[tuple[NDArray[np.intp], Floats, Floats, NDArray[np.intp]]]:
        for group in self.groups:
            n = len(group.values)
            count = max(round(times * n), 1)
            joined = max(round(count / JOINED), 1)
            drawn = rng.integers(0, n, size=(max(round(count / joined), 1), joined))
            weights = group.weights[drawn].sum(axis=1)
            if self.counts:  # joined documents have one propensity, which is exact where none are joined
                mean = (group.weights * group.values)[drawn].sum(axis=1)
                rates = np.clip(mean / np.maximum(weights, 1), 0, 1)
                values = rng.binomial(weights.astype(np.int64), rates).astype(np.float64)
            else:
                values = group.values[drawn].sum(axis=1)
            row, column = np.nonzero(group.present[drawn].any(axis=1))
            yield group.columns[column], values[row, column], weights[row, column], row


def propensities(counts: Floats, tokens: Floats) -> Floats:
    """Returns the rate of every document, which vary only as much as the counts do beyond their binomial noise.

    Var(count) = t·p(1−p) + t(t−1)·τ² for t tokens; τ² is estimated by moments, with n/(n−1), and the deviations of the
    observed rates are multiplied by one number so that their mean square is τ².
    """
    share, n = float(counts.sum() / tokens.sum()), len(counts)
    pairs = tokens * (tokens - 1)
    squares = n / (n - 1) * float(((counts - share * tokens) ** 2).sum())
    between = max(squares - share * (1 - share) * float(tokens.sum()), 0.0)
    deviation = counts / np.maximum(tokens, 1) - share
    observed = float((pairs * deviation**2).sum())
    shrink = np.sqrt(between / observed) if observed > 0 else 0.0
    rates: Floats = np.clip(share + shrink * deviation, LEAST_RATE, 1 - LEAST_RATE)
    return rates


def moved(rates: Floats, tokens: Floats, *, share: float) -> Floats:
    """Returns rates shifted on the logit scale so that this share of all tokens changes."""
    logits = scipy.special.logit(rates)

    def excess(shift: float) -> float:
        return float(scipy.special.expit(logits + shift) @ tokens / tokens.sum()) - share

    shifted: Floats = scipy.special.expit(logits + scipy.optimize.brentq(excess, -60, 60))
    return shifted
