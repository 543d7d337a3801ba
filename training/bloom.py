"""BLOOM as transformers defines it, with its parameter names, in the form that trains fastest: fused attention."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import BloomConfig, BloomForCausalLM, PreTrainedModel


def slopes(heads: int) -> Tensor:
    """Returns the ALiBi slopes 2^(−8i/heads), i = 1 … heads (a power of two)."""
    return torch.tensor([2.0 ** (-8.0 * (i + 1) / heads) for i in range(heads)])


class Attention(nn.Module):
    """Causal self-attention with ALiBi; rows of query_key_value run head by head, q then k then v."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.dense = nn.Linear(width, width)
        self.register_buffer("slopes", slopes(heads), persistent=False)

    def forward(self, x: Tensor, mask: Any) -> Tensor:
        batch, length, width = x.shape
        fused = self.query_key_value(x).view(batch, length, self.heads, 3, width // self.heads)
        q, k, v = (part.transpose(1, 2) for part in fused.unbind(3))
        slope = self.slopes

        def alibi(score: Tensor, _: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return score + slope[head] * (key - query)

        if torch.is_grad_enabled() and not x.is_cuda:  # flex_attention has no backward pass there
            at = torch.arange(length)
            bias = slope[:, None, None] * (at[None, :] - at[:, None])
            bias = bias.masked_fill(at[None, :] > at[:, None], -math.inf).to(q.dtype)
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            mixed = flex_attention(q, k, v, score_mod=alibi, block_mask=mask)
        return self.dense(mixed.transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    """Two linear layers with GELU (its tanh form) between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense_h_to_4h = nn.Linear(width, 4 * width)
        self.dense_4h_to_h = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense_4h_to_h(functional.gelu(self.dense_h_to_4h(x), approximate="tanh"))


class Block(nn.Module):
    """One transformer block, normalised before each part."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(width)
        self.self_attention = Attention(width, heads)
        self.post_attention_layernorm = nn.LayerNorm(width)
        self.mlp = Mlp(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Any) -> Tensor:
        x = x + self.dropout(self.self_attention(self.input_layernorm(x), mask))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Bloom(nn.Module):
    """The language model; `forward` returns the loss of every position in nats."""

    def __init__(self, *, vocabulary: int, layers: int, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(vocabulary, width),
                "word_embeddings_layernorm": nn.LayerNorm(width),
                "h": nn.ModuleList(Block(width, heads, dropout) for _ in range(layers)),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.dropout = nn.Dropout(dropout)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                shrink = math.sqrt(2 * layers) if name.endswith(("dense.weight", "dense_4h_to_h.weight")) else 1.0
                nn.init.normal_(parameter, std=0.02 / shrink)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.losses(self.states(tokens)[-1], targets)

    def states(self, tokens: Tensor) -> list[Tensor]:
        """Returns the residual stream after every block."""
        length = tokens.shape[1]
        mask = create_block_mask(lambda _, __, query, key: query >= key, None, None, length, length, tokens.device)
        parts = self.transformer
        x = self.dropout(parts["word_embeddings_layernorm"](parts["word_embeddings"](tokens)))
        states = []
        for block in parts["h"]:
            x = block(x, mask)
            states.append(x)
        return states

    def losses(self, state: Tensor, targets: Tensor) -> Tensor:
        """Returns the loss of every position from the residual stream after the last block."""
        parts = self.transformer
        logits = functional.linear(parts["ln_f"](state), parts["word_embeddings"].weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none").view_as(
            targets
        )

    def as_transformers(self, settings: dict[str, Any]) -> PreTrainedModel:
        """Returns the same model as transformers has it."""
        shape = settings["model"]
        config = BloomConfig(
            vocab_size=self.transformer["word_embeddings"].num_embeddings,
            hidden_size=shape["width"],
            n_layer=shape["layers"],
            n_head=shape["heads"],
            seq_length=settings["training"]["sequence"],
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=3,
        )
        reference = BloomForCausalLM(config)
        missing, unexpected = reference.load_state_dict(self.state_dict(), strict=False)
        if missing != ["lm_head.weight"] or unexpected:
            raise RuntimeError(f"parameter names differ from transformers: missing {missing}, unexpected {unexpected}")
        reference.tie_weights()
        return reference
