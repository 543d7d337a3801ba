"""Running a model in little memory: body and head separated, blocks recomputed in the backward pass.

Logits exist for only a few positions at a time: with a large vocabulary they take more memory than everything else.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from fairbits.core.memory import GPU_PASS_ACTIVATIONS_BYTES, PASS_ACTIVATIONS_BYTES
from fairbits.forward.batches import Batch
from fairbits.models.device import is_gpu

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCE = 1e-3
REPEATING = "sdpa_repeating_heads"
SAVED_PER_BLOCK = 34
"""Approximate count of numbers that a block keeps for its backward pass, per position and hidden unit."""
LOGITS_KEPT = 3  # numbers per position and vocabulary entry if the head cannot be separated from the model


@dataclass(frozen=True)
class Split:
    """A model as two functions: from a batch to its last hidden states, (rows, length, hidden size), and to logits."""

    body: Callable[[Batch], Tensor]
    head: Callable[[Tensor], Tensor]
    separate: bool  # whether logits exist only where the head is called


@torch.no_grad()
def split_head(model: "PreTrainedModel", batch: Batch) -> Split:
    """Returns the model split before its last linear layer, if that layer alone produces the logits of this batch.

    Some families scale or clip logits after that layer. For these the body is the whole model and the head is the
    identity.
    """
    whole = Split(
        lambda batch: model(**batch.inputs_for(model), use_cache=False).logits, lambda features: features, False
    )
    head, base = model.get_output_embeddings(), model.base_model  # type: ignore[no-untyped-call]
    if head is None or base is model:
        return whole
    parts = Split(lambda batch: base(**batch.inputs_for(model), use_cache=False).last_hidden_state, head, True)
    expected, features = whole.body(batch), parts.body(batch)
    if features.shape[:-1] != expected.shape[:-1] or features.shape[-1] != head.weight.shape[-1]:
        return whole
    logits = parts.head(features)
    return parts if torch.allclose(logits, expected, rtol=TOLERANCE, atol=TOLERANCE) else whole


def attend_in_little_memory(model: "PreTrainedModel") -> None:
    """Makes attention with fewer heads of keys than of queries repeat the former, where PyTorch's would.

    In float32, the only kernel of PyTorch for CUDA that takes such heads as they are holds all scores of all heads in
    memory: 15 GB for a window of 16,384 tokens and 14 heads.
    """
    if model.config._attn_implementation == "sdpa":
        AttentionInterface.register(REPEATING, _repeating_attention)
        AttentionMaskInterface.register(REPEATING, sdpa_mask)
        model.set_attn_implementation(REPEATING)


def _repeating_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    times = query.shape[1] // key.shape[1]
    key, value = (states.repeat_interleave(times, dim=1) if times > 1 else states for states in (key, value))
    alone: Any = SimpleNamespace(is_causal=getattr(module, "is_causal", True))  # without groups of heads
    return sdpa_attention_forward(alone, query, key, value, attention_mask, **options)


def positions_per_batch(model: "PreTrainedModel", split: Split) -> int:
    """Returns how many positions a batch may have, from a rough estimate of the memory of its backward pass."""
    config = model.config.get_text_config()
    numbers = (SAVED_PER_BLOCK + int(config.num_hidden_layers)) * int(config.hidden_size)
    if not split.separate:
        numbers += LOGITS_KEPT * int(config.vocab_size)
    room = GPU_PASS_ACTIVATIONS_BYTES if is_gpu(model.device) else PASS_ACTIVATIONS_BYTES
    return max(room // (4 * numbers), 32)


@contextmanager
def recompute_in_backward(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Makes the blocks compute their results again in the backward pass; hooks inside them fire twice."""
    changed = list(blocks)
    for block in changed:
        block.forward = partial(_twice, block.forward)
    try:
        yield
    finally:
        for block in changed:
            del block.forward  # uncovers the method of its class


@contextmanager
def input_gradients(model: "PreTrainedModel") -> Iterator[None]:
    """Makes a copy of the embeddings' output the start of the graph: activations have gradients, weights have none."""
    model.enable_input_require_grads()  # type: ignore[no-untyped-call]
    handles = [
        module.register_forward_hook(lambda _module, _args, output: output.clone() if output.requires_grad else None)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
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
    values = (*args, *kwargs.values())
    if torch.is_grad_enabled() and not any(isinstance(value, Tensor) and value.requires_grad for value in values):
        values = (values[0].detach().requires_grad_(), *values[1:])

    def call(*values: Any) -> Any:
        named = dict(zip(kwargs, values[len(args) :], strict=True))
        return forward(*values[: len(args)], **named)

    return checkpoint(call, *values, use_reentrant=True, preserve_rng_state=False)
