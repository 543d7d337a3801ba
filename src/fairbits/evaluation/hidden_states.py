"""The features of a model on a text: its last hidden states at the positions that predict a token, and their head.

A model that fits is in memory as a whole (`WholeModel`); of a larger one, one block is (`StreamedModel`).
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from copy import copy
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from fairbits.core.errors import InputError
from fairbits.core.memory import (
    EVALUATION_POSITIONS,
    GPU_EVALUATION_POSITIONS,
    GPU_LOGITS_FACTOR,
    GPU_STATES_BYTES,
    LOGIT_POSITIONS,
    LOGITS,
    STATES_BYTES,
)
from fairbits.core.progress import Progress
from fairbits.forward.batches import Batch, batches, in_parts, sample_batch
from fairbits.forward.body_and_head import Split, attend_in_little_memory, positions_per_batch, split_head
from fairbits.forward.lockstep import MOST_BATCHES, VisitProgress, lockstep
from fairbits.forward.streaming import BlockLoader, NotStreamableError, StreamedBody
from fairbits.forward.windows import NO_LABEL, TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import fits_whole, is_gpu, move

DTYPE = torch.float32  # what models are evaluated in
LONG_WINDOW = 2048  # tokens up to which the scores of all heads of an attention fit in memory
LOADED_FACTOR = 8  # bytes of a loaded weight in float32, for each byte of it on disk, if that has 4 bits


@dataclass(frozen=True, eq=False)
class HiddenStates:
    """Positions that predict a token: `features` (positions, hidden size), and the label and document of each."""

    features: Tensor
    labels: Tensor
    documents: Tensor

    @classmethod
    def of(cls, states: Tensor, batch: Batch) -> "HiddenStates":
        """Returns the predicting positions of a batch, given its last hidden states or logits."""
        rows, columns = (batch.labels != NO_LABEL).nonzero(as_tuple=True)
        return cls(states[rows, columns], batch.labels[rows, columns], batch.document[rows])

    def split(self, size: int) -> "Iterator[HiddenStates]":
        columns = (torch.split(column, size) for column in (self.features, self.labels, self.documents))
        return (HiddenStates(*part) for part in zip(*columns, strict=True))


class EvaluatedModel(Protocol):
    """A model that gives features and has a head that reads them."""

    name: str
    separate: bool  # whether logits exist only where the head is called
    logit_positions: int  # how many positions may have their logits in memory at a time
    notes: tuple[str, ...]  # what a reader of any result must know

    @property
    def head(self) -> Callable[[Tensor], Tensor]:
        """Returns the function from features to logits, once the first features are there."""

    def features(self, stage: str, progress: Progress | None) -> Iterator[HiddenStates]:
        """Yields all predicting positions, in an order that depends neither on the model nor on the batch size."""


class WholeModel:
    """A loaded model on a text."""

    def __init__(
        self, model: PreTrainedModel, text: TokenizedText, *, device: str, notes: tuple[str, ...] = ()
    ) -> None:
        self._model, self._text, self._device = model, text, device
        self._split = split_for(model, text, device=device)
        self.name, self.separate = str(model.name_or_path), self._split.separate
        self.notes = notes
        self.logit_positions = positions_of_logits(model.config.get_text_config().vocab_size, device)

    @property
    def head(self) -> Callable[[Tensor], Tensor]:
        return self._split.head

    def on(self, text: TokenizedText) -> "WholeModel":
        """Returns the same model on another text."""
        other = copy(self)
        other._text = text
        _spare_memory(self._model, text, self._device)
        return other

    @torch.no_grad()
    def features(self, stage: str, progress: Progress | None) -> Iterator[HiddenStates]:
        positions, total, done = positions_per_batch(self._model, self._split), len(self._text.windows), 0
        if self.separate:
            positions = max(positions, evaluation_positions(self._device))
        for batch in batches(self._text, positions=positions):
            yield HiddenStates.of(self._split.body(batch.on(self._device)), batch)
            done += len(batch.document)
            if progress is not None:
                progress(stage, done, total)


class StreamedModel:
    """A model on a text, one block in memory at a time; where hidden states do not fit, the text passes in parts."""

    def __init__(
        self, checkpoint: Checkpoint, text: TokenizedText, *, device: str, dtype: torch.dtype = torch.float32
    ) -> None:
        self._text, self._device, self._dtype = text, device, dtype
        self._loader = BlockLoader(checkpoint, device, dtype=dtype)
        self._samples = [sample_batch(text).on(device) for _ in range(2)]
        _spare_memory(self._loader.model.model, text, device)
        self._body = StreamedBody(self._loader.model.model, whole=self._samples[0])
        self._split: Split | None = None
        self._position_bytes = checkpoint.hidden_size * DTYPE.itemsize
        self.name, self.separate = checkpoint.target, True
        self.notes: tuple[str, ...] = ()
        self.logit_positions = positions_of_logits(checkpoint.config.get_text_config().vocab_size, device)

    @property
    def head(self) -> Callable[[Tensor], Tensor]:
        if self._split is None:
            raise InputError(f"the head of {self.name} is not known before its first features are; ask for these first")
        return self._split.head

    @torch.no_grad()
    def features(self, stage: str, progress: Progress | None) -> Iterator[HiddenStates]:
        chosen = [batch.on(self._device) for batch in batches(self._text, positions=evaluation_positions(self._device))]
        shown = VisitProgress(
            progress, stage, visits=len(chosen) * len(self._loader.blocks), total=len(self._text.windows)
        )
        room = GPU_STATES_BYTES if is_gpu(self._device) else STATES_BYTES
        for part in in_parts(chosen, lambda batch: batch.size * self._position_bytes, room=room, most=MOST_BATCHES):
            with closing(self._pass(part, shown)) as states:
                yield from states

    def _pass(self, part: list[Batch], shown: VisitProgress) -> Generator[HiddenStates, None, None]:
        """Yields the features of a part of the text; the two samples walk along, to show what the head is."""
        model, together = self._loader.model, [*self._samples, *part]
        ids = torch.cat([batch.ids for batch in together])
        model.load_outside(torch.unique(ids).cpu(), {})
        paths = [block.module for block in self._loader.blocks]
        with lockstep(model.model, paths, together, body=self._body) as walk:
            if not model.model.config.is_encoder_decoder:  # whose decoder looks up its tokens after the encoder
                model.release_head_and_embedding()
            for _ in self._loader.loaded(range(len(paths))):
                walk.advance(lambda batch: None if batch in self._samples else shown.add())
            model.load_head()
            results = (result.detach() for _, result in walk.ends())
            self._split = self._split_head(next(results), next(results))
            for batch, features in zip(part, results, strict=True):
                yield HiddenStates.of(features, batch)

    def _split_head(self, logits: Tensor, features: Tensor) -> Split:
        try:
            return self._body.split(logits, features)
        except NotStreamableError as problem:
            raise InputError(
                f"{self.name} is too large for this machine and cannot pass in blocks, as {problem}; evaluate it where "
                "twice its size in float32 is free"
            ) from None


def evaluated_model(model: PreTrainedModel | Checkpoint, text: TokenizedText, *, device: str) -> EvaluatedModel:
    """Returns a model to evaluate on a text; a checkpoint is loaded, or passed in blocks if it does not fit."""
    if not isinstance(model, Checkpoint):
        return WholeModel(model, text, device=device)
    plain = model.plain
    notes: tuple[str, ...] = ()
    try:
        if plain is None:
            raise NotStreamableError(f"only another package reads its weights ({model.quantization_method})")
        if passes_in_blocks(model, device):
            return StreamedModel(plain, text, device=device)
    except NotStreamableError as problem:  # half of the memory may be enough nevertheless
        if not fits_whole(LOADED_FACTOR * sum(info.nbytes for info in model.tensors.values()), device):
            notes = (f"{model.target} was in memory as a whole, although it is large: {problem}",)
    if plain is None and model.quantization_method == "bitsandbytes":
        notes = (
            *notes,
            "which inputs LLM.int8 leaves as they are depends on the batch, and so do the results, a little",
        )
    loaded = (model if plain is None else plain).load(DTYPE, device=device, read_only=True)
    try:
        return WholeModel(loaded, text, device=device, notes=notes)  # which passes a window
    except (RuntimeError, ValueError, NotImplementedError) as problem:
        if model.quantization is None or isinstance(problem, torch.OutOfMemoryError):
            raise
        reason = " ".join(str(problem).split())
        raise InputError(f"{model.target} cannot compute as its quantization_config says: {reason:.400}") from problem


def passes_in_blocks(model: Checkpoint, device: str) -> bool:
    """Returns whether the weights of a model in float32 are too large to be in memory as a whole."""
    plain = model.plain
    weights = 0 if plain is None else sum(info.numel for info in plain.tensors.values()) * DTYPE.itemsize
    return not fits_whole(weights, device)


def split_for(model: PreTrainedModel, text: TokenizedText, *, device: str) -> Split:
    """Returns the model, moved to the device and split into body and head."""
    move(model, device)
    _spare_memory(model, text, device)
    return split_head(model, sample_batch(text).on(device))


def _spare_memory(model: PreTrainedModel, text: TokenizedText, device: str) -> None:
    """Makes attention on a GPU take little memory where windows are long."""
    if is_gpu(device) and max(window.length for window in text.windows) > LONG_WINDOW:
        attend_in_little_memory(model)


def evaluation_positions(device: str) -> int:
    """Returns how many positions a batch has where no logits come with them, at least."""
    return GPU_EVALUATION_POSITIONS if is_gpu(device) else EVALUATION_POSITIONS


def positions_of_logits(vocabulary: int, device: str | torch.device) -> int:
    """Returns the number of positions whose logits may be in memory at a time."""
    positions = max(LOGITS // vocabulary, LOGIT_POSITIONS)
    return GPU_LOGITS_FACTOR * positions if is_gpu(device) else positions


def positions_by_window(text: TokenizedText) -> list[range]:
    """Returns, for every window, the numbers of its predicting positions in the order of `features`."""
    counts = [sum(label != NO_LABEL for label in window.main.labels) for window in text.windows]
    positions = [range(0)] * len(counts)
    begin = 0
    for i in sorted(range(len(counts)), key=lambda i: text.windows[i].length):  # the order of `batches`
        positions[i] = range(begin, begin + counts[i])
        begin += counts[i]
    return positions


def predicted_positions(text: TokenizedText) -> int:
    """Returns the number of positions that predict a token."""
    return sum(label != NO_LABEL for window in text.windows for label in window.main.labels)
