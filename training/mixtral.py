"""Mixtral as transformers defines it, for a small model with experts that benchmarks are run on."""

from typing import Any

from torch import Tensor
from transformers import MixtralConfig, MixtralForCausalLM

from llama import Wrapped, fields


class Mixtral(Wrapped):
    """A mixture of experts, two of which each position reaches; a penalty of weight `balance` keeps them all in use."""

    def __init__(self, *, experts: int, balance: float, dropout: float, **shape: int) -> None:
        config = MixtralConfig(**fields(**shape), num_local_experts=experts, num_experts_per_tok=2)
        super().__init__(MixtralForCausalLM(config), dropout=dropout)
        self.balance = balance

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        embedded = self.dropout(self.model.get_input_embeddings()(tokens))
        output: Any = self.model(inputs_embeds=embedded, use_cache=False, output_router_logits=self.training)
        loss = self.loss(output, targets)
        return loss + self.balance * output.aux_loss if self.training else loss
