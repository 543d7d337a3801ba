"""Llama as transformers defines it, for the second model that benchmarks are run on."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel


def fields(*, vocabulary: int, layers: int, width: int, heads: int, inner: int) -> dict[str, Any]:
    """Returns the fields of a configuration that Llama and its kin share."""
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 3,
    }


class Wrapped(nn.Module):
    """A language model of transformers; `forward` returns the loss of every position in nats."""

    def __init__(self, model: PreTrainedModel, *, dropout: float) -> None:
        super().__init__()
        self.model = model
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        embedded = self.dropout(self.model.get_input_embeddings()(tokens))
        return self.loss(self.model(inputs_embeds=embedded, use_cache=False), targets)

    def loss(self, output: Any, targets: Tensor) -> Tensor:
        """Returns the loss of every position, given the output of the model."""
        flat = output.logits.flatten(0, 1).float()
        return functional.cross_entropy(flat, targets.flatten(), reduction="none").view_as(targets)

    def as_transformers(self, settings: dict[str, Any]) -> PreTrainedModel:
        """Returns the model of transformers that it holds."""
        self.model.config.max_position_embeddings = settings["training"]["sequence"]
        return self.model


class Llama(Wrapped):
    """Llama, with a head that is tied to the embedding."""

    def __init__(self, *, dropout: float, **shape: int) -> None:
        super().__init__(LlamaForCausalLM(LlamaConfig(**fields(**shape))), dropout=dropout)
