"""Decoding: choices of one overlay in a batch, each with its own end, and their tokens as text."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairbits.serve.overlays.adaptive_model import Choice
from fairbits.serve.overlays.generation import Prompt, decode_text, generate_batch, settings_for
from fairbits.serve.server.request import Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CONTEXT = 6
"""Tokens of the prompt that are decoded as well: whether a word begins with a space depends on what precedes it."""
INCOMPLETE = "\ufffd"  # what a decoder writes for bytes that are not, or not yet, a character


@dataclass(frozen=True)
class TextChunk:
    """Text that is added to a choice; `finish_reason` comes with the last chunk."""

    text: str
    finish_reason: str | None = None


@dataclass(frozen=True)
class Failure:
    """A choice that could not be decoded through no fault of its client; `stopping`: because the server stops."""

    stopping: bool = False


ChoiceEvent = tuple[int, TextChunk | Failure]  # the index of a choice, and what happened to it


@dataclass(eq=False)
class PendingChoice:
    """One choice of a request. The decoding thread writes `tokens`; any thread may set `cancelled`.

    `emit` receives chunks as they come if `stream`, else one chunk with all the text; called by another thread.
    """

    index: int
    prompt: tuple[int, ...]
    served: Choice
    max_tokens: int
    stops: tuple[str, ...]
    sampling: Sampling
    stream: bool
    emit: Callable[[ChoiceEvent], None]
    tokens: int = 0
    cancelled: bool = False
    arrived_at: float = field(default_factory=perf_counter)

    @property
    def batch_key(self) -> Hashable:
        """What choices must share to be decoded together; one with a seed is decoded alone, to be reproducible."""
        overlay, sampling = self.served.overlay, self.sampling
        if sampling.temperature == 0:
            return (overlay,)
        if sampling.seed is not None:
            return (overlay, id(self))
        return (overlay, sampling.temperature, sampling.top_p)


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
        text = self._new_text()
        self._start, self._emitted = self._emitted, len(self._ids)
        return text

    def _new_text(self) -> str:
        return self._decode(self._ids[self._start :])[len(self._decode(self._ids[self._start : self._emitted])) :]

    def _decode(self, ids: list[int]) -> str:
        return decode_text(self._tokenizer, ids) if ids else ""


class StopFilter:
    """Passes text on until a stop string comes; neither the stop string nor what follows is passed on."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._pending = ""
        self.stopped = False

    def add(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._pending + text
        ends = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if ends:
            self.stopped, self._pending = True, ""
            return text[: min(ends)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._pending = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        text, self._pending = self._pending, ""
        return text


def _overlap(text: str, stop: str) -> int:
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


class ChoiceWriter:
    """Turns the tokens of one choice into chunks of text."""

    def __init__(self, choice: PendingChoice, tokenizer: "PreTrainedTokenizerBase", ends: frozenset[int]) -> None:
        self.choice = choice
        self.done = False
        self._ends = ends
        self._detokenizer = Detokenizer(tokenizer, choice.prompt)
        self._stop = StopFilter(choice.stops)
        self._texts: list[str] = []

    def add(self, token: int) -> None:
        choice = self.choice
        choice.tokens += 1
        ended, full = token in self._ends, choice.tokens >= choice.max_tokens
        text = "" if ended else self._stop.add(self._detokenizer.add(token))
        if ended or full:
            text += self._stop.add(self._detokenizer.flush()) + self._stop.flush()
        self._emit(text, "stop" if ended or self._stop.stopped else "length" if full else None)

    def _emit(self, text: str, reason: str | None) -> None:
        self.done = reason is not None
        self._texts.append(text)
        if reason or (text and self.choice.stream):
            self.choice.emit((self.choice.index, TextChunk("".join(self._texts), reason)))
            self._texts.clear()


class BatchMonitor:
    """A stopping criterion of transformers that sees every step, hands out tokens, and ends choices one by one."""

    def __init__(
        self, writers: Sequence[ChoiceWriter], *, halted: Callable[[], bool], on_first_token: Callable[[float], None]
    ) -> None:
        self._writers, self._halted, self._on_first_token = writers, halted, on_first_token

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:  # noqa: ARG002 (as transformers calls it)
        halted = self._halted()
        for writer, token in zip(self._writers, input_ids[:, -1].tolist(), strict=True):
            if writer.done or writer.choice.cancelled or halted:
                continue
            if writer.choice.tokens == 0:
                self._on_first_token(perf_counter() - writer.choice.arrived_at)
            writer.add(token)
        ended = [halted or writer.done or writer.choice.cancelled for writer in self._writers]
        return torch.tensor(ended, device=input_ids.device)


def decode(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    batch: Sequence[PendingChoice],
    *,
    halted: Callable[[], bool],
    on_first_token: Callable[[float], None],
) -> None:
    """Decodes choices with the same batch key together, until `halted`; reports the seconds to each first token."""
    from transformers import StoppingCriteriaList

    settings = settings_for(model, tokenizer, _options(batch), seed=batch[0].sampling.seed)
    writers = [ChoiceWriter(choice, tokenizer, settings.ends) for choice in batch]
    monitor: Any = BatchMonitor(writers, halted=halted, on_first_token=on_first_token)
    watched = replace(settings, options={**settings.options, "stopping_criteria": StoppingCriteriaList([monitor])})
    generate_batch(model, tokenizer, [Prompt(i, "", choice.prompt) for i, choice in enumerate(batch)], watched)


def _options(batch: Sequence[PendingChoice]) -> dict[str, Any]:
    sampling, most = batch[0].sampling, max(choice.max_tokens for choice in batch)
    options: dict[str, Any] = {"do_sample": sampling.temperature != 0, "num_beams": 1, "max_new_tokens": most}
    if options["do_sample"]:
        options |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
    return options
