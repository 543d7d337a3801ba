"""Decoding of a batch: choices of one overlay together, each with its own end and its own text."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairbits.serve.overlays.generation import Prompt, generate_batch, settings_for
from fairbits.serve.server.choice import PendingChoice, TextChunk
from fairbits.serve.server.response import Detokenizer, StopFilter

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


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
        """Takes the next token, and emits the text that it adds."""
        choice = self.choice
        choice.tokens += 1
        ended = token in self._ends
        text = "" if ended else self._stop.add(self._detokenizer.add(token))
        if ended or choice.tokens >= choice.max_tokens:
            text += self._stop.add(self._detokenizer.flush()) + self._stop.flush()
        if ended or self._stop.stopped:
            self._emit(text, "stop")
        elif choice.tokens >= choice.max_tokens:
            self._emit(text, "length")
        else:
            self._emit(text, None)

    def _emit(self, text: str, reason: str | None) -> None:
        self.done = reason is not None
        if self.choice.stream:
            if text or reason:
                self.choice.emit(TextChunk(text, reason))
            return
        self._texts.append(text)
        if reason:
            self.choice.emit(TextChunk("".join(self._texts), reason))


class BatchMonitor:
    """A stopping criterion of transformers that sees every step, hands out tokens, and ends choices one by one."""

    def __init__(
        self,
        writers: Sequence[ChoiceWriter],
        *,
        halted: Callable[[], bool],
        on_first_token: Callable[[float], None],
    ) -> None:
        self._writers, self._halted, self._on_first_token = writers, halted, on_first_token

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:  # noqa: ARG002 (as transformers calls it)
        """Returns which choices have ended."""
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
    """Decodes choices with the same batch key together.

    `halted` ends all of them. `on_first_token` receives the seconds to the first token of each.
    """
    from transformers import StoppingCriteriaList

    settings = settings_for(model, tokenizer, _options(batch), seed=batch[0].sampling.seed)
    writers = [ChoiceWriter(choice, tokenizer, settings.ends) for choice in batch]
    monitor: Any = BatchMonitor(writers, halted=halted, on_first_token=on_first_token)
    watched = replace(settings, options={**settings.options, "stopping_criteria": StoppingCriteriaList([monitor])})
    generate_batch(model, tokenizer, [Prompt(i, "", choice.prompt) for i, choice in enumerate(batch)], watched)


def _options(batch: Sequence[PendingChoice]) -> dict[str, Any]:
    """Returns the options of `generate` for a batch; the sampling defaults of the model do not apply."""
    sampling, most = batch[0].sampling, max(choice.max_tokens for choice in batch)
    if sampling.temperature == 0:
        return {"do_sample": False, "num_beams": 1, "max_new_tokens": most}
    drawn = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
    return {"do_sample": True, "num_beams": 1, "max_new_tokens": most, **drawn}
