"""The logits of a model, for a few positions at a time: with a large vocabulary they outweigh everything else."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fairbits.measure.passes.batches import Batch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCE = 1e-3


@dataclass(frozen=True)
class Split:
    """A model as two functions: `body` gives the features (rows, length, width) of a batch, `head` their logits."""

    body: Callable[[Batch], Tensor]
    head: Callable[[Tensor], Tensor]
    apart: bool  # whether logits exist only where the head is called


@torch.no_grad()
def split_head(model: "PreTrainedModel", batch: Batch) -> Split:
    """Returns the model split before its last linear map, if that map alone makes its logits of this batch.

    Some families scale, bend or shift them elsewhere: there the body is the whole model, and the head changes nothing.
    """
    whole = Split(lambda batch: model(**batch.inputs, use_cache=False).logits, lambda features: features, False)
    head, base = model.get_output_embeddings(), model.base_model  # type: ignore[no-untyped-call]
    if head is None or base is model:
        return whole
    parted = Split(lambda batch: base(**batch.inputs, use_cache=False).last_hidden_state, head, True)
    expected, features = whole.body(batch), parted.body(batch)
    if features.shape[:-1] != expected.shape[:-1] or features.shape[-1] != head.weight.shape[-1]:
        return whole
    found = parted.head(features)
    return parted if torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE) else whole
