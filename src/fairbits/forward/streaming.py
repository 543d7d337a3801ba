"""The pass over text with the weights of one block in memory at a time, forward and backward.

Forward, all batches walk through the blocks in lock step, and the hidden states at the inputs of blocks are kept. What
comes after the last block is then computed for one batch after the other, and the Fisher gradient with it. Backward,
the blocks are taken in reverse order. Each is computed again from its kept input, while the recorder observes it, and
the gradient of its output becomes the gradient of its input. Where not all states fit, some are computed again
(`segments`). Where even these do not fit, the text passes the model in several parts; all results are sums over text.

This is possible if every block gets, unchanged, the output of the block before it, and if nothing else that it gets
depends on the blocks before. An encoder's output reaches all blocks of a decoder, so encoder-decoder models are not
streamed; nor are models that do something else between two blocks, or whose weights are packed (NotStreamableError).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from fairbits.core.errors import InputError
from fairbits.core.memory import (
    BLOCK_BACKWARD_BYTES,
    BLOCK_BACKWARD_POSITIONS,
    GPU_BLOCK_BACKWARD_BYTES,
    GPU_STATES_BYTES,
    LEAST_STATES_FACTOR,
    STATES_BYTES,
)
from fairbits.forward.batches import Batch, batches, in_parts
from fairbits.forward.body_and_head import SAVED_PER_BLOCK, Split
from fairbits.forward.fisher import LossSums, SignDraws, fisher_gradient
from fairbits.forward.lockstep import MOST_BATCHES, Lockstep, RecordedCall, VisitProgress, lockstep
from fairbits.forward.recorder import PassSettings, Recorder
from fairbits.models.architecture.architecture import Block
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import is_gpu
from fairbits.models.streaming_model import ReadAhead, StreamingModel


def least_places(blocks: int) -> int:
    """Returns the least number of blocks whose inputs must fit in memory, for all blocks to be passed backward."""
    places = 1
    while places * (places + 1) // 2 < blocks:
        places += 1
    return places


def segments(blocks: int, places: int) -> tuple[range, ...]:
    """Returns the segments of a number of blocks, with as few blocks computed again as places for their inputs allow.

    The backward pass of a block needs the states at its input, and the states of all blocks may not fit. Forward, the
    inputs of every segment are kept and, in the last segment, the inputs of every block. Backward, a segment whose turn
    has come is first computed again from its input, into the places of states that have been used. With n places,
    n + (n − 1) + … + 1 blocks can be passed.
    """
    if places < least_places(blocks):
        raise InputError(f"{places} places are too few for {blocks} blocks; at least {least_places(blocks)} are needed")
    lengths: list[int] = []
    before = 0  # segments before the last
    while sum(places - i for i in range(before + 1)) < blocks:
        before += 1
    end = blocks
    for index in range(before, -1, -1):
        length = end if index == 0 else min(places - index, end - index)
        lengths.append(length)
        end -= length
    ends = list(accumulate(reversed(lengths)))
    return tuple(range(end - length, end) for end, length in zip(ends, reversed(lengths), strict=True))


HEAD_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 1e-2}


class NotStreamableError(Exception):
    """A model that cannot be passed block by block, and why."""


class StreamedBody:
    """The model without its head, as a function of a batch; one batch passes the whole model.

    The head is the last linear layer, if that alone gives the logits. Otherwise the model's own code is called with the
    result of its body replaced, so that logits may be scaled or clipped.
    """

    def __init__(self, model: PreTrainedModel, *, whole: Batch) -> None:
        self._model, self._base, self._whole = model, model.base_model, whole
        self._output: Any = None
        if self._base is model:
            raise NotStreamableError("its head cannot be separated from its blocks")

    def __call__(self, batch: Batch) -> Tensor:
        """Returns the features of a batch, or the logits of the batch that passes the whole model."""
        if batch is self._whole:
            logits: Tensor = self._model(**batch.inputs_for(self._model), use_cache=False).logits
            return logits
        output = self._base(**batch.inputs_for(self._model), use_cache=False)
        self._output = type(output)
        features: Tensor = output.last_hidden_state
        return features

    def split(self, logits: Tensor, features: Tensor) -> Split:
        """Returns the body and a head that gives these logits from these features."""
        if features.shape[:-1] == logits.shape[:-1]:
            for head in (self._model.get_output_embeddings(), self._rest):  # type: ignore[no-untyped-call]
                if self._computes(head, logits.flatten(0, 1), features.flatten(0, 1)):
                    return Split(self, head, True)
        raise NotStreamableError("its logits do not follow from its last hidden states alone")

    def _computes(self, head: Callable[[Tensor], Tensor], logits: Tensor, features: Tensor) -> bool:
        with suppress(RuntimeError, InputError):  # shapes that do not fit, or a head that calls blocks again
            tolerance = HEAD_TOLERANCE.get(logits.dtype, 1e-3)
            return torch.allclose(head(features).float(), logits.float(), rtol=tolerance, atol=tolerance)
        return False

    def _rest(self, features: Tensor) -> Tensor:
        self._base.forward = partial(_replaced, self._output(last_hidden_state=features[None]))
        try:
            ids = torch.zeros((1, len(features)), dtype=torch.long, device=features.device)
            logits: Tensor = self._model(input_ids=ids, use_cache=False).logits
        finally:
            del self._base.forward
        return logits[0]


def _replaced(result: Any, *_args: Any, **_kwargs: Any) -> Any:
    return result


class BlockLoader:
    """The model of a checkpoint, or of an unpacked view of one, with the weights of one block at a time."""

    def __init__(self, checkpoint: Checkpoint, device: str, *, dtype: torch.dtype) -> None:
        self._checkpoint, self._device = checkpoint, device
        self._reader: ReadAhead | None = None
        self.model = StreamingModel(checkpoint, device, dtype=dtype, read=self._read)

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self._checkpoint.architecture.blocks

    def loaded(self, indices: Iterable[int]) -> Iterator[int]:
        """Yields the blocks, each with its weights in memory until the next, which is being read at the same time."""
        blocks = [self.blocks[index] for index in indices]
        names = [[part for name in block.weights for part in self._checkpoint.parts(name)] for block in blocks]
        with ReadAhead(self._checkpoint.stored, self._device, names) as self._reader:
            try:
                for block in blocks:
                    self.model.load_block(block, {})
                    try:
                        yield block.index
                    finally:
                        self.model.release_block(block)
            finally:
                self._reader = None

    def _read(self, name: str) -> Tensor:
        return self._checkpoint.unpack(name, (self._reader or self._checkpoint.stored).read)


class _Pass(BlockLoader):
    """What all parts of the text need: the model, and sums over the text."""

    def __init__(self, settings: PassSettings) -> None:
        super().__init__(settings.checkpoint, settings.device, dtype=settings.dtype)
        self.settings, self.text, self.device = settings, settings.text, settings.device
        self.recorder, self.scores = settings.recorder(self.model.model), LossSums(len(self.text.lang))
        self.draws = SignDraws(settings.seed)
        self.least_places = least_places(len(self.blocks))
        self._position_bytes = settings.checkpoint.hidden_size * settings.dtype.itemsize

    def batches(self) -> list[Batch]:
        room = GPU_BLOCK_BACKWARD_BYTES if is_gpu(self.device) else BLOCK_BACKWARD_BYTES
        positions = max(room // (SAVED_PER_BLOCK * self._position_bytes), BLOCK_BACKWARD_POSITIONS)
        return [
            replace(batch.on(self.device), main=batch.main.on(self.device))
            for batch in batches(self.text, positions=positions)
        ]

    def parts(self, chosen: Sequence[Batch]) -> list[list[Batch]]:

        def size(batch: Batch) -> int:
            return self.least_places * self._states_bytes([batch])

        return list(in_parts(chosen, size, room=LEAST_STATES_FACTOR * self._room(), most=MOST_BATCHES))

    def places(self, part: Sequence[Batch]) -> int:
        return max(int(self._room() // self._states_bytes(part)), self.least_places)

    def _states_bytes(self, part: Sequence[Batch]) -> int:
        return sum(batch.main.real.numel() for batch in part) * self._position_bytes

    def _room(self) -> float:
        if not is_gpu(self.device):
            return STATES_BYTES
        return min(GPU_STATES_BYTES, torch.cuda.mem_get_info(self.device)[0] / 2)


@dataclass(eq=False)
class _Walked:
    """A part of the text that has passed all blocks."""

    calls: list[list[RecordedCall]]  # per block and batch, how the block was called
    states: dict[int, list[Tensor]]  # per block whose input is kept, the states of every batch
    gradients: list[Tensor]  # per batch, the gradient at the output of the last block


def streaming_pass(settings: PassSettings) -> tuple[Recorder, LossSums]:
    """Returns the sums of a pass with one block in memory at a time."""
    config = settings.checkpoint.config
    if config.is_encoder_decoder:
        raise NotStreamableError("its decoder's blocks read the output of its encoder, so it cannot pass in blocks")
    if getattr(config, "quantization_config", None) is not None:
        raise NotStreamableError("its weights are packed, and an audit does not unpack them block by block")
    work = _Pass(settings)
    parts = work.parts(work.batches())
    plans = [segments(len(work.blocks), work.places(part)) for part in parts]
    visits = 0  # how often a batch passes a block: forward, forward again where states were not kept, backward
    for part, plan in zip(parts, plans, strict=True):
        visits += len(part) * (2 * plan[-1].stop + sum(len(segment) - 1 for segment in plan[:-1]))
    tokens = sum(window.length for window in work.text.windows)
    progress = VisitProgress(settings.progress, "reading text", visits=visits, total=tokens)
    for part, plan in zip(parts, plans, strict=True):
        walked = _forward(work, part, plan, progress)
        _backward(work, part, plan, walked=walked, progress=progress)
    return work.recorder, work.scores


def _forward(work: _Pass, part: list[Batch], plan: Sequence[range], progress: VisitProgress) -> _Walked:
    """Returns a part of the text after all blocks; two samples walk along to show what the head is."""
    model = work.model
    samples = [next(batches(work.text, positions=1)).on(work.device) for _ in range(2)]
    ids = torch.cat([batch.inputs["input_ids"].flatten() for batch in (*samples, *part)])
    body = StreamedBody(model.model, whole=samples[0])
    kept = {segment.start for segment in plan} | set(plan[-1])
    walked = _Walked([], {}, [])
    model.load_outside(torch.unique(ids).cpu(), {})
    with lockstep(model.model, [block.module for block in work.blocks], [*samples, *part], body=body) as walk:
        model.release_head_and_embedding()
        for index in work.loaded(range(len(work.blocks))):
            _record(walk, work, walked, index=index, keep=index in kept)
            walk.advance(lambda batch: None if batch in samples else progress.add())
        model.load_head()
        _add_gradients(walk, work, part, body=body, walked=walked)
        model.release_head_and_embedding()
    return walked


def _record(walk: Lockstep, work: _Pass, walked: _Walked, *, index: int, keep: bool) -> None:
    paused = walk.paused()
    if index and not all(batch.continues for batch in paused):
        raise NotStreamableError(f"it changes the hidden states between the blocks {index - 1} and {index}")
    walked.calls.append([batch.recorded(work.model.model) for batch in paused[2:]])
    if keep:
        walked.states[index] = [batch.states for batch in paused[2:]]


def _add_gradients(walk: Lockstep, work: _Pass, part: list[Batch], *, body: StreamedBody, walked: _Walked) -> None:
    ends = walk.ends()
    with torch.no_grad():
        (_, logits), (_, features) = next(ends), next(ends)
        split = body.split(logits.detach(), features.detach())
    for batch in part:
        leaf, features = next(ends)
        gradient = fisher_gradient(features, batch, split, scores=work.scores, draws=work.draws)
        walked.gradients.append(torch.autograd.grad(features, leaf, gradient)[0])
        del leaf, features, gradient


def _backward(
    work: _Pass, part: list[Batch], plan: Sequence[range], *, walked: _Walked, progress: VisitProgress
) -> None:
    for segment in reversed(plan):
        if segment is not plan[-1]:
            _compute_states(work, segment, walked, progress)
        for index in work.loaded(reversed(segment)):
            with work.recorder.attached(index):
                _observe_block(work, part, index, walked=walked, progress=progress)


def _observe_block(work: _Pass, part: list[Batch], index: int, *, walked: _Walked, progress: VisitProgress) -> None:
    """Passes a block backward while the recorder observes it; gradients then are at its input."""
    states = walked.states.pop(index)
    for number, batch in enumerate(part):
        x = states[number].detach().requires_grad_()
        version = x._version
        work.recorder.start(batch)
        with torch.enable_grad():
            output = walked.calls[index][number].output(x)
        walked.gradients[number] = torch.autograd.grad(output, x, walked.gradients[number])[0]
        if x._version != version:
            raise NotStreamableError(f"its block {index} changes its input in place")
        del output, x
        work.recorder.finish()
        progress.add()


@torch.no_grad()
def _compute_states(work: _Pass, segment: range, walked: _Walked, progress: VisitProgress) -> None:
    for index in work.loaded(segment[:-1]):
        walked.states[index + 1] = []
        for call, states in zip(walked.calls[index], walked.states[index], strict=True):
            walked.states[index + 1].append(call.output(states))
            progress.add()
