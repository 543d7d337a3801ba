"""Texts of exactly so many tokens, cut from the documents of one language."""

import hashlib
import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fairbits.errors import InputError

Count = Callable[[str], int]
"""How many tokens a text has for a model, those included that its tokenizer adds at the ends."""

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


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Returns the SHA-256 of all that decides how a tokenizer cuts a text, but not how it pads or truncates."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        state = json.loads(backend.to_str()) | {"truncation": None, "padding": None}
    else:
        state = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def pack(documents: Iterable[str], length: int, *, count: Count) -> Iterator[tuple[str, int]]:
    """Yields texts of `length` tokens, made of documents in their order, one per line, with their number of tokens.

    Each text counts `length` tokens when it is tokenized anew: that is what decides where it is cut. It has no
    white space at its ends, begins with a whole word where the script has spaces, and never ends inside a character
    with its marks. Where no cut gives `length` tokens, as one character can be several of them, the text is the
    longest below. What is left at the end, less than `length` tokens, is not used.
    """
    added = count("")
    text, start, held = "", 0, 0
    for document in documents:
        text, start = (f"{text[start:]}\n{document}" if start < len(text) else document), 0
        held += count(document) - added
        # Documents counted one by one sum up to about the count of their whole, hence the margin.
        while held >= 0.9 * (length - added) and (found := _find(text, start, length=length, count=count)):
            begin, end, tokens = found
            yield text[begin:end], tokens
            start = next_start(text, end)
            held -= tokens - added


def next_start(text: str, position: int) -> int:
    """Returns where the first whole word begins at or after a position; the position itself in a script without spaces.

    >>> next_start("born free and equal", 7), next_start("born free", 4)
    (10, 5)
    """
    if position > 0 and not text[position - 1].isspace():
        position = _word_end(text, position)
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _find(text: str, start: int, *, length: int, count: Count) -> tuple[int, int, int] | None:
    """Start, end and tokens of the next text, at best of `length` tokens; None if there are not so many left."""
    best: tuple[int, int, int] | None = None
    for _ in range(STARTS):
        found = _search(text, start, length=length, count=count)
        if found is None:  # more documents give more to choose from
            return None
        if best is None or found[1] > best[2]:
            best = start, *found
        if best[2] == length:
            break
        start = next_start(text, start + 1)
    return best


def _search(text: str, start: int, *, length: int, count: Count) -> tuple[int, int] | None:
    """End and tokens of the longest text from `start` of up to `length` tokens; None if there are not so many left."""
    low, low_tokens, reach = start, count(""), 4 * length
    while True:  # the reach grows so that a huge document is not tokenized whole for each text
        high = min(start + reach, len(text))
        high_tokens = count(text[start : _clean_end(text, high)])
        if high_tokens > length:
            break
        if high == len(text):
            return (_clean_end(text, high), length) if high_tokens == length else None
        low, low_tokens, reach = high, high_tokens, 2 * reach
    bisect = False
    while high - low > 1:  # by turns in proportion, which is fast, and in halves, which is sure
        part = 0.5 if bisect else (length - low_tokens) / (high_tokens - low_tokens)
        middle = min(max(low + round(part * (high - low)), low + 1), high - 1)
        bisect = not bisect
        tokens = count(text[start : _clean_end(text, middle)])
        if tokens == length:
            end = _clean_end(text, middle)
            finished = _word_end(text, end)
            return (finished if count(text[start:finished]) == length else end), length
        if tokens < length:
            low, low_tokens = middle, tokens
        else:
            high, high_tokens = middle, tokens
    return _clean_end(text, low), low_tokens


def _word_end(text: str, position: int) -> int:
    """Where the word at the position ends; the position itself in a script without spaces."""
    word = text[position : position + LONGEST_WORD]
    return position + next((i for i, character in enumerate(word) if character.isspace()), 0)


def _clean_end(text: str, end: int) -> int:
    """The nearest end that parts no marks from their character and leaves no white space."""
    while end < len(text) and unicodedata.category(text[end]).startswith("M"):
        end += 1
    while end > 0 and text[end - 1].isspace():
        end -= 1
    return end
