"""How well a tokenizer serves each language: bytes per token, tokens for the same content, split characters.

Intervals are over documents: percentiles of the bootstrap of `LanguageFrame`, widened for few documents. Studentised
intervals have no bounds where only one or two documents contribute, as is often so for split characters.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from fairbits.core.array_checks import Floats
from fairbits.stats.frame import FrameSettings, LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits.text.language_codes import find_language

PRINTED = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
BYTE_LEVEL = {0x100 + i: byte for i, byte in enumerate(sorted(set(range(0x100)) - PRINTED))}
"""The bytes that characters stand for in the byte-level vocabulary of GPT-2 and its heirs; the rest are themselves."""
BYTES_ALONE = {chr(byte) for byte in range(0x100)}  # the vocabulary of ByT5: the 256 bytes and nothing else
BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")  # a byte in a vocabulary of SentencePiece


@dataclass(frozen=True)
class Tokenization:
    """How a tokenizer cuts the text of one language, without the special tokens it adds.

    `bytes_per_token`            Σ bytes of UTF-8 / Σ tokens: favours scripts with three bytes a character
    `tokens_per_sentence_ratio`  Σ tokens / Σ tokens of the same documents in the reference language; None where
                                 `no_ratio` gives the reason
    `fallback_share`             share of tokens that are not whole characters: bytes of a split character
    `unknown_share`              share of tokens that stand for text outside the vocabulary
    """

    bytes_per_token: Estimate
    tokens_per_sentence_ratio: Estimate | None
    fallback_share: Estimate
    unknown_share: Estimate
    tokens: int
    documents: int
    no_ratio: str | None = None

    @property
    def quality(self) -> Estimate | None:
        """T(λ) = Σ tokens of the reference / Σ tokens: 1 for the reference, 0.5 where a language takes twice as many.

        Theorem 4 (004-27) needs it and does not define it. By content, not bytes: Hindi has three bytes a character.
        """
        ratio = self.tokens_per_sentence_ratio
        return None if ratio is None else ratio.transform(lambda x: 1 / x)

    def as_data(self) -> dict[str, Any]:
        estimates = {name: value.to_dict() for name, value in vars(self).items() if isinstance(value, Estimate)}
        return {**asdict(self), **estimates, "quality": self.quality and self.quality.to_dict()}


def tokenization(
    documents: Mapping[str, Sequence[str]],
    tokenizer: Any,
    *,
    parallel: bool,
    reference: str = "eng_Latn",
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, Tokenization]:
    """Returns how the tokenizer cuts the documents of each language, by `reference` if these are `parallel`."""
    fallback = partial_characters(tokenizer)
    counts = {code: _counts(texts, tokenizer, fallback) for code, texts in documents.items()}
    base, no_ratio = find_language(reference, user_codes=documents).code, None
    if not parallel:
        no_ratio = "the documents are not parallel, so no two languages have the same content"
    elif base not in documents:
        no_ratio = f"the text does not have the reference language {base}"
    ratios = {}
    for code, count in counts.items():
        shares = {"bytes_per_token": count.bytes, "fallback_share": count.fallback, "unknown_share": count.unknown}
        ratios[code] = {name: (above, count.tokens) for name, above in shares.items()}
        if not no_ratio:
            ratios[code]["tokens_per_sentence_ratio"] = (count.tokens, counts[base].tokens)
    estimates = _estimates(ratios, confidence=confidence, seed=seed)
    return {
        code: Tokenization(
            **{"tokens_per_sentence_ratio": None, **estimates[code]},
            tokens=int(count.tokens.sum()),
            documents=len(count.tokens),
            no_ratio=no_ratio,
        )
        for code, count in counts.items()
    }


def partial_characters(tokenizer: Any) -> NDArray[np.bool_]:
    """Returns for each id of the vocabulary whether its piece splits a character: bytes that are not UTF-8 alone."""
    pieces, added = tokenizer.get_vocab(), tokenizer.get_added_vocab()
    alphabet = _alphabet(tokenizer, pieces.keys() - added.keys())
    partial = np.zeros(max(pieces.values()) + 1, dtype=np.bool_)
    for piece, index in pieces.items():
        if alphabet is None:
            byte = BYTE_PIECE.fullmatch(piece)
            partial[index] = byte is not None and int(byte[1], 16) >= 0x80
        else:
            partial[index] = piece not in added and _is_partial(piece.translate(alphabet))
    return partial


def _alphabet(tokenizer: Any, pieces: set[str]) -> Mapping[int, int] | None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return {} if pieces == BYTES_ALONE else None
    kinds = set()
    for part in (backend.normalizer, backend.pre_tokenizer, backend.decoder):
        if part is not None:
            json.loads(part.__getstate__(), object_hook=lambda part: kinds.add(part.get("type")))
    return BYTE_LEVEL if "ByteLevel" in kinds else None


def _is_partial(piece: str) -> bool:
    try:
        piece.encode("latin-1").decode()
    except UnicodeError as problem:  # what cannot be encoded is not in the alphabet of bytes: whole characters
        return isinstance(problem, UnicodeDecodeError)
    return False


class _Counts(NamedTuple):
    """The counts of each document of a language."""

    bytes: Floats
    tokens: Floats
    fallback: Floats
    unknown: Floats


def _counts(texts: Sequence[str], tokenizer: Any, fallback: NDArray[np.bool_]) -> _Counts:
    encoded = tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    tokens = np.array([len(ids) for ids in encoded])
    ids = np.fromiter(chain.from_iterable(encoded), dtype=np.int64, count=int(tokens.sum()))
    document = np.repeat(np.arange(len(texts)), tokens)

    def count(which: NDArray[np.bool_]) -> Floats:
        return np.bincount(document[which], minlength=len(texts)).astype(np.float64)

    unknown = -1 if tokenizer.unk_token_id is None else tokenizer.unk_token_id
    size = np.array([len(text.encode()) for text in texts], dtype=np.float64)
    return _Counts(size, tokens.astype(np.float64), count(fallback[ids]), count(ids == unknown))


def _estimates(
    ratios: Mapping[str, Mapping[str, tuple[Floats, Floats]]], *, confidence: float, seed: int
) -> dict[str, dict[str, Any]]:
    names, ids, values, weights = [], [], [], []
    for code, by_name in ratios.items():
        for name, (above, below) in by_name.items():
            names += [f"{code} {name}"] * len(above)
            ids += [f"{code} {document}" for document in range(len(above))]
            values.append(above)
            weights.append(below)
    sums = np.concatenate(values), np.concatenate(weights)
    settings: FrameSettings = {"unit": "ratio", "confidence": confidence, "seed": seed}
    frame = LanguageFrame(np.array(names), np.array(ids), values=sums[0], weights=sums[1], **settings)
    estimates = _percentiles(frame)
    return {code: {name: estimates[f"{code} {name}"] for name in by_name} for code, by_name in ratios.items()}


def _percentiles(frame: LanguageFrame) -> dict[str, Estimate]:
    """Returns each ratio with percentiles of its bootstrap as limits: never below 0, and inverted with the ratio.

    The level is Φ(t √(n/(n−1))), t the quantile of Student's distribution with n − 1 degrees of freedom, which corrects
    for few documents (the expanded percentile interval).
    """
    drawn = frame.replicates
    n = drawn.documents
    level = ndtr(stdtrit(n - 1, 0.5 + frame.confidence / 2) * np.sqrt(n / (n - 1)))
    result = {name: frame.language(name) for name in frame.languages if name not in drawn.languages}
    for i, name in enumerate(drawn.languages):
        # The ratio of a resample is value + deviation, up to rounding; a ratio of counts is at least 0.
        low, high = np.quantile(np.maximum(drawn.value[i] + drawn.deviation[:, i], 0.0), (1 - level[i], level[i]))
        value = float(drawn.value[i])
        result[name] = Estimate(value, min(low, value), max(high, value), int(n[i]), frame.confidence)
    return result
