"""The text of tokens as they come: whole characters only, and no beginning of what may become a stop string."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CONTEXT = 6
"""Tokens of the prompt that are read along: whether a word begins with a space depends on what is before it."""
UNFINISHED = "\ufffd"
"""What a decoder puts for bytes that are no character, or not yet."""


class Detokenizer:
    """Gives the text that each token adds. All pieces together are the text of all tokens."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt[-CONTEXT:])
        self._start, self._said = 0, len(self._ids)

    def add(self, token: int) -> str:
        """Returns what the token adds; nothing while a character is not whole."""
        self._ids.append(token)
        text = self._new()
        if text.endswith(UNFINISHED):
            return ""
        if text:
            self._start, self._said = self._said, len(self._ids)
        return text

    def rest(self) -> str:
        """Returns what was held back, after the last token."""
        text = self._new()
        self._start, self._said = self._said, len(self._ids)
        return text

    def _new(self) -> str:
        return self._decoded(self._ids[self._start :])[len(self._decoded(self._ids[self._start : self._said])) :]

    def _decoded(self, ids: list[int]) -> str:
        if not ids:
            return ""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


class Stopper:
    """Gives text on until a stop string comes, which is not given, nor what follows.

    >>> stopper = Stopper(["\\n\\n"])
    >>> stopper.add("one\\n"), stopper.add("two\\n"), stopper.add("\\nthree"), stopper.stopped
    ('one', '\\ntwo', '', True)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def add(self, text: str) -> str:
        """Returns what can be given on now."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((_begun(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def rest(self) -> str:
        """Returns what was held back, after the last text."""
        text, self._held = self._held, ""
        return text


def _begun(text: str, stop: str) -> int:
    """Returns how many characters at the end of the text begin the stop string."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
