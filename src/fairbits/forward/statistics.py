"""ActivationStatistics: sums of one pass over text, per document and language, and rounding errors of the weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbits.core.array_checks import Floats
from fairbits.core.memory import ERROR_ROWS
from fairbits.forward.experts import BlockExperts
from fairbits.forward.recorder import Point, PointKind
from fairbits.forward.windows import Task
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.read_ahead import ReadAhead
from fairbits.models.scales.groups import rounding_error
from fairbits.models.scales.scheme import Scheme

Codes = NDArray[np.intp]
Measure = Literal["positions", "norm", "square"]


@dataclass(frozen=True, eq=False)
class ActivationStatistics:
    """What was measured of a model on the text of each language. Sums are float64, over positions that hold text.

    Per document: `predicted` (the number of predicted tokens), `nll` and `entropy` (nats, summed over those tokens),
    `positions`, `norm` and `square` (documents, points): the positions themselves, Σ‖x‖ and Σ‖x‖².

    Per language: `channels[point]` (languages, width): E[x_j²]; `gradients[linear]` (languages, out): Σ g_i² per
    predicted token, g the Fisher gradient of the output; `inputs[point]`, if requested, (languages, width, width): E[x
    xᵀ] of every input point, in float32.

    `seen_by` names the point that is the input of each linear layer; `left_out` says which maps were not measured, and
    why.

    `estimated` is how many documents have an estimated size, as in `Text`; `dtype` is what the model computed in, and
    `notes` are what a reader must know about the pass; `experts` are the blocks that have experts.

    Per scheme and document: `damage[form]` (documents, linears), nats summed over the document.
    """

    task: Task
    languages: tuple[str, ...]
    lang: NDArray[np.str_]
    document: Codes
    size_bytes: Floats
    predicted: Floats
    nll: Floats
    entropy: Floats
    points: tuple[Point, ...]
    positions: Floats
    norm: Floats
    square: Floats
    channels: Mapping[str, Floats]
    gradients: Mapping[str, Floats]
    inputs: Mapping[str, Floats]
    linears: tuple[str, ...]
    seen_by: Mapping[str, str]
    left_out: Mapping[str, str]
    damage: Mapping[Scheme, Mapping[str, Floats]]
    unigrams: NDArray[np.int64]
    estimated: int = 0
    dtype: str = "float32"
    notes: tuple[str, ...] = ()
    experts: tuple[BlockExperts, ...] = ()

    def blocks(self, kind: PointKind) -> list[int]:
        """Returns the blocks that have a point of this kind."""
        return [point.block for point in self.points if point.kind == kind and point.block is not None]

    def sums(self, kind: PointKind, measure: Measure) -> Floats:
        """Returns a measure of every document at the points of a kind, (documents, blocks)."""
        chosen = [i for i, point in enumerate(self.points) if point.kind == kind]
        table: Floats = getattr(self, measure)[:, chosen]
        return table


def weight_errors(
    checkpoint: Checkpoint, linears: tuple[str, ...], *, scheme: Scheme, device: str = "cpu"
) -> Iterator[tuple[str, Tensor]]:
    """Yields ΔW (out, in) of every linear layer, one at a time, on the device."""
    with ReadAhead(checkpoint, device, [[name] for name in linears]) as reader:
        for name in linears:
            W = reader.read(name).float()
            yield name, rounding_error(W.T if checkpoint.architecture.weights[name].transposed else W, scheme)


def column_errors(
    checkpoint: Checkpoint, linears: tuple[str, ...], *, scheme: Scheme, device: str = "cpu"
) -> dict[str, Floats]:
    """Returns m_j = Σ_i ΔW_ij² of every input channel j of every linear layer."""
    # allocated first: results placed between large arrays would keep the system from reclaiming their memory
    columns: dict[str, Floats] = {name: np.zeros(checkpoint.architecture.weights[name].shape[1]) for name in linears}
    for name, error in weight_errors(checkpoint, linears, scheme=scheme, device=device):
        sums = torch.zeros(error.shape[1], dtype=torch.float64, device=error.device)
        for rows in torch.split(error, ERROR_ROWS):
            sums += rows.double().square_().sum(0)
        columns[name][:] = sums.cpu().numpy()
    return columns
