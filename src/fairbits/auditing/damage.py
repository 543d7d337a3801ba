"""Predicted damage: how many nats per token a scheme will cost each language, and which tensors cause it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.core.units import NATS_PER_BIT
from fairbits.forward.statistics import ActivationStatistics
from fairbits.models.scales.scheme import Scheme
from fairbits.stats.frame import LanguageFrame, interval_notes
from fairbits.stats.intervals import Estimate

RESAMPLES = 2000


@dataclass(frozen=True, eq=False)
class PredictedDamage:
    """D̂(λ) of one scheme in one form, from the sums of each document in nats: `sums` (documents, linears).

    Nothing is fitted. To first order, the rounding error of one tensor changes the log-probabilities of the
    predictions; half the mean square of that change, summed over tensors, is the predicted damage.
    """

    scheme: Scheme
    form: str
    languages: tuple[str, ...]
    linears: tuple[str, ...]
    blocks: tuple[int, ...]  # one per linear layer
    lang: Any
    document: Any
    sums: Floats
    predicted: Floats
    size_bytes: Floats

    @cached_property
    def nats_per_token(self) -> LanguageFrame:
        """D̂(λ) per predicted token, with intervals over documents."""
        return self._frame(self.predicted, "nats_per_token")

    @cached_property
    def bits_per_byte(self) -> LanguageFrame:
        """D̂(λ) per byte of text, which can be compared between languages."""
        return self._frame(self.size_bytes * NATS_PER_BIT, "bits_per_byte")

    @cached_property
    def by_linear(self) -> Floats:
        """D̂(λ) in nats per token for each linear layer alone, (languages, linears)."""
        masks = [self.lang == code for code in self.languages]
        table: Floats = np.array([self.sums[rows].sum(0) / self.predicted[rows].sum() for rows in masks])
        return table

    @cached_property
    def by_block(self) -> Floats:
        """D̂(λ) in nats per token for each block alone, (languages, blocks)."""
        table = np.zeros((len(self.languages), max(self.blocks) + 1))
        np.add.at(table.T, np.array(self.blocks), self.by_linear.T)
        return table

    def restrict(self, languages: Sequence[str]) -> "PredictedDamage":
        kept = tuple(code for code in self.languages if code in languages)
        rows = np.isin(self.lang, kept)
        names = ("lang", "document", "sums", "predicted", "size_bytes")
        return replace(self, languages=kept, **{name: getattr(self, name)[rows] for name in names})

    def estimates(self) -> Mapping[str, Estimate]:
        estimates = self.nats_per_token.by_language()
        return {code: estimates[code] for code in self.languages}

    @cached_property
    def interval_notes(self) -> tuple[str, ...]:
        several = len(self.languages) > 1
        return interval_notes(self.nats_per_token, {"gap": self.nats_per_token.gap()} if several else None)

    def as_data(self) -> dict[str, Any]:
        bits = self.bits_per_byte.by_language()
        return {
            "form": self.form,
            "nats_per_token": {code: estimate.to_dict() for code, estimate in self.estimates().items()},
            "bits_per_byte": {code: bits[code].to_dict() for code in self.languages},
            "by_block": dict(zip(self.languages, self.by_block.tolist(), strict=True)),
            "by_linear": dict(zip(self.languages, self.by_linear.tolist(), strict=True)),
        }

    def _frame(self, weights: Floats, unit: str) -> LanguageFrame:
        sums = self.sums.sum(1)
        return LanguageFrame(self.lang, self.document, values=sums, weights=weights, unit=unit, resamples=RESAMPLES)


def predicted_damage(
    measured: ActivationStatistics, scheme: Scheme, *, form: str, block_of: Mapping[str, int]
) -> PredictedDamage:
    """Returns D̂(λ) from the measurements of a scheme."""
    return PredictedDamage(
        scheme=scheme,
        form=form,
        languages=measured.languages,
        linears=measured.linears,
        blocks=tuple(block_of[name] for name in measured.linears),
        lang=measured.lang,
        document=measured.document,
        sums=measured.damage[scheme][form],
        predicted=measured.predicted,
        size_bytes=measured.size_bytes,
    )
