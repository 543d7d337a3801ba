"""The pass over text with the weights of one block in memory at a time, forward and backward.

Forward, all batches walk through the blocks in lock step, and the hidden states at the inputs of blocks are kept. What
comes after the last block is then computed for one batch after the other, and the Fisher gradient with it. Backward,
the blocks are taken in reverse order. Each is computed again from its kept input, while the recorder observes it, and
the gradient of its output becomes that of its input. Where not all states fit, some are computed again (`segments`).
Where even these do not fit, the text passes the model in several parts; all results are sums over text.

This is possible if every block gets, unchanged, the output of the block before it, and if nothing else that it gets
depends on the blocks before. An encoder's output reaches all blocks of a decoder, so encoder-decoder models are not
streamed; nor are models that do something else between two blocks, or whose weights are packed (NotStreamableError).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fairbits.measure.passes.batches import Batch, batches
from fairbits.measure.passes.block_calls import RecordedCall
from fairbits.measure.passes.block_loader import BlockLoader
from fairbits.measure.passes.fisher import LossSums, SignDraws, fisher_gradient
from fairbits.measure.passes.job import SAVED_PER_BLOCK, Job
from fairbits.measure.passes.lockstep import MOST_BATCHES, Lockstep, lockstep
from fairbits.measure.passes.recorder import Recorder
from fairbits.measure.passes.segments import least_places, segments
from fairbits.measure.passes.streamed_body import NotStreamableError, StreamedBody
from fairbits.memory import (
    BLOCK_BACKWARD_BYTES,
    BLOCK_BACKWARD_POSITIONS,
    GPU_BLOCK_BACKWARD_BYTES,
    GPU_STATES_BYTES,
    LEAST_STATES_FACTOR,
    STATES_BYTES,
)
from fairbits.model.device import is_gpu


class _Pass(BlockLoader):
    """What all parts of the text need: the model, and sums over the text."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.checkpoint, job.device, dtype=job.dtype)
        self.job = job
        self.recorder, self.scores = job.recorder(self.model.model), LossSums(len(job.text.lang))
        self.draws = SignDraws(job.seed)


@dataclass(eq=False)
class _Walked:
    """A part of the text that has passed all blocks.

    `calls`      per block and batch, how the block was called
    `states`     per block whose input is kept, the states of every batch
    `gradients`  per batch, the gradient at the output of the last block
    """

    calls: list[list[RecordedCall]]
    states: dict[int, list[Tensor]]
    gradients: list[Tensor]


def streaming_pass(job: Job) -> tuple[Recorder, LossSums]:
    """Returns the sums of a pass with one block in memory at a time."""
    if job.checkpoint.config.is_encoder_decoder:
        raise NotStreamableError("its decoder's blocks read the output of its encoder, so it cannot pass in blocks")
    if getattr(job.checkpoint.config, "quantization_config", None) is not None:
        raise NotStreamableError("its weights are packed, and an audit does not unpack them block by block")
    work = _Pass(job)
    parts = _parts(job, _batches(job))
    plans = [segments(len(work.blocks), _places(job, part)) for part in parts]
    total = sum(len(part) * _visits(plan) for part, plan in zip(parts, plans, strict=True))
    ticks = _Ticks(job, total)
    for part, plan in zip(parts, plans, strict=True):
        walked = _forward(work, part, plan, ticks)
        _backward(work, part, plan, walked=walked, ticks=ticks)
    return work.recorder, work.scores


