"""A loaded model that takes quantized weights and gives them back, so that many plans need one copy of it."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fairbits.errors import InputError
from fairbits.model.architecture import Weight
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.codes import Codes

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def put(model: "PreTrainedModel", checkpoint: Checkpoint, layers: Mapping[str, Codes]) -> None:
    """Gives a loaded model the weights that a loader would make of the codes.

    `layers` are named as in the checkpoint. A head that is tied to the embedding follows it.
    """
    for name, codes in layers.items():
        put_weight(model, checkpoint.architecture.weights[name], codes.dequantized)


def restore(model: "PreTrainedModel", checkpoint: Checkpoint, names: Iterable[str]) -> None:
    """Gives a loaded model the weights of the checkpoint again, bit for bit as they were loaded."""
    for name in names:
        weight, W = checkpoint.architecture.weights[name], checkpoint.read(name)
        put_weight(model, weight, W.T if weight.transposed else W)


@torch.no_grad()
def put_weight(model: "PreTrainedModel", weight: Weight, W: Tensor) -> None:
    """Writes W (out, in) over the parameter that the tensor became."""
    own = W.T if weight.transposed else W
    module = dict(model.named_modules()).get(weight.module)
    parameter = getattr(module, "weight", None)
    if not isinstance(parameter, Tensor) or parameter.shape != own.shape:
        found = "no weight" if not isinstance(parameter, Tensor) else f"a weight of shape {tuple(parameter.shape)}"
        raise InputError(
            f"{weight.name} of shape {tuple(own.shape)} cannot be replaced: {type(model).__name__} has {found} "
            f"at {weight.module}; keep this tensor as it is, or write the quantized model and evaluate that"
        )
    parameter.copy_(own)
