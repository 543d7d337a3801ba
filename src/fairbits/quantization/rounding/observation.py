"""Observation of a model's linear maps while batches of text pass: which positions hold text, and in which language."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from fairbits.checks import Floats
from fairbits.measure.passes.batches import Batch
from fairbits.measure.passes.text import Text
from fairbits.model.architecture import Weight


@dataclass(frozen=True, eq=False)
class TextLanguages:
    """The languages of a text.

    `language_of`  the index of the language of each document
    `positions`    by stack, how many positions of text each language has
    `pi`           the weight π of each language
    """

    languages: tuple[str, ...]
    language_of: Tensor
    positions: Mapping[str, Floats]
    pi: Floats

    @classmethod
    def of(cls, text: Text, weights: Mapping[str, float]) -> "TextLanguages":
        """Returns the languages of a text with the weights of a plan; a language without one has weight 0."""
        language_of = text.language_of
        counts = {stack: np.zeros(len(text.languages)) for stack in ("main", "encoder")}
        for window in text.windows:
            counts["main"][language_of[window.document]] += sum(window.main.text)
            counts["encoder"][language_of[window.document]] += window.encoder_text
        pi = np.array([weights.get(code, 0.0) for code in text.languages])
        return cls(text.languages, torch.from_numpy(language_of), counts, pi)

    def positions_in(self, stack: str) -> Floats:
        """Returns how many positions of text each language has in a stack; without an encoder, in the main one."""
        encoder = self.positions["encoder"]
        return encoder if stack == "encoder" and encoder.any() else self.positions["main"]


class ObservedBatch:
    """The batch that passes through the model now: which of its positions hold text, and of which document.

    Observers add up over languages by matrix products with one-hot languages: index_add_ would add in a different
    order each time on a GPU, and results would differ from run to run.
    """

    def start(self, batch: Batch) -> None:
        """Makes this the batch that passes now."""
        self.passed: set[str] = set()
        self._batch = batch
        self._text: dict[str, tuple[int, Tensor, Tensor]] = {}
        self._indices: dict[tuple[str, int], Tensor] = {}

    def text_of(self, x: Tensor, stack: str, every: int = 1) -> Tensor | None:
        """Returns the positions of text of activations, (positions, width); None if they are not those of the batch.

        Only one in `every` positions is returned.
        """
        total, at, _ = self._positions(stack)
        flat = x.reshape(-1, x.shape[-1])
        if len(flat) != total:
            return None
        if (stack, every) not in self._indices:
            self._indices[stack, every] = at[::every].to(x.device)
        return flat.index_select(0, self._indices[stack, every]).float()

    def document(self, stack: str, every: int = 1) -> Tensor:
        """Returns the document of each position that `text_of` returns."""
        return self._positions(stack)[2][::every]

    def documents(self, stack: str) -> Tensor:
        """Returns the document of every position, -1 where there is no text."""
        total, at, document = self._positions(stack)
        found = torch.full((total,), -1, dtype=document.dtype)
        found[at] = document
        return found

    def _positions(self, stack: str) -> tuple[int, Tensor, Tensor]:
        """Returns the number of positions, those that hold text, and the document of each of these."""
        if stack not in self._text:
            text = self._batch.positions(stack).text
            at = text.flatten().nonzero()[:, 0]
            self._text[stack] = text.numel(), at, self._batch.document[at // text.shape[1]]
        return self._text[stack]


@contextmanager
def removed_hooks() -> Iterator[list[RemovableHandle]]:
    """Gives a list for the handles of hooks, which are all removed in the end."""
    handles: list[RemovableHandle] = []
    try:
        yield handles
    finally:
        for handle in handles:
            handle.remove()


def stack_of(weight: Weight) -> str:
    """Returns the stack whose positions a linear map sees."""
    return "encoder" if weight.sees == "encoder_output" else weight.stack


def first_tensor(values: Iterable[Any]) -> Tensor:
    """Returns the first tensor among the arguments of a module."""
    return next(each for each in values if isinstance(each, Tensor))
