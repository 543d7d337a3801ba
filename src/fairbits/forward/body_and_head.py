"""Running a model in little memory: body and head separated, blocks recomputed in the backward pass.

Logits exist for only a few positions at a time: with a large vocabulary they take more memory than everything else.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fairbits.forward.batches import Batch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCE = 1e-3


@dataclass(frozen=True)
class Split:
    """A model as two functions: `body` returns the features (rows, length, width) of a batch, `head` their logits."""

    body: Callable[[Batch], Tensor]
    head: Callable[[Tensor], Tensor]
    apart: bool  # whether logits exist only where the head is called


@torch.no_grad()
def split_head(model: "PreTrainedModel", batch: Batch) -> Split:
    """Returns the model split before its last linear layer, if that map alone produces the logits of this batch.

    Some families scale or clip logits after that map. For these the body is the whole model and the head is the
    identity.
    """
    whole = Split(
        lambda batch: model(**batch.inputs_for(model), use_cache=False).logits, lambda features: features, False
    )
    head, base = model.get_output_embeddings(), model.base_model  # type: ignore[no-untyped-call]
    if head is None or base is model:
        return whole
    parted = Split(lambda batch: base(**batch.inputs_for(model), use_cache=False).last_hidden_state, head, True)
    expected, features = whole.body(batch), parted.body(batch)
    if features.shape[:-1] != expected.shape[:-1] or features.shape[-1] != head.weight.shape[-1]:
        return whole
    found = parted.head(features)
    return parted if torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE) else whole


@contextmanager
def recompute_in_backward(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Makes the blocks drop their intermediate results and compute them again in the backward pass.

    Hooks inside a block therefore fire twice: without gradients in the forward pass, with them in the backward pass.
    """
    changed = list(blocks)
    for block in changed:
        block.forward = partial(_twice, block.forward)
    try:
        yield
    finally:
        for block in changed:
            del block.forward  # the method of its class becomes visible again


@contextmanager
def input_gradients(model: "PreTrainedModel") -> Iterator[None]:
    """Makes what the embeddings give the start of the graph, so that activations have gradients and weights none.

    They give a copy, as the code of some classes changes it in place.
    """
    model.enable_input_require_grads()  # type: ignore[no-untyped-call]
    handles = [
        each.register_forward_hook(lambda _module, _args, output: output.clone() if output.requires_grad else None)
        for each in model.modules()
        if isinstance(each, nn.Embedding)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        model.disable_input_require_grads()  # type: ignore[no-untyped-call]


def _twice(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls `forward` under checkpointing, with all arguments by position, because only these carry gradients.

    If none of them does, the first becomes the start of a graph: gradients may be wanted inside the block alone.
    """
    given = (*args, *kwargs.values())
    if torch.is_grad_enabled() and not any(isinstance(each, Tensor) and each.requires_grad for each in given):
        given = (given[0].detach().requires_grad_(), *given[1:])

    def call(*values: Any) -> Any:
        named = dict(zip(kwargs, values[len(args) :], strict=True))
        return forward(*values[: len(args)], **named)

    return checkpoint(call, *given, use_reentrant=True, preserve_rng_state=False)
