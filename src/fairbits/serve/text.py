"""The text of tokens as they come: only complete characters, and nothing that may begin a stop string."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CONTEXT = 6
"""Tokens of the prompt that are decoded as well: whether a word begins with a space depends on what precedes it."""
INCOMPLETE = "\ufffd"
"""What a decoder writes for bytes that are not, or not yet, a character."""


class Detokenizer:
    """Returns the text that each token adds. All pieces together are the text of all tokens."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt[-CONTEXT:])
        self._start, self._emitted = 0, len(self._ids)

    def add(self, token: int) -> str:
        """Returns the text that the token adds; nothing while a character is incomplete."""
        self._ids.append(token)
        text = self._new_text()
        if text.endswith(INCOMPLETE):
            return ""
        if text:
            self._start, self._emitted = self._emitted, len(self._ids)
        return text

    def flush(self) -> str:
        """Returns the text that was held back, after the last token."""
        text = self._new_text()
        self._start, self._emitted = self._emitted, len(self._ids)
        return text

    def _new_text(self) -> str:
        return self._decode(self._ids[self._start :])[len(self._decode(self._ids[self._start : self._emitted])) :]

    def _decode(self, ids: list[int]) -> str:
        if not ids:
            return ""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


class StopFilter:
    """Passes text on until a stop string comes; neither the stop string nor what follows is passed on.

    >>> stop = StopFilter(["\\n\\n"])
    >>> stop.add("one\\n"), stop.add("two\\n"), stop.add("\\nthree"), stop.stopped
    ('one', '\\ntwo', '', True)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def add(self, text: str) -> str:
        """Returns the text that can be passed on now."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Returns the text that was held back, after the last text."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Returns how many characters at the end of the text begin the stop string."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
