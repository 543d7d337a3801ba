"""Records of documents: their checks, and how the records of two frames belong together."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairbits.checks import as_array, finite_array, nonnegative_array, same_shape
from fairbits.errors import InputError

if TYPE_CHECKING:
    from fairbits.stats.frame import LanguageFrame


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
