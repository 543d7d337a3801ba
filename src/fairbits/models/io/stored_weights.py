"""What any file format must know about tensors: embeddings, tied parameters, stacked experts, the type of scales."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from fairbits.models.architecture.records import Weight
    from fairbits.models.checkpoint import Checkpoint

STACKS = frozenset({"gate_up_proj", "gate_proj", "up_proj", "down_proj"})
"""The names that transformers' own kernels expect of the parameters of a module of experts."""


def is_stack(name: str, shape: Sequence[int]) -> bool:
    """Returns whether a tensor may hold the matrices of all experts of a block."""
    return len(shape) == 3 and name.rpartition(".")[2] in STACKS


def scale_dtype(checkpoint: "Checkpoint") -> torch.dtype:
    """Returns the type that loaders cast scales to, in which they must be stored: that of the configuration."""
    stated = checkpoint.config.dtype
    if isinstance(stated, torch.dtype):
        return stated
    # as transformers does where the configuration names none
    return next(info.dtype for info in checkpoint.tensors.values() if info.dtype.is_floating_point)


def is_table(weight: "Weight") -> bool:
    """Returns whether the tensor is the embedding of tokens, which is looked up."""
    return weight.role == "embedding"


def in_whole_bytes(weight: "Weight") -> bool:
    """Returns whether codes of a tensor must be stored one per byte: transformers does not load it packed."""
    return is_table(weight) or weight.needs_weight


def tied_parameters(checkpoint: "Checkpoint", name: str) -> tuple[str, ...]:
    """Returns the other parameters of the model that are the tensor `name`, such as lm_head.weight."""
    architecture = checkpoint.architecture
    absent = [parameter for parameter, tensor in architecture.tied.items() if tensor == name]
    copies = [f"{weight.module}.weight" for weight in architecture.weights.values() if weight.tied_to == name]
    return tuple(sorted(absent + copies))


def tied_copies(checkpoint: "Checkpoint") -> frozenset[str]:
    """Returns the tensors of the file that repeat another one they are tied to, and need not be written."""
    pairs = {name: w.tied_to for name, w in checkpoint.architecture.weights.items() if w.tied_to is not None}
    return frozenset(
        name for name, other in pairs.items() if torch.equal(checkpoint.read(name), checkpoint.read(other))
    )
