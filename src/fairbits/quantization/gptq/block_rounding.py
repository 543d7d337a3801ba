"""The rounding of one block: its linear layers one after the other, shared by the ranks that there are.

After rounding, something else may find better codes before the text goes on to the next block. The engine knows
nothing of learning, which is above it: it offers a `BlockContext` to whatever `RefineBlock` it was given.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.core.tensors import all_finite
from fairbits.forward.lockstep import PausedBatch, VisitProgress
from fairbits.models.architecture.architecture import Block, Weight
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import tensor_cores
from fairbits.models.io.layer_files import layer_bytes
from fairbits.models.scales.float_scales import E4M3, AnyGrid, full_global_scale
from fairbits.models.scales.groups import (
    INPUT_GLOBAL_SCALE,
    INPUT_SCALE,
    WEIGHT_GLOBAL_SCALE,
    Codes,
    Notes,
    choose_scales,
    round_to_nearest,
    scheme_grid,
)
from fairbits.models.scales.scheme import Scheme
from fairbits.models.streaming_model import ReadAhead
from fairbits.quantization.gptq.columns import gptq
from fairbits.quantization.gptq.hessian import HessianAccumulator, InputStatistics
from fairbits.quantization.gptq.ranks import ALONE, Ranks
from fairbits.quantization.plan import LayerResult, LearningResult, Plan

UNSEEN = "its input cannot be observed: rounded to nearest, with scales set by the largest weight"
UNREACHED = "no calibration text reached this expert: rounded to nearest, with scales set by the largest weight"
NO_CONSTANTS: Mapping[str, Tensor] = MappingProxyType({})
NOT_LEARNED = "no module computes it alone, so its rounding was not learned"


def matrix(checkpoint: Checkpoint, weight: Weight, *, read: Callable[[str], Tensor] | None = None) -> Tensor:
    """Returns a linear layer or table as (out, in) in float32; `read` gives its tensor instead of the checkpoint."""
    if weight.stacked is not None or len(weight.shape) != 2:
        raise InputError(
            f"{weight.name} has shape {checkpoint.tensors[weight.name].shape}; only matrices can be quantized: "
            "keep it as it is, or store every expert in a separate tensor"
        )
    stored = (checkpoint.read if read is None else read)(weight.name)
    W = (stored.T if weight.transposed else stored).float()
    if not all_finite(W):
        raise InputError(f"{weight.name} contains NaN or infinite weights; repair or replace the checkpoint first")
    return W


def round_layer(
    W: Tensor,
    scheme: Scheme,
    *,
    dtype: torch.dtype,
    inputs: InputStatistics | None,
    constants: Mapping[str, Tensor] = NO_CONSTANTS,
    largest: Tensor | None = None,
) -> tuple[Codes, Notes]:
    """Returns the codes of W (out, in) by a scheme, with scales of `dtype`, and a note on every fall-back.

    `inputs` is None if the layer's input cannot be observed. GPTQ weights the exact clip by the diagonal of H, which is
    E[x²] of the mixture of languages, unless the objective is the worst language or regret. `constants` are what the
    format has for the whole layer, and `largest` is the largest |w| of the layers that servers join with it.
    """
    codes, notes = _round(W, scheme, dtype, inputs, largest)
    return replace(codes, constants=constants), notes


def _round(
    W: Tensor, scheme: Scheme, dtype: torch.dtype, inputs: InputStatistics | None, largest: Tensor | None
) -> tuple[Codes, Notes]:
    grid, choose = scheme_grid(scheme), partial(choose_scales, W, dtype=dtype, largest=largest)
    if not scheme.weighs_inputs:
        scales, notes = choose(scheme)
        return round_to_nearest(W, scales, grid=grid), notes
    if inputs is None:
        # not the unweighted exact clip, which may cut off vital weights
        scales, notes = choose(replace(scheme, clip="absmax", objective=None))
        return round_to_nearest(W, scales, grid=grid), (UNSEEN, *notes)
    H, importance, pi = inputs.H, inputs.squares, inputs.pi
    if H is not None and scheme.clip == "exact" and scheme.objective not in ("worst", "regret"):
        importance, pi = H.diagonal()[None].double().cpu().numpy(), np.ones(1)
    scales, notes = choose(scheme, importance=importance, pi=pi)
    if scheme.rounding == "nearest" or H is None or inputs.factor is None:
        return round_to_nearest(W, scales, grid=grid), (*notes, *(inputs.notes if scheme.rounding == "gptq" else ()))
    rounded = gptq(W.to(H.device), H, scales.to(H.device), grid=grid, factor=inputs.factor)
    codes = replace(rounded.codes, codes=rounded.codes.codes.to(W.device), scales=scales)
    kept = f"nearest rounding was better in {rounded.kept_nearest} of {len(W)} rows, and is kept there"
    return codes, (*notes, *inputs.notes, *([kept] if rounded.kept_nearest else []))


def tensor_constants(scheme: Scheme, largest: Tensor | None, largest_input: float | None) -> dict[str, Tensor]:
    """Returns what a format has for a whole layer, given the largest |w| of all layers that servers join with it.

    An input that no text reached has a scale of 1.
    """
    constants: dict[str, Tensor] = {}
    if scheme.scales == "e4m3" and largest is not None:
        constants[WEIGHT_GLOBAL_SCALE] = full_global_scale(largest)
    if scheme.inputs == "static":
        if largest_input is None:
            raise InputError(
                f"{scheme.format} has a scale for the inputs of this layer, which cannot be observed; choose a format "
                "whose inputs have dynamic scales, such as FP8_DYNAMIC, or weights only, such as NVFP4A16"
            )
        x = torch.tensor(largest_input)
        if scheme.scales == "e4m3":
            constants[INPUT_GLOBAL_SCALE] = full_global_scale(x)
        else:
            constants[INPUT_SCALE] = torch.where(x > 0, x / E4M3.largest, 1.0).reshape(1)
    return constants


def language_scales(
    W: Tensor, scheme: Scheme, squares: Floats, *, dtype: torch.dtype, largest: Tensor | None = None
) -> Tensor:
    """Returns the exact scales of each language alone, (languages, out, groups), given E_λ[x²]."""
    alone = replace(scheme, clip="exact", objective="mean", rounding="nearest")
    choose = partial(choose_scales, W, alone, dtype=dtype, largest=largest)
    return torch.stack([choose(importance=h[None])[0].cpu() for h in squares])


def weight_change(W: Tensor, codes: Codes) -> Tensor:
    """Returns ΔW in float32."""
    return replace(codes).dequantized.float().sub_(W)  # from a copy, as codes keep what they were dequantized to


def layer_result(weight: Weight, W: Tensor, codes: Codes, scheme: Scheme, notes: Notes) -> tuple[LayerResult, Tensor]:
    """Returns the result of a linear layer, still without the error of each language, and ΔW in float32."""
    change = weight_change(W, codes)
    energy, lost, *alpha = _numbers(W, change, codes.scales, scheme_grid(scheme))
    result = LayerResult(
        name=weight.name,
        bits=scheme.bits,
        size_bytes=layer_bytes(weight, scheme, dtype=codes.scales.dtype),
        alpha=(alpha[0], alpha[1], alpha[2]),
        weight_error=lost / energy if energy > 0 else 0.0,
        notes=notes,
    )
    return result, change


def _numbers(W: Tensor, change: Tensor, scales: Tensor, grid: AnyGrid) -> list[float]:
    """Returns ΣW², ΣΔW², and the least, median and largest threshold; on a GPU the host waits once for all five."""
    if not W.is_cuda:
        alpha = grid.alpha(scales.double().numpy())
        sums = [float(torch.linalg.vector_norm(weights, dim=1).double().square().sum()) for weights in (W, change)]
        return [*sums, float(alpha.min()), float(np.median(alpha)), float(alpha.max())]
    energy, lost = (torch.linalg.vector_norm(weights, dtype=torch.float64).square() for weights in (W, change))
    ordered = scales.flatten().abs().sort().values
    count = ordered.numel()
    low, below, above, high = ordered[[0, (count - 1) // 2, count // 2, -1]].double() * grid.steps_per_alpha
    numbers: list[float] = torch.stack([energy, lost, low, (below + above) / 2, high]).tolist()
    return numbers


@dataclass(frozen=True, eq=False)
class RoundedBlock:
    """A block whose linear layers are rounded; `index` is None for the layers outside the blocks."""

    index: int | None
    layers: Mapping[str, Codes]  # codes by the name of the tensor in the checkpoint
    results: tuple[LayerResult, ...]  # size and errors of each
    thresholds: Mapping[str, Tensor] = field(default_factory=dict)  # scales of each language, (languages, out, groups)
    learned: LearningResult | None = None  # the result of learning, in the last block only

    def on(self, device: str) -> "RoundedBlock":
        return replace(self, layers={name: codes.on(device) for name, codes in self.layers.items()})


Finished = Callable[[int | None], RoundedBlock | None]


@dataclass(frozen=True, eq=False)
class BlockContext:
    """A block whose layers are rounded, and all that is known of it while the batches are paused before it."""

    index: int
    stack: str
    model: PreTrainedModel  # with full-precision weights; layers that are not in `start` have their codes
    batches: tuple[PausedBatch, ...]  # have the inputs of the block, which the quantized blocks before it have produced
    targets: tuple[Tensor, ...]  # the full-precision hidden states after the block, (rows, length, channels)
    weights: Mapping[str, Weight]
    start: Mapping[str, tuple[Codes, Scheme]]  # codes of its layers with their schemes, by name
    tick: Callable[[], None]


class RefineBlock(Protocol):
    """Finds better codes for a block from the context alone; `held_out` documents are to be in separate batches."""

    @property
    def held_out(self) -> Collection[int]: ...

    @property
    def ticks(self) -> int: ...

    def __call__(self, context: BlockContext) -> Mapping[str, Codes]:
        """Returns codes for all linear layers in `context.start`, with the same shapes and types."""


@dataclass(frozen=True, eq=False)
class BlockRounding:
    """A plan that is executed: what all blocks are rounded with."""

    checkpoint: Checkpoint
    plan: Plan
    finished: Finished  # gives the blocks that an interrupted run already has
    counter: VisitProgress
    device: str
    dtype: torch.dtype  # the type in which text passes through the blocks
    narrow: bool = False  # 16 bits on a GPU, whose tensor cores then compute also in float32
    refine: RefineBlock | None = None
    ranks: Ranks = ALONE

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.checkpoint.architecture.blocks

    @property
    def refinement_ticks(self) -> int:
        return 0 if self.refine is None else self.refine.ticks

    def precision(self) -> AbstractContextManager[None]:
        """Returns the context for passes and H; tensor cores are many times faster and lose little on 16 bits."""
        return tensor_cores() if self.narrow else nullcontext()

    def schemes(self, index: int | None) -> dict[str, Scheme]:
        weights = self.checkpoint.architecture.weights
        return {name: scheme for name, scheme in self.plan.schemes.items() if weights[name].block == index}

    def read_ahead(self, indices: Iterable[int | None], *, whole: bool = False) -> ReadAhead:
        """Returns a reader of the blocks in this order: of what is rounded in them, or of the `whole` blocks."""
        parts = []
        for index in indices:
            names = list(self.schemes(index) if whole else self._rank_schemes(index))
            if whole and index is not None:
                names += self.blocks[index].weights.keys() - set(names)
            parts.append(names)
        return ReadAhead(self.checkpoint, self.device, parts)

    def round_block(
        self, index: int | None, reader: ReadAhead, inputs: HessianAccumulator | None = None
    ) -> tuple[RoundedBlock, dict[str, Tensor]]:
        """Returns a block with its codes, still without the errors of languages, and ΔW of its layers."""
        dtype, weights = self.checkpoint.scale_dtype, self.checkpoint.architecture.weights
        layers: dict[str, Codes] = {}
        results: dict[str, LayerResult] = {}
        changes, thresholds = {}, {}
        joined: dict[str, Tensor] = {}  # the largest weight of layers that servers join
        schemes = self._rank_schemes(index)
        for sees, names in _by_input(weights, schemes).items():
            # one factor for all layers that share the input
            statistics = None if inputs is None else inputs.statistics(sees)
            ranges = None if inputs is None else inputs.largest(sees)
            counted = [value for code, value in (ranges or {}).items() if self.plan.languages.get(code, 0) > 0]
            for name in names:
                W, scheme = matrix(self.checkpoint, weights[name], read=reader.read), schemes[name]
                try:
                    largest = self._largest_weight(name, reader, joined) if scheme.has_tensor_scale else None
                    constants = tensor_constants(scheme, largest, max(counted) if counted else None)
                    layers[name], notes = round_layer(
                        W, scheme, dtype=dtype, inputs=statistics, constants=constants, largest=largest
                    )
                except InputError as problem:
                    raise InputError(f"{name}: {problem}") from None
                if inputs is not None and inputs.is_unreached(sees):
                    notes = tuple(UNREACHED if note == UNSEEN else note for note in notes)
                result, changes[name] = layer_result(weights[name], W, layers[name], scheme, notes)
                results[name] = replace(result, largest_input=ranges or {}) if scheme.inputs == "static" else result
                if self.plan.thresholds and statistics is not None and statistics.squares is not None:
                    rows = [statistics.languages.index(code) for code in self.plan.languages]
                    thresholds[name] = language_scales(
                        W, scheme, statistics.squares[rows], dtype=dtype, largest=largest
                    )
                self.counter.add()
            if inputs is not None:
                inputs.release(sees)
        ordered = {name: layers[name] for name in schemes}
        done = RoundedBlock(index, ordered, tuple(results[name] for name in schemes), thresholds)
        return (done, changes) if self.ranks.alone else self._join(done, changes, reader, wanted=inputs is not None)

    def _largest_weight(self, name: str, reader: ReadAhead, joined: dict[str, Tensor]) -> Tensor:
        """Returns the largest |w| of the layers that servers join with a layer; `joined` keeps what was computed."""
        architecture = self.checkpoint.architecture
        weight = architecture.weights[name]
        shared = weight.fused or name
        if shared not in joined:
            members = (weight,) if weight.fused is None else architecture.fused_groups[weight.fused]
            tensors = (matrix(self.checkpoint, member, read=reader.read) for member in members)
            ends = [torch.stack([W.amax(), -W.amin()]).amax() for W in tensors]  # makes no copy of the weights
            joined[shared] = torch.stack(ends).amax().cpu()
        return joined[shared]

    def _rank_schemes(self, index: int | None) -> dict[str, Scheme]:
        """Returns the schemes of the layers that this rank rounds; layers that share an input stay together."""
        weights, schemes = self.checkpoint.architecture.weights, self.schemes(index)
        costs: dict[str, float] = {}
        for name, scheme in schemes.items():
            (out, columns), sees = weights[name].shape, weights[name].sees or name
            # a product of each column with all before it; and once for each input, the factor of H
            cost = columns * (out + (0 if sees in costs else columns)) if scheme.rounding == "gptq" else 1
            costs[sees] = costs.get(sees, 0.0) + cost * columns
        owner, rank = self.ranks.owners(costs), self.ranks.rank
        return {name: scheme for name, scheme in schemes.items() if owner[weights[name].sees or name] == rank}

    def _join(
        self, part: RoundedBlock, changes: dict[str, Tensor], reader: ReadAhead, *, wanted: bool
    ) -> tuple[RoundedBlock, dict[str, Tensor]]:
        """Returns the block with what all ranks have rounded of it; ΔW of other ranks' layers only if it is wanted."""
        parts = list(self.ranks.each(part))
        layers = {name: codes for block in parts for name, codes in block.layers.items()}
        results = {result.name: result for block in parts for result in block.results}
        thresholds = {name: scales for block in parts for name, scales in block.thresholds.items()}
        weights, schemes = self.checkpoint.architecture.weights, self.schemes(part.index)
        for name in schemes.keys() - changes.keys() if wanted else ():
            W = matrix(self.checkpoint, weights[name], read=reader.read)
            changes[name] = weight_change(W, layers[name].on(W.device))
        self.counter.add(len(schemes) - len(part.layers))
        done = RoundedBlock(
            part.index,
            {name: layers[name] for name in schemes},
            tuple(results[name] for name in schemes),
            {name: thresholds[name] for name in schemes if name in thresholds},
        )
        return done, changes

    def replace_codes(
        self, done: RoundedBlock, codes: Mapping[str, Codes], reader: ReadAhead
    ) -> tuple[RoundedBlock, dict[str, Tensor]]:
        """Returns a block with other codes for some of its layers, and ΔW of all layers."""
        weights, schemes = self.checkpoint.architecture.weights, self.schemes(done.index)
        layers = {**done.layers, **codes}
        results, changes = [], {}
        for old in done.results:
            name, notes = old.name, old.notes if old.name in codes else (*old.notes, NOT_LEARNED)
            W = matrix(self.checkpoint, weights[name], read=reader.read)
            layers[name] = layers[name].on(W.device)
            result, changes[name] = layer_result(weights[name], W, layers[name], schemes[name], notes)
            results.append(replace(result, largest_input=old.largest_input))
        return replace(done, layers=layers, results=tuple(results)), changes


def _by_input(weights: Mapping[str, Weight], names: Iterable[str]) -> dict[str | None, list[str]]:
    groups: dict[str | None, list[str]] = {}
    for name in names:
        groups.setdefault(weights[name].sees, []).append(name)
    return groups
