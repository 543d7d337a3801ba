"""The rounding of one block: its linear layers one after the other, shared by the ranks that there are.

One linear layer: its codes, and the record of its rounding.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.core.tensors import all_finite
from fairbits.models.architecture.records import Block, Weight
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import tensor_cores
from fairbits.models.io.formats import DEFAULT_FORMAT
from fairbits.models.io.read_ahead import ReadAhead
from fairbits.models.io.stored_weights import scale_dtype
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.groups import Codes, Notes, choose_scales, round_to_nearest, scheme_grid
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization.gptq.columns import gptq
from fairbits.quantization.gptq.hessian import HessianAccumulator, InputStatistics
from fairbits.quantization.gptq.ranks import ALONE, Ranks
from fairbits.quantization.gptq.refinement import NOT_LEARNED, RefineBlock
from fairbits.quantization.plan import LayerResult, LearningResult, Plan

UNSEEN = "its input cannot be observed: rounded to nearest, with scales set by the largest weight"
STARVED = "no calibration text reached this expert: rounded to nearest, with scales set by the largest weight"


def matrix(checkpoint: Checkpoint, weight: Weight, *, read: Callable[[str], Tensor] | None = None) -> Tensor:
    """Returns a linear layer, or a table, as (out, in) in float32.

    `read` gives the tensor on the device where it is to be, if the checkpoint itself is not to be asked.
    """
    if weight.stacked is not None or len(weight.shape) != 2:
        raise InputError(
            f"{weight.name} has shape {checkpoint.tensors[weight.name].shape}; only matrices become codes: "
            "keep it as it is, or store every expert in a tensor of its own"
        )
    stored = (checkpoint.read if read is None else read)(weight.name)
    W = (stored.T if weight.transposed else stored).float()
    if not all_finite(W):
        raise InputError(f"{weight.name} holds NaN or infinite weights; repair or replace the checkpoint first")
    return W


def round_layer(
    W: Tensor, scheme: Scheme, *, dtype: torch.dtype, inputs: InputStatistics | None
) -> tuple[Codes, Notes]:
    """Returns the codes of W (out, in) by a scheme, with scales of `dtype`, and a note on every fall-back.

    `inputs` is None if the map's input cannot be observed. GPTQ weights the exact clip by the diagonal of H, which is
    E[x²] of the mixture of languages, unless the objective is the worst language or regret.
    """
    grid = scheme_grid(scheme)
    if not scheme.reads_text:
        scales, notes = choose_scales(W, scheme, dtype=dtype)
        return round_to_nearest(W, scales, grid=grid), notes
    if inputs is None:
        # not the unweighted exact clip, which may cut off vital weights
        scales, notes = choose_scales(W, replace(scheme, clip="absmax", objective=None), dtype=dtype)
        return round_to_nearest(W, scales, grid=grid), (UNSEEN, *notes)
    H, importance, pi = inputs.H, inputs.squares, inputs.pi
    if H is not None and scheme.clip == "exact" and scheme.objective not in ("worst", "regret"):
        importance, pi = H.diagonal()[None].double().cpu().numpy(), np.ones(1)
    scales, notes = choose_scales(W, scheme, importance=importance, pi=pi, dtype=dtype)
    if scheme.rounding == "nearest" or H is None or inputs.factor is None:
        return round_to_nearest(W, scales, grid=grid), (*notes, *(inputs.notes if scheme.rounding == "gptq" else ()))
    found = gptq(W.to(H.device), H, scales.to(H.device), grid=grid, factor=inputs.factor)
    codes = Codes(found.codes.codes.to(W.device), scales, grid.bits)
    kept = f"nearest rounding was better in {found.kept_nearest} of {len(W)} rows, and is kept there"
    return codes, (*notes, *inputs.notes, *([kept] if found.kept_nearest else []))


def language_scales(W: Tensor, scheme: Scheme, squares: Floats, *, dtype: torch.dtype) -> Tensor:
    """Returns the exact scales of each language alone, (languages, out, groups), given E_λ[x²]."""
    alone = replace(scheme, clip="exact", objective="mean", rounding="nearest")
    return torch.stack([choose_scales(W, alone, importance=h[None], dtype=dtype)[0].cpu() for h in squares])


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
        size_bytes=DEFAULT_FORMAT.layer_bytes(weight, scheme, dtype=codes.scales.dtype),
        alpha=(alpha[0], alpha[1], alpha[2]),
        weight_error=lost / energy if energy > 0 else 0.0,
        notes=notes,
    )
    return result, change


def _numbers(W: Tensor, change: Tensor, scales: Tensor, grid: Grid) -> list[float]:
    """Returns ΣW², ΣΔW², and the least, the median and the largest clipping threshold.

    On a GPU nothing is copied in float64, and the host waits once for all five.
    """
    if not W.is_cuda:
        alpha = grid.alpha(scales.double().numpy())
        sums = [float(torch.linalg.vector_norm(each, dim=1).double().square().sum()) for each in (W, change)]
        return [*sums, float(alpha.min()), float(np.median(alpha)), float(alpha.max())]
    energy, lost = (torch.linalg.vector_norm(each, dtype=torch.float64).square() for each in (W, change))
    ordered = scales.flatten().abs().sort().values
    count = ordered.numel()
    low, below, above, high = ordered[[0, (count - 1) // 2, count // 2, -1]].double() * grid.steps_per_alpha
    found: list[float] = torch.stack([energy, lost, low, (below + above) / 2, high]).tolist()
    return found


@dataclass(frozen=True, eq=False)
class RoundedBlock:
    """A block whose linear layers are rounded; `index` is None for what lies outside the blocks.

    `layers`      codes by the name of the tensor in the checkpoint
    `outcomes`    size and errors of each
    `thresholds`  scales of each language of the plan alone, (languages, out, groups), if the plan has `thresholds`
    `learned`     the result of learning, in the last block only
    """

    index: int | None
    layers: Mapping[str, Codes]
    outcomes: tuple[LayerResult, ...]
    thresholds: Mapping[str, Tensor] = field(default_factory=dict)
    learned: LearningResult | None = None

    def on(self, device: str) -> "RoundedBlock":
        """Returns the block with its codes on a device."""
        return replace(self, layers={name: codes.on(device) for name, codes in self.layers.items()})


Finished = Callable[[int | None], RoundedBlock | None]


class Counter:
    """Counts what is done, and reports it."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._done, self.total = progress, 0, 0

    def add(self, count: int = 1) -> None:
        self._done += count
        if self._progress is not None:
            self._progress("rounding blocks", self._done, self.total)


