"""What a scheme does to the weights, one linear map at a time."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fairbits.checks import Floats
from fairbits.memory import ERROR_ROWS
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.groups import error_of
from fairbits.model.scheme import Scheme


def weight_errors(checkpoint: Checkpoint, linears: tuple[str, ...], *, scheme: Scheme) -> Iterator[tuple[str, Tensor]]:
    """Yields ΔW (out, in) of every linear map, one at a time."""
    for name in linears:
        W = checkpoint.read(name).float()
        yield name, error_of(W.T if checkpoint.architecture.weights[name].transposed else W, scheme)


def column_errors(checkpoint: Checkpoint, linears: tuple[str, ...], *, scheme: Scheme) -> dict[str, Floats]:
    """Returns m_j = Σ_i ΔW_ij² of every input channel j of every linear map."""
    # made first: results that lie between large arrays keep the system from taking back the memory of these
    columns: dict[str, Floats] = {name: np.zeros(checkpoint.architecture.weights[name].shape[1]) for name in linears}
    for name, error in weight_errors(checkpoint, linears, scheme=scheme):
        for rows in torch.split(error, ERROR_ROWS):
            columns[name] += rows.double().square_().sum(0).numpy()
    return columns
