"""Station: a block on the way of the text where its codes, once they are rounded, can be refined by someone above."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from fairbits.measure.passes.recorder import is_observable
from fairbits.model.architecture import Block, Weight
from fairbits.model.codes import Codes
from fairbits.quantize.rounding.lockstep import Turn
from fairbits.quantize.rounding.shell import Shell
from fairbits.theory.grid import Grid

LEFT = "no module of its own computes it: its rounding was not learned"


@dataclass(frozen=True, eq=False)
class Station:
    """A block whose linear maps are rounded, and all that is known of it while the text stands before it.

    `model`    holds the block with its full-precision weights; maps that are not in `start` have their codes already
    `turns`    what each batch calls it with, after the quantized blocks before it
    `targets`  what the full-precision model gives there for each, (rows, length, width)
    `start`    the codes of its maps with their grids, by the name of the tensor
    `weights`  its tensors
    `tick`     is to be called as often as `Refine.ticks` says
    """

    index: int
    stack: str
    model: PreTrainedModel
    turns: tuple[Turn, ...]
    targets: tuple[Tensor, ...]
    weights: Mapping[str, Weight]
    start: Mapping[str, tuple[Codes, Grid]]
    tick: Callable[[], None]


class Refine(Protocol):
    """Finds better codes for a block; what it does may depend on nothing but the station.

    `held_out`  documents that are to come in batches of their own
    `ticks`  how many steps of progress a block takes
    """

    @property
    def held_out(self) -> Collection[int]: ...

    @property
    def ticks(self) -> int: ...

    def __call__(self, station: Station) -> Mapping[str, Codes]:
        """Returns codes for all maps that have some at the start, of the same shapes and types."""


class Originals:
    """The hidden states of the full-precision model, batch by batch, on the way beside those of the quantized one."""

    def __init__(self) -> None:
        self._states: tuple[Tensor | None, ...] = ()

    @torch.no_grad()
    def passed(self, turns: Sequence[Turn]) -> tuple[Tensor, ...]:
        """Returns what they are after a block that has its full-precision weights now, and takes them there.

        Where a stack begins, they begin as those of the quantized model.
        """
        before = self._states or (None,) * len(turns)
        pairs = zip(turns, before, strict=True)
        after = tuple(turn.output(states if turn.goes_on else None) for turn, states in pairs)
        self._states = after
        return after


def refined(
    refine: Refine,
    block: Block,
    layers: Mapping[str, tuple[Codes, Grid]],
    *,
    shell: Shell,
    turns: tuple[Turn, ...],
    targets: tuple[Tensor, ...],
    tick: Callable[..., None],
) -> Mapping[str, Codes]:
    """Returns the codes that `refine` finds for the maps that modules compute; the others take part with their own.

    The block must have its full-precision weights.
    """
    modules = dict(shell.model.named_modules())
    start = {name: each for name, each in layers.items() if is_observable(block.weights[name], modules)}
    left = {name: codes for name, (codes, _) in layers.items() if name not in start}
    if not start:
        tick(refine.ticks)
        return {}
    if left:
        shell.fill(block, left)
    return refine(Station(block.index, block.stack, shell.model, turns, targets, block.weights, start, tick))
