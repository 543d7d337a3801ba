"""The importance of input channels: E[x²] of every layer in every language, with one block in memory at a time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.forward.batches import Batch, batches
from fairbits.forward.lockstep import lockstep, positions_at_once
from fairbits.forward.recorder import probed_linears
from fairbits.forward.streaming import BlockLoader
from fairbits.forward.windows import Text
from fairbits.models.architecture.architecture import Weight
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.streaming_model import walk_dtype
from fairbits.quantization.gptq.hessian import HessianAccumulator, InputPoint, TextLanguages, stack_of

SCATTERED = "each expert sees only some of the tokens"


@dataclass(frozen=True, eq=False)
class ChannelImportance:
    """E_λ[x²] of the inputs of linear layers in the blocks, over the positions of text.

    `squares`    (languages, in) by the name of the weight
    `positions`  how many positions of text each language has
    `left_out`   which maps have none, and why
    """

    languages: tuple[str, ...]
    squares: Mapping[str, Floats]
    positions: Floats
    left_out: Mapping[str, str]


def channel_importance(
    checkpoint: Checkpoint, text: Text, *, device: str = "cpu", progress: Progress | None = None
) -> ChannelImportance:
    """Returns the importance of all input channels of a causal model, after one forward pass over the text."""
    dtype = walk_dtype(checkpoint, device)
    loader = BlockLoader(checkpoint, device, dtype=dtype)
    model, languages = loader.model.model, TextLanguages.of(text, {})
    positions = positions_at_once(checkpoint, text, device=device, dtype=dtype)
    chosen = [batch.on(device) for batch in batches(text, positions=positions)]
    linears, hidden = probed_linears(checkpoint.architecture, model)
    squares: dict[str, Floats] = {}
    left_out = dict(hidden)
    ids = torch.cat([batch.inputs["input_ids"].flatten() for batch in chosen])
    loader.model.load_outside(torch.unique(ids).cpu(), {})
    done = _Ticks(progress, len(chosen) * len(loader.blocks))
    with lockstep(model, [block.module for block in loader.blocks], chosen) as walk:
        for index in loader.loaded(range(len(loader.blocks))):
            own = {name: weight for name, weight in linears.items() if weight.block == index}
            inputs = HessianAccumulator(languages, _points(own))
            with inputs.observe(model, to_the_end=True) as start:
                walk.advance(done.counting(start))
            for name, weight in own.items():
                found = inputs.statistics(weight.sees)
                if found is None or found.squares is None:
                    left_out[name] = SCATTERED
                else:
                    squares[name] = _checked(name, found.squares)
    return ChannelImportance(text.languages, squares, languages.positions_in("main"), left_out)


def _points(linears: Mapping[str, Weight]) -> dict[str, InputPoint]:
    return {
        weight.sees: InputPoint(weight.module, stack_of(weight), True, False)
        for weight in linears.values()
        if weight.sees is not None
    }


def _checked(name: str, squares: Floats) -> Floats:
    if not np.isfinite(squares).all():
        raise InputError(f"the input of {name} is NaN or infinite on this text; check the model's weights")
    return squares


class _Ticks:
    """Reports progress in batches that have passed a block."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def counting(self, start: Callable[[Batch], None]) -> Callable[[Batch], None]:
        """Returns the function that starts a batch, and counts it."""

        def before(batch: Batch) -> None:
            start(batch)
            self._done += 1
            if self._progress is not None:
                self._progress("reading text", self._done, self._total)

        return before
