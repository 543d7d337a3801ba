"""Decoding of a batch: rows of one overlay together, each ending and telling its text by itself."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairbits.overlays.generation import Prompt, generate_batch, settings_for
from fairbits.serve.choice import Piece, Row
from fairbits.serve.text import Detokenizer, Stopper

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Writing:
    """The text of one row in the making."""

    def __init__(self, row: Row, tokenizer: "PreTrainedTokenizerBase", ends: frozenset[int]) -> None:
        self.row = row
        self.done = False
        self._ends = ends
        self._detokenizer = Detokenizer(tokenizer, row.prompt)
        self._stopper = Stopper(row.stops)
        self._texts: list[str] = []

    def add(self, token: int) -> None:
        """Takes the next token, and tells what it adds."""
        row = self.row
        row.tokens += 1
        ended = token in self._ends
        text = "" if ended else self._stopper.add(self._detokenizer.add(token))
        if ended or row.tokens >= row.max_tokens:
            text += self._stopper.add(self._detokenizer.rest()) + self._stopper.rest()
        if ended or self._stopper.stopped:
            self._say(text, "stop")
        elif row.tokens >= row.max_tokens:
            self._say(text, "length")
        else:
            self._say(text, None)

    def _say(self, text: str, reason: str | None) -> None:
        self.done = reason is not None
        if self.row.streamed:
            if text or reason:
                self.row.tell(Piece(text, reason))
            return
        self._texts.append(text)
        if reason:
            self.row.tell(Piece("".join(self._texts), reason))


class Watch:
    """A stopping criterion of transformers: it sees every step, hands tokens out, and ends rows one by one."""

    def __init__(self, rows: Sequence[Writing], *, halted: Callable[[], bool], first: Callable[[float], None]) -> None:
        self._rows, self._halted, self._first = rows, halted, first

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:  # noqa: ARG002 (as transformers calls it)
        """Returns which rows are at their end."""
        halted = self._halted()
        for writing, token in zip(self._rows, input_ids[:, -1].tolist(), strict=True):
            if writing.done or writing.row.cancelled or halted:
                continue
            if writing.row.tokens == 0:
                self._first(perf_counter() - writing.row.arrived)
            writing.add(token)
        ended = [halted or writing.done or writing.row.cancelled for writing in self._rows]
        return torch.tensor(ended, device=input_ids.device)


def decode(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    rows: Sequence[Row],
    *,
    halted: Callable[[], bool],
    first: Callable[[float], None],
) -> None:
    """Decodes rows of one kind together; `halted` ends them all, `first` is told the time to each first token."""
    from transformers import StoppingCriteriaList

    settings = settings_for(model, tokenizer, _options(rows), seed=rows[0].sampling.seed)
    writings = [Writing(row, tokenizer, settings.ends) for row in rows]
    watch: Any = Watch(writings, halted=halted, first=first)
    watched = replace(settings, options={**settings.options, "stopping_criteria": StoppingCriteriaList([watch])})
    generate_batch(model, tokenizer, [Prompt(i, "", row.prompt) for i, row in enumerate(rows)], watched)


def _options(rows: Sequence[Row]) -> dict[str, Any]:
    """Returns the options of `generate` for rows of one kind; what the model itself says on drawing does not count."""
    sampling, most = rows[0].sampling, max(row.max_tokens for row in rows)
    if sampling.temperature == 0:
        return {"do_sample": False, "num_beams": 1, "max_new_tokens": most}
    drawn = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
    return {"do_sample": True, "num_beams": 1, "max_new_tokens": most, **drawn}
