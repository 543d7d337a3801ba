"""Mixtral as transformers defines it, for a small model with experts that benchmarks are run on."""

from typing import Any

from torch import Tensor
from transformers import MixtralConfig, MixtralForCausalLM

from llama import Wrapped


class Mixtral(Wrapped):
    """A mixture of experts, two of which each position reaches; a penalty of weight `balance` keeps them all in use."""

    def __init__(
        self,
        *,
        vocabulary: int,
        layers: int,
        width: int,
        heads: int,
        inner: int,
        experts: int,
        balance: float,
        dropout: float,
    ) -> None:
        config = MixtralConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads // 2,
            num_local_experts=experts,
            num_experts_per_tok=2,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=3,
        )
        super().__init__(MixtralForCausalLM(config), dropout=dropout)
        self.balance = balance

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        embedded = self.dropout(self.model.get_input_embeddings()(tokens))
        output: Any = self.model(inputs_embeds=embedded, use_cache=False, output_router_logits=self.training)
        loss = self.loss(output, targets)
        return loss + self.balance * output.aux_loss if self.training else loss