@dataclass(frozen=True, eq=False)
class BlockRounding:
    """A plan that is executed: what all blocks are rounded with.

    `finished`  gives the blocks that an interrupted run already has
    `ticks`     counts what is done
    `dtype`     the type in which text passes through the blocks
    `narrow`    whether the model has 16 bits and passes on a GPU: its tensor cores then compute also in float32
    `refine`    finds better codes for a block after rounding
    """

    checkpoint: Checkpoint
    plan: Plan
    finished: Finished
    ticks: Counter
    device: str
    dtype: torch.dtype
    narrow: bool = False
    refine: RefineBlock | None = None
    ranks: Ranks = ALONE

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.checkpoint.architecture.blocks

    @property
    def refinement_ticks(self) -> int:
        return 0 if self.refine is None else self.refine.ticks

    def precision(self) -> AbstractContextManager[None]:
        """Returns a context in which text passes through blocks and H is added up.

        Numbers of 16 bits lose next to nothing on tensor cores, which are many times faster.
        """
        return tensor_cores() if self.narrow else nullcontext()

    def schemes(self, index: int | None) -> dict[str, Scheme]:
        """Returns the schemes of the layers of a block that are quantized."""
        weights = self.checkpoint.architecture.weights
        return {name: scheme for name, scheme in self.plan.schemes.items() if weights[name].block == index}

    def read_ahead(self, indices: Iterable[int | None], *, whole: bool = False) -> ReadAhead:
        """Returns a reader of the blocks in this order: of what is rounded in them, or of the `whole` blocks."""
        parts = []
        for index in indices:
            names = list(self.schemes(index) if whole else self._own_schemes(index))
            if whole and index is not None:
                names += self.blocks[index].weights.keys() - set(names)
            parts.append(names)
        return ReadAhead(self.checkpoint, self.device, parts)

    def round_block(
        self, index: int | None, reader: ReadAhead, inputs: HessianAccumulator | None = None
    ) -> tuple[RoundedBlock, dict[str, Tensor]]:
        """Returns a block with its codes, still without the errors of languages, and ΔW of every map in it."""
        dtype, weights = scale_dtype(self.checkpoint), self.checkpoint.architecture.weights
        layers: dict[str, Codes] = {}
        outcomes: dict[str, LayerResult] = {}
        changes, thresholds = {}, {}
        own = self._own_schemes(index)
        for sees, names in _by_input(weights, own).items():
            # one factor for all maps that share the input
            known = None if inputs is None else inputs.statistics(sees)
            for name in names:
                W, scheme = matrix(self.checkpoint, weights[name], read=reader.read), own[name]
                try:
                    layers[name], notes = round_layer(W, scheme, dtype=dtype, inputs=known)
                except InputError as problem:
                    raise InputError(f"{name}: {problem}") from None
                if inputs is not None and inputs.is_starved(sees):
                    notes = tuple(STARVED if note == UNSEEN else note for note in notes)
                outcomes[name], changes[name] = layer_result(weights[name], W, layers[name], scheme, notes)
                if self.plan.thresholds and known is not None and known.squares is not None:
                    squares = known.squares[[known.languages.index(code) for code in self.plan.languages]]
                    thresholds[name] = language_scales(W, scheme, squares, dtype=dtype)
                self.ticks.add()
            if inputs is not None:
                inputs.release(sees)
        ordered = {name: layers[name] for name in own}
        done = RoundedBlock(index, ordered, tuple(outcomes[name] for name in own), thresholds)
        return (done, changes) if self.ranks.alone else self._join(done, changes, reader, wanted=inputs is not None)

    def _own_schemes(self, index: int | None) -> dict[str, Scheme]:
        """Returns the schemes of the layers that this rank rounds; those that share an input stay together."""
        weights, schemes = self.checkpoint.architecture.weights, self.schemes(index)
        costs: dict[str, float] = {}
        for name, scheme in schemes.items():
            (out, width), sees = weights[name].shape, weights[name].sees or name
            # a product of each column with those before it; and once for each input, the factor of H
            cost = width * (out + (0 if sees in costs else width)) if scheme.rounding == "gptq" else 1
            costs[sees] = costs.get(sees, 0.0) + cost * width
        owner = self.ranks.owners(costs)
        return {name: each for name, each in schemes.items() if owner[weights[name].sees or name] == self.ranks.rank}

    def _join(
        self, part: RoundedBlock, changes: dict[str, Tensor], reader: ReadAhead, *, wanted: bool
    ) -> tuple[RoundedBlock, dict[str, Tensor]]:
        """Returns the block with what all ranks have rounded of it; ΔW of the others' maps only where it is wanted."""
        parts = list(self.ranks.each(part))
        layers = {name: codes for each in parts for name, codes in each.layers.items()}
        outcomes = {result.name: result for each in parts for result in each.outcomes}
        thresholds = {name: scales for each in parts for name, scales in each.thresholds.items()}
        weights, schemes = self.checkpoint.architecture.weights, self.schemes(part.index)
        for name in schemes.keys() - changes.keys() if wanted else ():
            W = matrix(self.checkpoint, weights[name], read=reader.read)
            changes[name] = weight_change(W, layers[name].on(W.device))
        self.ticks.add(len(schemes) - len(part.layers))
        done = RoundedBlock(
            part.index,
            {name: layers[name] for name in schemes},
            tuple(outcomes[name] for name in schemes),
            {name: thresholds[name] for name in schemes if name in thresholds},
        )
        return done, changes

    def replace_codes(
        self, done: RoundedBlock, codes: Mapping[str, Codes], reader: ReadAhead
    ) -> tuple[RoundedBlock, dict[str, Tensor]]:
        """Returns a block with other codes for some of its maps, and ΔW of every map in it."""
        weights, schemes = self.checkpoint.architecture.weights, self.schemes(done.index)
        layers = {**done.layers, **codes}
        outcomes, changes = [], {}
        for old in done.outcomes:
            name, notes = old.name, old.notes if old.name in codes else (*old.notes, NOT_LEARNED)
            W = matrix(self.checkpoint, weights[name], read=reader.read)
            layers[name] = layers[name].on(W.device)
            outcome, changes[name] = layer_result(weights[name], W, layers[name], schemes[name], notes)
            outcomes.append(outcome)
        return replace(done, layers=layers, outcomes=tuple(outcomes)), changes


def _by_input(weights: Mapping[str, Weight], names: Iterable[str]) -> dict[str | None, list[str]]:
    """Returns the names of linear layers by the input that they share."""
    found: dict[str | None, list[str]] = {}
    for name in names:
        found.setdefault(weights[name].sees, []).append(name)
    return found
