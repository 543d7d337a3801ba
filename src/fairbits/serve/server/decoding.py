"""Decoding: choices of one overlay in a batch, each with its own end, and their tokens as text."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteriaList

from fairbits.forward.generation import Prompt, decode_text, generate_batch, settings_for
from fairbits.serve.overlays.adaptive_model import Choice
from fairbits.serve.server.log_probabilities import log_probabilities
from fairbits.serve.server.request import CompletionRequest, Sampling

CONTEXT = 6
"""Tokens of the prompt that are decoded as well: whether a word begins with a space depends on what precedes it."""
NO_SCORES = {"logprobs": None}
INCOMPLETE = "\ufffd"  # what a decoder writes for bytes that are not, or not yet, a character


@dataclass(frozen=True)
class TextChunk:
    """Text that is added to a choice; `finish_reason` and log-probabilities come with the last chunk."""

    text: str
    finish_reason: str | None = None
    scores: Mapping[str, Any] = field(default_factory=lambda: NO_SCORES)


@dataclass(frozen=True)
class Failure:
    """A choice that could not be decoded through no fault of its client; `stopping`: because the server stops."""

    stopping: bool = False


ChoiceEvent = tuple[int, TextChunk | Failure]  # the index of a choice, and what happened to it


@dataclass(eq=False)
class PendingChoice:
    """One choice of a request. The decoding thread writes `tokens`; any thread may set `cancelled`.

    `emit` receives chunks as they come if `stream`, else one chunk with all the text; called by another thread.
    `echo` is the text to begin with, and `scored` the request if it wants log-probabilities.
    """

    index: int
    prompt: tuple[int, ...]
    served: Choice
    max_tokens: int
    stops: tuple[str, ...]
    sampling: Sampling
    stream: bool
    emit: Callable[[ChoiceEvent], None]
    echo: str = ""
    scored: CompletionRequest | None = None
    tokens: int = 0
    cancelled: bool = False
    arrived_at: float = field(default_factory=perf_counter)

    @property
    def batch_key(self) -> Hashable:
        """What choices must share to be decoded together; one with a seed is decoded alone, to be reproducible."""
        overlay, sampling = self.served.overlay, self.sampling
        if not self.max_tokens:
            return (overlay, None)
        if sampling.temperature == 0:
            return (overlay,)
        if sampling.seed is not None:
            return (overlay, id(self))
        return (overlay, sampling.temperature, sampling.top_p)


class Detokenizer:
    """Returns the text that each token adds. All pieces together are the text of all tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int]) -> None:
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
        parts = (self._ids[self._start :], self._ids[self._start : self._emitted])
        text, emitted = (decode_text(self._tokenizer, ids) if ids else "" for ids in parts)
        return text[len(emitted) :]


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
        # the longest end of the text that begins a stop string
        sizes = (size for stop in self._stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
        keep = max(sizes, default=0)
        self._pending = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        text, self._pending = self._pending, ""
        return text


class ChoiceWriter:
    """Turns the tokens of one choice into chunks of text."""

    def __init__(self, choice: PendingChoice, tokenizer: PreTrainedTokenizerBase, ends: frozenset[int]) -> None:
        self.choice = choice
        self.done = False
        self.generated: list[int] = []
        self._ends = ends
        self._detokenizer = Detokenizer(tokenizer, choice.prompt)
        self._stop = StopFilter(choice.stops)
        self._texts = [choice.echo]
        self._reason: str | None = None

    def add(self, token: int) -> None:
        choice = self.choice
        choice.tokens += 1
        self.generated.append(token)
        ended, full = token in self._ends, choice.tokens >= choice.max_tokens
        text = "" if ended else self._stop.add(self._detokenizer.add(token))
        if ended or full:
            text += self._stop.add(self._detokenizer.flush()) + self._stop.flush()
        self._emit(text, "stop" if ended or self._stop.stopped else "length" if full else None)

    def finish(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Emits a choice that has no new tokens, or whose log-probabilities were still to be computed."""
        choice, request, scores = self.choice, self.choice.scored, dict[str, Any](NO_SCORES)
        if request is not None:
            ids, detokenizer = [*choice.prompt, *self.generated], Detokenizer(tokenizer, ())
            pieces = [detokenizer.add(token) for token in ids]
            scores |= log_probabilities(model, tokenizer, request, ids, prompt=len(choice.prompt), pieces=pieces)
        choice.emit((choice.index, TextChunk("".join(self._texts), self._reason or "length", scores)))

    def _emit(self, text: str, reason: str | None) -> None:
        self.done, self._reason = reason is not None, reason
        self._texts.append(text)
        if self.choice.scored is None and (reason or (text and self.choice.stream)):
            self.choice.emit((self.choice.index, TextChunk("".join(self._texts), reason)))
            self._texts.clear()


def decode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    batch: Sequence[PendingChoice],
    *,
    halted: Callable[[], bool],
    on_token: Callable[[PendingChoice], None],
) -> None:
    """Decodes choices with the same batch key together, until `halted`; reports each token before it is handed out."""
    sampling, most = batch[0].sampling, max(choice.max_tokens for choice in batch)
    # the sampling defaults of the model do not apply
    options: dict[str, Any] = {"do_sample": sampling.temperature != 0, "num_beams": 1, "max_new_tokens": most or 1}
    if options["do_sample"]:
        options |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
    settings = settings_for(model, tokenizer, options, seed=sampling.seed)
    writers = [ChoiceWriter(choice, tokenizer, settings.ends) for choice in batch]

    def monitor(input_ids: Tensor, _scores: Any, **_: Any) -> Tensor:
        """Sees every step as a stopping criterion of transformers, hands out tokens, and ends choices one by one."""
        stop = halted()
        for writer, token in zip(writers, input_ids[:, -1].tolist(), strict=True):
            if writer.done or writer.choice.cancelled or stop:
                continue
            on_token(writer.choice)
            writer.add(token)
        ended = [stop or writer.done or writer.choice.cancelled for writer in writers]
        return torch.tensor(ended, device=input_ids.device)

    criteria: Any = StoppingCriteriaList([monitor])
    watched = replace(settings, options={**settings.options, "stopping_criteria": criteria})
    if most:
        generate_batch(model, tokenizer, [Prompt(i, "", choice.prompt) for i, choice in enumerate(batch)], watched)
    for writer in writers:
        waiting = not most or (writer.done and writer.choice.scored is not None)
        if waiting and not writer.choice.cancelled and not halted():
            writer.finish(model, tokenizer)
