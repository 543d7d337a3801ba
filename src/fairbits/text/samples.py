"""Samples: texts of a given number of tokens, cut from the documents of one language."""

import hashlib
import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fairbits.core.errors import InputError

TokenCounter = Callable[[str], int]  # counts the tokens of a text, including those that the tokenizer adds at the ends

TokenEnds = Callable[[str], Sequence[int]]
"""Returns where each token of a text ends, in characters, without the tokens that the tokenizer adds."""

STARTS = 16  # starting points that are tried for a sample of the wanted length, each one word later
LONGEST_WORD = 16
"""The rest of a cut word is skipped up to this many characters; a longer run without white space is not a word."""


def token_counter(tokenizer: Any) -> TokenCounter:
    """Returns the function that counts tokens as every tool does that calls `tokenizer(text)`."""

    def count(text: str) -> int:
        try:
            return len(tokenizer(text, verbose=False)["input_ids"])
        except TypeError:
            raise InputError(
                f"tokenizer is a {type(tokenizer).__name__}; it must be a tokenizer of transformers, which gives "
                "`input_ids` for a text"
            ) from None

    return count


def token_ends(tokenizer: Any) -> TokenEnds | None:
    """Returns the function that finds where tokens end; None for a tokenizer in Python, which has no offsets."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    return lambda text: [end for _, end in backend.encode(text, add_special_tokens=False).offsets]


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Returns the SHA-256 of everything that decides how a tokenizer cuts a text; padding and truncation do not."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        state = json.loads(backend.to_str()) | {"truncation": None, "padding": None}
    else:
        state = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def cut_samples(
    documents: Iterable[str], length: int, *, count: TokenCounter, ends: TokenEnds | None = None
) -> Iterator[tuple[str, int]]:
    """Yields samples of `length` tokens with their number of tokens; documents follow each other, one per line.

    A sample has `length` tokens when it is tokenized by itself, or the most below that if no cut gives `length`. It
    has no white space at its ends, begins with a whole word where the script has spaces, and never ends between a
    character and its marks. The rest at the end is not used. `ends` only saves time.
    """
    added = count("")
    cutter = _Cutter(length, added, count, ends)
    text, start, pending, reach = "", 0, 0, 4 * length
    for document in documents:
        text, start = (f"{text[start:]}\n{document}" if start < len(text) else document), 0
        pending += count(document) - added
        # The counts of single documents add up to only about the count of the whole, hence the margin.
        while pending >= 0.9 * (length - added) and (piece := cutter.next_piece(text, start, reach)):
            yield text[piece.start : piece.end], piece.tokens
            start = next_start(text, piece.end)
            pending -= piece.tokens - added
            reach = 5 * (piece.end - piece.start) // 4 + 16  # the next one will be about as long


def next_start(text: str, position: int) -> int:
    """Returns where the first whole word from a position on begins; the position itself in a script without spaces."""
    if position > 0 and not text[position - 1].isspace():
        cut = _word_end(text, position)
        position = next((i for i in range(cut, min(cut + LONGEST_WORD, len(text))) if not _is_mark(text[i])), cut)
    while position < len(text) and text[position].isspace():
        position += 1
    return position


class _Piece(NamedTuple):
    """A part of a text, and the number of tokens it has by itself."""

    start: int
    end: int
    tokens: int


@dataclass(frozen=True)
class _Cutter:
    """Cuts pieces of `length` tokens; looks at `reach` characters first, as huge documents take long."""

    length: int
    added: int
    count: TokenCounter
    ends: TokenEnds | None

    def next_piece(self, text: str, start: int, reach: int) -> _Piece | None:
        best: _Piece | None = None
        for _ in range(STARTS):
            piece = self._cut_at_token(text, start, reach) or self._search(text, start, reach)
            if piece is None:  # the next document brings more text
                return None
            if best is None or piece.tokens > best.tokens:
                best = piece
            if best.tokens == self.length:
                break
            start = next_start(text, start + 1)
        return best

    def _cut_at_token(self, text: str, start: int, reach: int) -> _Piece | None:
        if self.ends is None:
            return None
        wanted = self.length - self.added
        ends = self.ends(text[start : start + reach])
        while len(ends) <= wanted and start + reach < len(text):
            reach *= 2
            ends = self.ends(text[start : start + reach])
        while 0 < wanted < len(ends) and ends[wanted] == ends[wanted - 1]:  # inside a character of several tokens
            wanted -= 1
        if not 0 < wanted < len(ends):
            return None
        end = _clean_end(text, start, start + ends[wanted - 1])
        tokens = self.count(text[start:end])
        return _Piece(start, end, tokens) if tokens <= self.length else None

    def _search(self, text: str, start: int, reach: int) -> _Piece | None:
        length = self.length
        low, low_tokens = start, self.added
        while True:
            high = min(start + reach, len(text))
            high_tokens = self.count(text[start : _clean_end(text, start, high)])
            if high_tokens > length:
                break
            if high == len(text):
                return _Piece(start, _clean_end(text, start, high), length) if high_tokens == length else None
            low, low_tokens, reach = high, high_tokens, 2 * reach
        bisect = False
        while high - low > 1:  # alternate interpolation, which is fast, and bisection, which always ends
            part = 0.5 if bisect else (length - low_tokens) / (high_tokens - low_tokens)
            middle = min(max(low + round(part * (high - low)), low + 1), high - 1)
            bisect = not bisect
            tokens = self.count(text[start : _clean_end(text, start, middle)])
            if tokens == length:
                end = _clean_end(text, start, middle)
                finished = _word_end(text, end)  # the rest of the last word, if that adds no token
                return _Piece(start, finished if self.count(text[start:finished]) == length else end, length)
            if tokens < length:
                low, low_tokens = middle, tokens
            else:
                high, high_tokens = middle, tokens
        return _Piece(start, _clean_end(text, start, low), low_tokens)


def _word_end(text: str, position: int) -> int:
    word = text[position : position + LONGEST_WORD]
    return position + next((i for i, character in enumerate(word) if character.isspace()), 0)


def _clean_end(text: str, start: int, end: int) -> int:
    clean = end
    while start < clean < len(text) and _is_mark(text[clean]):
        clean -= 1
    while clean > start and text[clean - 1].isspace():
        clean -= 1
    return clean if clean > start else end  # nothing but marks: separating them is better than no progress


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")
