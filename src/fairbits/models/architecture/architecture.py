"""What is known of a model's tensors: their block, role, input and companions.

A new architecture usually needs no change, because models are traced. Where names must tell roles apart, add them here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

# "control" is a narrow map in a block: gates of heads, decays, step sizes, scores of positions. "projection" is another
# linear layer: of latent or linear attention, of a state space, or outside the blocks. "norm" is its gain or shift.
# "other" is a vector of another kind, or a tensor in a part of the model that text never reaches.
BlockRole = Literal["q", "k", "v", "qkv", "attention_out", "mlp_up", "mlp_gate", "mlp_gate_up", "mlp_down", "router"]
PlainRole = Literal["control", "embedding", "position", "token_type", "projection", "head", "norm", "bias", "other"]
Role = Literal[BlockRole, PlainRole]
Task = Literal["causal", "masked", "completion", "transcription"]
"""What a model predicts: the next token, the masked tokens, (encoder-decoder) the second half of a text, or what is
said in a clip."""
PROJECTION_NAMES: tuple[tuple[Role, re.Pattern[str]], ...] = (
    ("qkv", re.compile(r"^(w?qkv(_proj|_lin)?|query_key_value|c_attn)$", re.IGNORECASE)),
    ("q", re.compile(r"^(w?q|query)(_proj|_lin)?$", re.IGNORECASE)),
    ("k", re.compile(r"^(w?k|key)(_proj|_lin)?$", re.IGNORECASE)),
    ("v", re.compile(r"^(w?v|value)(_proj|_lin)?$", re.IGNORECASE)),
)
EXPERT_ROLES: Mapping[str, Role] = {  # by the names that transformers' own kernels expect in a module of experts
    "gate_up_proj": "mlp_gate_up",
    "gate_proj": "mlp_gate",
    "up_proj": "mlp_up",
    "down_proj": "mlp_down",
}
STEERING: tuple[Role, ...] = ("router", "control")


@dataclass(frozen=True)
class RowRange:
    """Rows start … stop − 1 of a fused tensor, as a linear layer (out, in), belong to `role`."""

    role: Role
    start: int
    stop: int


@dataclass(frozen=True)
class Weight:
    """One tensor of the checkpoint."""

    name: str  # as in the checkpoint
    module: str  # dotted path of its module in the transformers model
    block: int | None  # counted over all stacks in the order of the forward pass
    stack: str  # "encoder", "decoder", "shared" by both, or "other" for what text never reaches
    role: Role
    shape: tuple[int, ...]  # (out, in) if linear, else as stored
    transposed: bool  # stored as (in, out)
    sees: str | None  # name of the input of a linear layer; equal names mean the same activations
    fused: str | None  # tensors that vLLM merges carry the same name and must share one scheme
    tied_to: str | None  # the other tensor that the configuration ties this one to; tied only if their values agree
    linear: bool
    expert: int | None = None
    stacked: int | None = None  # how many experts a tensor with three dimensions holds
    layout: tuple[RowRange, ...] = ()  # rows of q, k, v (gate, up) in a fused tensor; empty if unknown or not fused
    needs_weight: bool = False  # transformers loads it only if the file has X.weight, so it cannot be packed

    @property
    def is_control(self) -> bool:
        """Returns whether this map is small and decides what others do, so that it is never quantized."""
        return self.role in STEERING

    @property
    def is_quantizable(self) -> bool:
        """Whether policies may round it; experts that share a tensor cannot be stored one by one."""
        return self.linear and self.block is not None and not self.is_control and self.stacked is None

    @property
    def is_embedding(self) -> bool:
        return self.role == "embedding"

    @property
    def in_whole_bytes(self) -> bool:
        """Whether its codes must be stored one per byte: transformers does not load it packed."""
        return self.is_embedding or self.needs_weight

    def rows(self, role: Role) -> tuple[range, ...]:
        """Returns the ranges of rows that `role` has in this fused tensor."""
        return tuple(range(part.start, part.stop) for part in self.layout if part.role == role)


@dataclass(frozen=True)
class Block:
    """The tensors of one block."""

    index: int
    stack: str
    module: str
    weights: Mapping[str, Weight]

    @cached_property
    def linears(self) -> Mapping[str, Weight]:
        return {name: weight for name, weight in self.weights.items() if weight.linear}


@dataclass(frozen=True)
class Architecture:
    """The map of a checkpoint: every tensor with its role, in the order of the file."""

    family: str  # model_type of the configuration
    class_name: str  # the transformers class that the checkpoint was mapped to
    blocks: tuple[Block, ...]
    weights: Mapping[str, Weight]
    tied: Mapping[str, str]  # parameter of the model that the file leaves out -> the tensor it is tied to
    ignored: Mapping[str, str]  # tensor of the file that the model does not use -> why
    head: Weight | None  # computes the logits: the embedding if the two are tied, None without a head
    reads: str = "input_ids"  # what the first blocks are given: tokens, or sound (input_features)

    @property
    def n_blocks(self) -> int:
        return len(self.blocks)

    @cached_property
    def linears(self) -> Mapping[str, Weight]:
        return {name: weight for name, weight in self.weights.items() if weight.linear}

    @property
    def has_experts(self) -> bool:
        return any(weight.expert is not None for weight in self.linears.values())

    def tied_parameters(self, name: str) -> tuple[str, ...]:
        """Returns the other parameters of the model that are the tensor `name`, such as lm_head.weight."""
        absent = [parameter for parameter, tensor in self.tied.items() if tensor == name]
        copies = [f"{weight.module}.weight" for weight in self.weights.values() if weight.tied_to == name]
        return tuple(sorted(absent + copies))

    @cached_property
    def fused_groups(self) -> Mapping[str, tuple[Weight, ...]]:
        groups: dict[str, tuple[Weight, ...]] = {}
        for weight in self.weights.values():
            if weight.fused is not None:
                groups[weight.fused] = (*groups.get(weight.fused, ()), weight)
        return groups
