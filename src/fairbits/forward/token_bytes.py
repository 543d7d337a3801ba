"""The bytes of a document that each of its tokens stands for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fairbits.core.array_checks import Floats

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, eq=False)
class EncodedDocument:
    """The token ids of a document and the bytes of each token; None if the tokenizer does not report spans."""

    ids: list[int]
    token_bytes: Floats | None


def document_encoder(tokenizer: "PreTrainedTokenizerBase") -> Callable[[list[str]], list[EncodedDocument]]:
    """Returns the function that encodes documents without special tokens; only "fast" tokenizers report spans."""
    has_spans = bool(getattr(tokenizer, "is_fast", False))

    def encode(documents: list[str]) -> list[EncodedDocument]:
        options = {"return_offsets_mapping": True} if has_spans else {}
        encoded = tokenizer(documents, add_special_tokens=False, verbose=False, **options)
        if not has_spans:
            return [EncodedDocument(ids, None) for ids in encoded["input_ids"]]
        rows = zip(documents, encoded["input_ids"], encoded["offset_mapping"], strict=True)
        return [EncodedDocument(ids, bytes_by_token(document, spans)) for document, ids, spans in rows]

    return encode


def bytes_by_token(document: str, spans: Sequence[tuple[int, int]]) -> Floats:
    """Returns the bytes of UTF-8 of every token, given its span of characters; together they are the whole document.

    A character that several tokens share, such as the pieces of a byte-level vocabulary, is divided equally among
    them. A character of no token, such as a space that the tokenizer drops, belongs to the next token, and at the end
    to the last one. A token without characters shares the next one.
    """
    if not document or not spans:
        return np.zeros(len(spans))
    points = np.frombuffer(document.encode("utf-32-le"), dtype=np.uint32)
    size = 1.0 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
    begin, end = np.array(spans, dtype=np.intp).T.clip(0, len(size))
    begin = np.minimum(begin, len(size) - 1)
    end = np.maximum(end, begin + 1)
    reached = np.maximum.accumulate(np.concatenate([[0], end]))
    begin = np.minimum(begin, reached[:-1])
    if reached[-1] < len(size):
        end[-1] = len(size)
    tokens = np.cumsum(
        np.bincount(begin, minlength=len(size) + 1) - np.bincount(end, minlength=len(size) + 1), dtype=np.intp
    )
    before = np.concatenate([[0.0], np.cumsum(size / tokens[:-1])])
    result: Floats = before[end] - before[begin]
    return result
