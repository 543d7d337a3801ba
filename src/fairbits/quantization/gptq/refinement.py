"""Refinement of a block: better codes may be found for it after rounding, before the text goes on to the next block.

The rounding engine knows nothing of learning, which lies above it: it offers a `BlockContext` to whatever `RefineBlock`
it was given.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from fairbits.forward.lockstep import PausedBatch
from fairbits.forward.recorder import is_observable
from fairbits.models.architecture.architecture import Block, Weight
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.groups import Codes
from fairbits.models.streaming_model import StreamingModel

NOT_LEARNED = "no module computes it alone, so its rounding was not learned"


@dataclass(frozen=True, eq=False)
class BlockContext:
    """A block whose linear layers are rounded, and all that is known of it while the batches are paused before it.

    `model`    holds the block with its full-precision weights; maps that are not in `start` have their codes already
    `batches`  the batches with the inputs of the block, which the quantized blocks before it have produced
    `targets`  for each batch, the full-precision model's hidden states after the block, (rows, length, width)
    `start`    the codes of its linear layers with their grids, by the name of the tensor
    `weights`  its tensors
    `tick`     is to be called as often as `RefineBlock.ticks` says
    """

    index: int
    stack: str
    model: PreTrainedModel
    batches: tuple[PausedBatch, ...]
    targets: tuple[Tensor, ...]
    weights: Mapping[str, Weight]
    start: Mapping[str, tuple[Codes, Grid]]
    tick: Callable[[], None]


class RefineBlock(Protocol):
    """Finds better codes for a block; the result may depend on nothing but the context, so that a run can be resumed.

    `held_out`  documents that are to be in batches of their own
    `ticks`     how many steps of progress a block takes
    """

    @property
    def held_out(self) -> Collection[int]: ...

    @property
    def ticks(self) -> int: ...

    def __call__(self, context: BlockContext) -> Mapping[str, Codes]:
        """Returns codes for all linear layers in `context.start`, with the same shapes and types."""


class ReferenceStates:
    """The hidden states of the full-precision model, which go through the blocks next to those of the quantized one."""

    def __init__(self) -> None:
        self._states: tuple[Tensor | None, ...] = ()

    @torch.no_grad()
    def advance(self, batches: Sequence[PausedBatch]) -> tuple[Tensor, ...]:
        """Moves the states past a block, which must have its full-precision weights now, and returns them.

        At the start of a stack they are those of the quantized model.
        """
        before = self._states or (None,) * len(batches)
        pairs = zip(batches, before, strict=True)
        after = tuple(batch.output(states if batch.continues else None) for batch, states in pairs)
        self._states = after
        return after


def refine_block(
    refine: RefineBlock,
    block: Block,
    layers: Mapping[str, tuple[Codes, Grid]],
    *,
    model: StreamingModel,
    batches: tuple[PausedBatch, ...],
    targets: tuple[Tensor, ...],
    tick: Callable[..., None],
) -> Mapping[str, Codes]:
    """Returns the codes that `refine` finds for linear layers that are modules; the others keep theirs meanwhile.

    The block must have its full-precision weights.
    """
    modules = dict(model.model.named_modules())
    start = {name: each for name, each in layers.items() if is_observable(block.weights[name], modules)}
    others = {name: codes for name, (codes, _) in layers.items() if name not in start}
    if not start:
        tick(refine.ticks)
        return {}
    if others:
        model.load_block(block, others)
    return refine(BlockContext(block.index, block.stack, model.model, batches, targets, block.weights, start, tick))
