"""Texts of exactly so many tokens, cut from the documents of one language."""

import hashlib
import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fairbits.errors import InputError

Count = Callable[[str], int]
"""How many tokens a text has for a model, those included that its tokenizer adds at the ends."""

Ends = Callable[[str], Sequence[int]]
"""After which character each token of a text ends, without the tokens that the tokenizer adds."""

STARTS = 16
"""How many beginnings are tried, each one word later, for a text of the wanted length."""
LONGEST_WORD = 16
"""The rest of a cut word, up to so many characters, is left out; without white space by then it is no word."""


def token_count(tokenizer: Any) -> Count:
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


def token_ends(tokenizer: Any) -> Ends | None:
    """Returns the function that tells where tokens end; None for a tokenizer in Python, which does not know it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    return lambda text: [end for _, end in backend.encode(text, add_special_tokens=False).offsets]


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Returns the SHA-256 of all that decides how a tokenizer cuts a text, but not how it pads or truncates."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        state = json.loads(backend.to_str()) | {"truncation": None, "padding": None}
    else:
        state = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def pack(documents: Iterable[str], length: int, *, count: Count, ends: Ends | None = None) -> Iterator[tuple[str, int]]:
    """Yields texts of `length` tokens, made of documents in their order, one per line, with their number of tokens.

    Each text counts `length` tokens when it is tokenized anew: that is what decides where it is cut. It has no
    white space at its ends, begins with a whole word where the script has spaces, and never ends inside a character
    with its marks. Where no cut gives `length` tokens, as one character can be several of them, the text is the
    longest below. What is left at the end, less than `length` tokens, is not used. `ends` only saves time.
    """
    added = count("")
    cutter = _Cutter(length, added, count, ends)
    text, start, held, reach = "", 0, 0, 4 * length
    for document in documents:
        text, start = (f"{text[start:]}\n{document}" if start < len(text) else document), 0
        held += count(document) - added
        # Documents counted one by one sum up to about the count of their whole, hence the margin.
        while held >= 0.9 * (length - added) and (piece := cutter.next_piece(text, start, reach)):
            yield text[piece.start : piece.end], piece.tokens
            start = next_start(text, piece.end)
            held -= piece.tokens - added
            reach = 5 * (piece.end - piece.start) // 4 + 16  # the next one will be about as long


def next_start(text: str, position: int) -> int:
    """Returns where the first whole word begins at or after a position; the position itself in a script without spaces.

    >>> next_start("born free and equal", 7), next_start("born free", 4)
    (10, 5)
    """
    if position > 0 and not text[position - 1].isspace():
        cut = _word_end(text, position)
        position = next((i for i in range(cut, min(cut + LONGEST_WORD, len(text))) if not _is_mark(text[i])), cut)
    while position < len(text) and text[position].isspace():
        position += 1
    return position


class _Piece(NamedTuple):
    """Part of a text, and how many tokens it counts by itself."""

    start: int
    end: int
    tokens: int


@dataclass(frozen=True)
class _Cutter:
    """Cuts texts of `length` tokens, of which the tokenizer adds `added`.

    `reach` is how many characters are looked at first: a huge document must not be tokenized whole for each piece.
    """

    length: int
    added: int
    count: Count
    ends: Ends | None

    def next_piece(self, text: str, start: int, reach: int) -> _Piece | None:
        """The next piece, at best of `length` tokens; None if there are not so many left."""
        best: _Piece | None = None
        for _ in range(STARTS):
            piece = self._cut_at_token(text, start, reach) or self._search(text, start, reach)
            if piece is None:  # more documents give more to choose from
                return None
            if best is None or piece.tokens > best.tokens:
                best = piece
            if best.tokens == self.length:
                break
            start = next_start(text, start + 1)
        return best

    def _cut_at_token(self, text: str, start: int, reach: int) -> _Piece | None:
        """The piece from `start` to the end of a token; None if that is not known or too long when counted anew."""
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
        """The longest piece from `start` of up to `length` tokens; None if there are not so many left."""
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
        while high - low > 1:  # by turns in proportion, which is fast, and in halves, which is sure
            part = 0.5 if bisect else (length - low_tokens) / (high_tokens - low_tokens)
            middle = min(max(low + round(part * (high - low)), low + 1), high - 1)
            bisect = not bisect
            tokens = self.count(text[start : _clean_end(text, start, middle)])
            if tokens == length:
                return self._with_whole_word(text, start, _clean_end(text, start, middle))
            if tokens < length:
                low, low_tokens = middle, tokens
            else:
                high, high_tokens = middle, tokens
        return _Piece(start, _clean_end(text, start, low), low_tokens)

    def _with_whole_word(self, text: str, start: int, end: int) -> _Piece:
        """The piece with the rest of its last word, if that costs no token."""
        finished = _word_end(text, end)
        return _Piece(start, finished if self.count(text[start:finished]) == self.length else end, self.length)


def _word_end(text: str, position: int) -> int:
    """Where the word at the position ends; the position itself in a script without spaces."""
    word = text[position : position + LONGEST_WORD]
    return position + next((i for i, character in enumerate(word) if character.isspace()), 0)


def _clean_end(text: str, start: int, end: int) -> int:
    """The last end up to `end` that parts no marks from their character and leaves no white space."""
    clean = end
    while start < clean < len(text) and _is_mark(text[clean]):
        clean -= 1
    while clean > start and text[clean - 1].isspace():
        clean -= 1
    return clean if clean > start else end  # marks without end: better to part them than not to get on


def _is_mark(character: str) -> bool:
    """Whether a character belongs to the one before it, as an accent or a vowel sign."""
    return unicodedata.category(character).startswith("M")