class _Ticks:
    """Reports progress in tokens of text, from the visits of batches to blocks."""

    def __init__(self, job: Job, total: int) -> None:
        self._progress, self._done, self._total = job.progress, 0, total
        self._tokens = sum(window.length for window in job.text.windows)

    def add(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress("reading text", self._tokens * self._done // self._total, self._tokens)


def _visits(plan: Sequence[range]) -> int:
    """Returns how often a batch passes a block: forward, forward again where states were not kept, backward."""
    return 2 * plan[-1].stop + sum(len(segment) - 1 for segment in plan[:-1])


def _batches(job: Job) -> list[Batch]:
    room = GPU_BLOCK_BACKWARD_BYTES if is_gpu(job.device) else BLOCK_BACKWARD_BYTES
    positions = max(room // (SAVED_PER_BLOCK * _width(job) * job.dtype.itemsize), BLOCK_BACKWARD_POSITIONS)
    return [
        replace(batch.on(job.device), main=batch.main.on(job.device))
        for batch in batches(job.text, positions=positions)
    ]


def _width(job: Job) -> int:
    return int(job.checkpoint.config.get_text_config().hidden_size)


def _parts(job: Job, chosen: Sequence[Batch]) -> list[list[Batch]]:
    """Returns the batches in parts whose kept states fit."""
    least, room = least_places(len(job.checkpoint.architecture.blocks)), LEAST_STATES_FACTOR * _room(job)
    parts: list[list[Batch]] = [[]]
    for batch in chosen:
        if parts[-1] and (least * _states_bytes(job, [*parts[-1], batch]) > room or len(parts[-1]) == MOST_BATCHES):
            parts.append([])
        parts[-1].append(batch)
    return parts


def _places(job: Job, part: Sequence[Batch]) -> int:
    """Returns for how many blocks the states of a part of the text are kept."""
    return max(int(_room(job) // _states_bytes(job, part)), least_places(len(job.checkpoint.architecture.blocks)))


def _states_bytes(job: Job, part: Sequence[Batch]) -> int:
    return sum(batch.main.real.numel() for batch in part) * _width(job) * job.dtype.itemsize


def _room(job: Job) -> float:
    """Returns how many bytes of states may be kept."""
    if not is_gpu(job.device):
        return STATES_BYTES
    return min(GPU_STATES_BYTES, torch.cuda.mem_get_info(job.device)[0] / 2)


def _forward(work: _Pass, part: list[Batch], plan: Sequence[range], ticks: _Ticks) -> _Walked:
    """Returns a part of the text after it has passed all blocks, and the gradients of its last states.

    Two copies of the shortest window walk along: one through the whole model, one through the model without its head.
    They show whether the head has been found.
    """
    model = work.model
    samples = [next(batches(work.job.text, positions=1)).on(work.job.device) for _ in range(2)]
    ids = torch.cat([batch.inputs["input_ids"].flatten() for batch in (*samples, *part)])
    body = StreamedBody(model.model, whole=samples[0])
    kept = {segment.start for segment in plan} | set(plan[-1])
    walked = _Walked([], {}, [])
    model.load_outside(torch.unique(ids).cpu(), {})
    with lockstep(model.model, [block.module for block in work.blocks], [*samples, *part], body=body) as walk:
        model.release_head_and_embedding()
        for index in work.loaded(range(len(work.blocks))):
            _record(walk, work, walked, index=index, keep=index in kept)
            walk.advance(lambda batch: None if batch in samples else ticks.add())
        model.load_head()
        _add_gradients(walk, work, part, body=body, walked=walked)
        model.release_head_and_embedding()
    return walked


def _record(walk: Lockstep, work: _Pass, walked: _Walked, *, index: int, keep: bool) -> None:
    """Records how the next block is called, and its inputs if they are to be kept."""
    paused = walk.paused()
    if index and not all(each.continues for each in paused):
        raise NotStreamableError(f"it changes the hidden states between the blocks {index - 1} and {index}")
    walked.calls.append([each.recorded(work.model.model) for each in paused[2:]])
    if keep:
        walked.states[index] = [each.states for each in paused[2:]]


def _add_gradients(walk: Lockstep, work: _Pass, part: list[Batch], *, body: StreamedBody, walked: _Walked) -> None:
    """Computes the gradients at the output of the last block, batch by batch."""
    ends = walk.ends()
    with torch.no_grad():
        (_, logits), (_, features) = next(ends), next(ends)
        split = body.split(logits.detach(), features.detach())
    for batch in part:
        leaf, features = next(ends)
        gradient = fisher_gradient(features, batch, split, scores=work.scores, draws=work.draws)
        walked.gradients.append(torch.autograd.grad(features, leaf, gradient)[0])
        del leaf, features, gradient


def _backward(work: _Pass, part: list[Batch], plan: Sequence[range], *, walked: _Walked, ticks: _Ticks) -> None:
    for segment in reversed(plan):
        if segment is not plan[-1]:
            _compute_states(work, segment, walked, ticks)
        for index in work.loaded(reversed(segment)):
            with work.recorder.attached(index):
                _observe_block(work, part, index, walked=walked, ticks=ticks)


def _observe_block(work: _Pass, part: list[Batch], index: int, *, walked: _Walked, ticks: _Ticks) -> None:
    """Passes a block backward while the recorder observes it: gradients of its output become those of its input."""
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
        ticks.add()


@torch.no_grad()
def _compute_states(work: _Pass, segment: range, walked: _Walked, ticks: _Ticks) -> None:
    """Computes the inputs of the blocks of a segment again, from the input of the first."""
    for index in work.loaded(segment[:-1]):
        walked.states[index + 1] = []
        for call, states in zip(walked.calls[index], walked.states[index], strict=True):
            walked.states[index + 1].append(call.output(states))
            ticks.add()
