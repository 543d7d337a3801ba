"""DocumentRecords: the damage of documents, and the resamples of every language that intervals are computed from."""

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fairbits.core.array_checks import Floats, as_array, finite_array, nonnegative_array
from fairbits.core.checks import in_range, one_of, same_shape, whole
from fairbits.core.errors import InputError, count_of
from fairbits.core.units import LEAST_DOCUMENTS, UNITS
from fairbits.stats.intervals import Estimate, marginal
from fairbits.stats.resample import EmptyResampleError, Replicates, link_languages, no_replicates, replicate

FRAME_UNITS = (*UNITS, "ratio", "per_item")


@dataclass(frozen=True, eq=False)
class LanguageDraws:
    """What the intervals of a frame are computed from; `refused` says why a language has no `replicates`."""

    values: dict[str, float]
    documents: dict[str, int]
    replicates: Replicates
    refused: dict[str, str]
    confidence: float

    def plain(self, lang: str) -> Estimate:
        return Estimate.without_interval(self.values[lang], self.documents[lang], self.confidence)

    @cached_property
    def limits(self) -> tuple[Floats, Floats]:
        return marginal(self.replicates, self.confidence)

    @cached_property
    def bounded(self) -> Replicates:
        finite = _finite(self.limits)
        return self.replicates if finite.all() else self.replicates.select(np.flatnonzero(finite))

    @cached_property
    def without_interval(self) -> dict[str, str]:
        unbounded = set(self.replicates.languages) - set(self.bounded.languages)
        reasons = self.refused | {
            lang: f"its {self.documents[lang]} documents vary too little: the interval is unbounded"
            for lang in unbounded
        }
        return {lang: reasons[lang] for lang in self.values if lang in reasons}


