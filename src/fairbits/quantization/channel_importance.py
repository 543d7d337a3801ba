"""The importance of input channels: E[x²] of every layer in every language, with one block in memory at a time."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.forward.batches import batches
from fairbits.forward.lockstep import VisitProgress, lockstep, positions_at_once
from fairbits.forward.recorder import observable_linears
from fairbits.forward.streaming import BlockLoader
from fairbits.forward.windows import TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.streaming_model import walk_dtype
from fairbits.quantization.gptq.hessian import HessianAccumulator, InputPoint, TextLanguages, input_stack

SCATTERED = "each expert sees only some of the tokens"


@dataclass(frozen=True, eq=False)
class ChannelImportance:
    """E_λ[x²] of the inputs of linear layers in the blocks, over the positions of text."""

    languages: tuple[str, ...]
    squares: Mapping[str, Floats]  # (languages, in) by the name of the weight
    positions: Floats  # how many positions of text each language has
    left_out: Mapping[str, str]  # which layers have none, and why


def channel_importance(
    checkpoint: Checkpoint, text: TokenizedText, *, device: str = "cpu", progress: Progress | None = None
) -> ChannelImportance:
    """Returns the importance of all input channels of a causal model, after one forward pass over the text."""
    dtype = walk_dtype(checkpoint, device)
    loader = BlockLoader(checkpoint, device, dtype=dtype)
    model, languages = loader.model.model, TextLanguages.of(text, {})
    positions = positions_at_once(checkpoint.hidden_size, text, device=device, dtype=dtype)
    chosen = [batch.on(device) for batch in batches(text, positions=positions)]
    linears, hidden = observable_linears(checkpoint.architecture, model)
    squares: dict[str, Floats] = {}
    left_out = dict(hidden)
    ids = torch.cat([batch.inputs["input_ids"].flatten() for batch in chosen])
    loader.model.load_outside(torch.unique(ids).cpu(), {})
    counter = VisitProgress(progress, "reading text", visits=len(chosen) * len(loader.blocks))
    with lockstep(model, [block.module for block in loader.blocks], chosen) as walk:
        for index in loader.loaded(range(len(loader.blocks))):
            inside = {name: weight for name, weight in linears.items() if weight.block == index}
            points = {
                weight.sees: InputPoint(weight.module, input_stack(weight), True, False)
                for weight in inside.values()
                if weight.sees is not None
            }
            inputs = HessianAccumulator(languages, points)
            with inputs.observe(model, to_the_end=True) as start:
                walk.advance(counter.counting(start))
            for name, weight in inside.items():
                statistics = inputs.statistics(weight.sees)
                if statistics is None or statistics.squares is None:
                    left_out[name] = SCATTERED
                elif np.isfinite(statistics.squares).all():
                    squares[name] = statistics.squares
                else:
                    raise InputError(f"the input of {name} is NaN or infinite on this text; check the model's weights")
    return ChannelImportance(text.languages, squares, languages.positions_in("main"), left_out)
