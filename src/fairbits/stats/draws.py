"""Draws: the resamples of every language of a frame, its limits, and why some languages have no interval.

Records of documents: their checks, and how the records of two frames belong together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairbits.core.array_checks import Floats, as_array, finite_array, nonnegative_array
from fairbits.core.checks import same_shape
from fairbits.core.errors import InputError, count_of
from fairbits.stats.intervals import Estimate, marginal
from fairbits.stats.resample import (
    LEAST_DOCUMENTS,
    EmptyResampleError,
    Replicates,
    generator,
    link_languages,
    replicate,
    replicates_of_none,
    select_languages,
)

if TYPE_CHECKING:
    from fairbits.stats.frame import LanguageFrame


@dataclass(frozen=True, eq=False)
class Draws:
    """What the intervals of a frame are computed from.

    `values` and `documents` are the damage and the number of documents of every language. `replicates` are those of the
    languages with enough documents, and `refused` has the reasons why the others have none.
    """

    values: dict[str, float]
    documents: dict[str, int]
    replicates: Replicates
    refused: dict[str, str]
    confidence: float

    def plain(self, lang: str) -> Estimate:
        """Returns the damage of a language without an interval."""
        return Estimate.without_interval(self.values[lang], self.documents[lang], self.confidence)

    @cached_property
    def limits(self) -> tuple[Floats, Floats]:
        """The bootstrap-t limits of every language of `replicates`; infinite where an interval is unbounded."""
        return marginal(self.replicates, self.confidence)

    @cached_property
    def bounded(self) -> Replicates:
        """The replicates of the languages that have an interval."""
        finite = _finite(self.limits)
        return self.replicates if finite.all() else select_languages(self.replicates, np.flatnonzero(finite))

    @cached_property
    def without_interval(self) -> dict[str, str]:
        """The languages for which no interval can be formed, and the reason for each."""
        unbounded = set(self.replicates.languages) - set(self.bounded.languages)
        reasons = self.refused | {lang: few_varying(self.documents[lang]) for lang in unbounded}
        return {lang: reasons[lang] for lang in self.values if lang in reasons}


def draw_languages(frame: "LanguageFrame") -> Draws:
    """Returns the draws of a frame.

    Languages with few documents are left out before documents are linked, so that they do not affect the others.
    """
    values, documents = _values_and_documents(frame)
    refused = {lang: few_documents(n) for lang, n in documents.items() if n < LEAST_DOCUMENTS}
    kept = [lang for lang in documents if lang not in refused]
    while kept:
        rows = np.flatnonzero(np.isin(frame.lang, kept))
        try:
            found = _replicate(frame, rows, kept, values=[frame.values[rows]])
            return Draws(values, documents, found, refused, frame.confidence)
        except EmptyResampleError as problem:
            kept.remove(problem.language)
            refused[problem.language] = few_common(documents[problem.language], problem.documents)
    return Draws(values, documents, replicates_of_none(frame.resamples), refused, frame.confidence)


def draw_jointly(frame: "LanguageFrame", rows: NDArray[np.intp], *, others: Floats) -> Replicates:
    """Returns replicates of a frame's languages twice: with its own values at `rows`, and with those of another frame.

    Languages that have no interval in one of the two are left out.
    """
    kept = frame.replicates.languages
    if not kept:
        return frame.replicates
    own = np.isin(frame.lang[rows], kept)
    joint = _replicate(frame, rows[own], kept, values=[frame.values[rows][own], others[own]])
    finite = _finite(marginal(joint, frame.confidence)).reshape(2, -1).all(axis=0)
    return select_languages(joint, np.flatnonzero(np.tile(finite, 2)))


def _values_and_documents(frame: "LanguageFrame") -> tuple[dict[str, float], dict[str, int]]:
    """Returns the damage and the number of documents of each language."""
    code = np.unique(frame.lang, return_inverse=True)[1]
    values, weights = (np.bincount(code, weights=each) for each in (frame.values, frame.weights))
    if (weights <= 0).any():
        empty = frame.languages[int(np.argmin(weights))]
        raise InputError(f"the weights of {empty} sum to 0; they must be positive")
    found, documents = (values / weights).tolist(), np.bincount(code).tolist()
    return dict(zip(frame.languages, found, strict=True)), dict(zip(frame.languages, documents, strict=True))


def _replicate(
    frame: "LanguageFrame", rows: NDArray[np.intp], kept: Sequence[str], *, values: Sequence[Floats]
) -> Replicates:
    """Returns the replicates of these rows, once for each of `values`: the languages then come several times."""
    lang = np.unique(frame.lang[rows], return_inverse=True)[1]
    document = np.unique(frame.document[rows], return_inverse=True)[1]
    times = len(values)
    linked = link_languages(
        np.concatenate([lang + i * len(kept) for i in range(times)]),
        np.tile(document, times),
        values=np.concatenate(values),
        weights=np.tile(frame.weights[rows], times),
    )
    return replicate(linked, tuple(kept) * times, resamples=frame.resamples, rng=generator(frame.seed))


def _finite(limits: tuple[Floats, Floats]) -> NDArray[np.bool_]:
    return np.isfinite(limits[0]) & np.isfinite(limits[1])


def order_of(lang: NDArray[np.str_], document: NDArray[np.generic]) -> NDArray[np.intp]:
    """Returns the order of the records by language and document."""
    return np.lexsort((document, lang))


def check_records(lang: ArrayLike, document: ArrayLike, *, values: ArrayLike, weights: ArrayLike) -> dict[str, Any]:
    """Returns copies of the records that cannot be changed, by name, if they can be those of a frame."""
    codes, ids = as_array("lang", lang), as_array("document", document)
    if codes.ndim != 1 or codes.dtype.kind != "U" or codes.size == 0:
        raise InputError(f"lang is {codes.dtype} of shape {codes.shape}; it must be a vector of language codes")
    if ids.ndim != 1 or ids.dtype.kind not in "Uiu":
        raise InputError(f"document is {ids.dtype} of shape {ids.shape}; it must be a vector of ids")
    numbers = finite_array("values", values, ndim=1)
    sizes = nonnegative_array("weights", weights, ndim=1)
    found = {"lang": codes.copy(), "document": ids.copy(), "values": numbers.copy(), "weights": sizes.copy()}
    for name, array in found.items():
        same_shape(name, array.shape, "the shape of lang", codes.shape)
        array.flags.writeable = False
    _refuse_duplicates(codes, ids)
    return found


def pair_records(one: "LanguageFrame", other: "LanguageFrame") -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Returns the orders that align the records of two frames; they must hold the same documents and weights."""
    mine, theirs = order_of(one.lang, one.document), order_of(other.lang, other.document)
    if one.unit != other.unit:
        raise InputError(f"units are {one.unit} and {other.unit}; both frames must have the same unit")
    if len(mine) != len(theirs) or not (
        np.array_equal(one.lang[mine], other.lang[theirs])
        and np.array_equal(one.document[mine], other.document[theirs])
    ):
        here = set(zip(one.lang.tolist(), one.document.tolist(), strict=True))
        there = set(zip(other.lang.tolist(), other.document.tolist(), strict=True))
        example = sorted(here ^ there, key=str)[0]
        raise InputError(
            f"the frames differ in documents ({len(here - there)} only here, {len(there - here)} only "
            f"there, such as {example}); a paired contrast needs the same documents: keep the common ones"
        )
    if not np.allclose(one.weights[mine], other.weights[theirs], rtol=1e-9, atol=0):
        raise InputError(
            "the frames weigh the same documents differently; sizes must agree for a contrast: measure both again"
        )
    return mine, theirs


def _refuse_duplicates(lang: NDArray[np.str_], document: NDArray[np.generic]) -> None:
    """Raises if a document occurs twice in a language."""
    order = order_of(lang, document)
    lang, document = lang[order], document[order]
    twice = (lang[1:] == lang[:-1]) & (document[1:] == document[:-1])
    if twice.any():
        first = int(np.argmax(twice))
        raise InputError(
            f"document {document[first]} occurs twice in {lang[first]}; "
            "each (language, document) pair must occur once: add up its parts first"
        )


def few_documents(documents: int) -> str:
    """Returns the reason why a language with few documents has no interval.

    >>> few_documents(1)
    '1 document; an interval needs at least 5'
    """
    return f"{count_of(documents, 'document')}; an interval needs at least {LEAST_DOCUMENTS}"


def few_common(documents: int, common: int) -> str:
    """Returns the reason for a language with few of the documents that it is resampled with."""
    return f"it has {documents} of the {common} documents that it is resampled with, which is too few"


def few_varying(documents: int) -> str:
    """Returns the reason for a language whose interval is unbounded."""
    return f"its {documents} documents vary too little: the interval is unbounded"