@dataclass(frozen=True, eq=False, repr=False)
class DocumentRecords:
    """One record per document and language; the damage of a language is Σ values / Σ weights over its documents."""

    lang: NDArray[np.str_]
    document: NDArray[np.generic]
    _: KW_ONLY
    values: Floats
    weights: Floats
    unit: str = "bits_per_byte"
    confidence: float = 0.95
    resamples: int = 10_000
    seed: int = 0
    least: float = -math.inf  # what no true damage is below, so that intervals are cut there: 0 for a divergence

    def __post_init__(self) -> None:
        codes, ids = as_array("lang", self.lang), as_array("document", self.document)
        if codes.ndim != 1 or codes.dtype.kind != "U" or codes.size == 0:
            raise InputError(f"lang is {codes.dtype} of shape {codes.shape}; it must be a vector of language codes")
        if ids.ndim != 1 or ids.dtype.kind not in "Uiu":
            raise InputError(f"document is {ids.dtype} of shape {ids.shape}; it must be a vector of ids")
        values = finite_array("values", self.values, ndim=1)
        weights = nonnegative_array("weights", self.weights, ndim=1)
        for name, column in {"lang": codes, "document": ids, "values": values, "weights": weights}.items():
            same_shape(name, column.shape, "the shape of lang", codes.shape)
            array = column.copy()
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        self._refuse_duplicates()
        one_of("unit", self.unit, FRAME_UNITS)
        in_range("confidence", self.confidence, above=0, below=1)
        whole("resamples", self.resamples, least=200)
        whole("seed", self.seed, least=0)

    @cached_property
    def languages(self) -> tuple[str, ...]:
        return tuple(str(code) for code in np.unique(self.lang))

    @cached_property
    def draws(self) -> LanguageDraws:
        """The resamples of every language with enough documents; the others do not affect them."""

        def draw(kept: list[str]) -> Replicates:
            rows = np.flatnonzero(np.isin(self.lang, kept))
            return self._replicate(rows, kept, values=[self.values[rows]])

        code = np.unique(self.lang, return_inverse=True)[1]
        values, weights = (np.bincount(code, weights=column) for column in (self.values, self.weights))
        if (weights <= 0).any():
            empty = self.languages[int(np.argmin(weights))]
            raise InputError(f"the weights of {empty} sum to 0; they must be positive")
        return self._draw(values / weights, np.bincount(code), draw)

    def draw_jointly(self, baseline: "DocumentRecords") -> Replicates:
        """Returns the replicates of languages with intervals in both frames: this frame's, then the baseline's."""
        order, match = self.pair(baseline)
        kept = self.draws.replicates.languages
        if not kept:
            return self.draws.replicates
        has_replicates = np.isin(self.lang[order], kept)
        rows = order[has_replicates]
        joint = self._replicate(rows, kept, values=[self.values[rows], baseline.values[match][has_replicates]])
        finite = _finite(marginal(joint, self.confidence)).reshape(2, -1).all(axis=0)
        return joint.select(np.flatnonzero(np.tile(finite, 2)))

    def pair(self, baseline: "DocumentRecords") -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Returns the orders that align the records of two frames, which must have the same documents and weights."""
        mine, theirs = self._order(), baseline._order()
        if self.unit != baseline.unit:
            raise InputError(f"units are {self.unit} and {baseline.unit}; both frames must have the same unit")
        if len(mine) != len(theirs) or not (
            np.array_equal(self.lang[mine], baseline.lang[theirs])
            and np.array_equal(self.document[mine], baseline.document[theirs])
        ):
            here = set(zip(self.lang.tolist(), self.document.tolist(), strict=True))
            there = set(zip(baseline.lang.tolist(), baseline.document.tolist(), strict=True))
            example = sorted(here ^ there, key=str)[0]
            raise InputError(
                f"the frames differ in documents ({len(here - there)} only here, {len(there - here)} only "
                f"there, such as {example}); a paired contrast needs the same documents: keep the common ones"
            )
        if not np.allclose(self.weights[mine], baseline.weights[theirs], rtol=1e-9, atol=0):
            raise InputError(
                "the frames weigh the same documents differently; sizes must agree for a contrast: measure both again"
            )
        return mine, theirs

    def _draw(
        self, values: Floats, documents: NDArray[np.intp], draw: Callable[[list[str]], Replicates]
    ) -> LanguageDraws:
        counts: dict[str, int] = dict(zip(self.languages, documents.tolist(), strict=True))
        refused = {
            lang: f"{count_of(n, 'document')}; an interval needs at least {LEAST_DOCUMENTS}"
            for lang, n in counts.items()
            if n < LEAST_DOCUMENTS
        }
        kept, replicates = [lang for lang in counts if lang not in refused], no_replicates(self.resamples)
        while kept:
            try:
                replicates = draw(kept)
                break
            except EmptyResampleError as problem:
                lang = problem.language
                kept.remove(lang)
                refused[lang] = (
                    f"it has {counts[lang]} of the {problem.documents} documents that it is resampled with, which is "
                    "too few"
                )
        by_language = dict(zip(self.languages, values.tolist(), strict=True))
        return LanguageDraws(by_language, counts, replicates, refused, self.confidence)

    def _replicate(self, rows: NDArray[np.intp], kept: Sequence[str], *, values: Sequence[Floats]) -> Replicates:
        lang = np.unique(self.lang[rows], return_inverse=True)[1]
        document = np.unique(self.document[rows], return_inverse=True)[1]
        times = len(values)
        linked = link_languages(
            np.concatenate([lang + i * len(kept) for i in range(times)]),
            np.tile(document, times),
            values=np.concatenate(values),
            weights=np.tile(self.weights[rows], times),
        )
        return replicate(linked, tuple(kept) * times, resamples=self.resamples, rng=np.random.default_rng(self.seed))

    def _order(self) -> NDArray[np.intp]:
        return np.lexsort((self.document, self.lang))

    def _refuse_duplicates(self) -> None:
        order = self._order()
        lang, document = self.lang[order], self.document[order]
        twice = (lang[1:] == lang[:-1]) & (document[1:] == document[:-1])
        if twice.any():
            first = int(np.argmax(twice))
            raise InputError(
                f"document {document[first]} occurs twice in {lang[first]}; "
                "each (language, document) pair must occur once: add up its parts first"
            )


def _finite(limits: tuple[Floats, Floats]) -> NDArray[np.bool_]:
    return np.isfinite(limits[0]) & np.isfinite(limits[1])
