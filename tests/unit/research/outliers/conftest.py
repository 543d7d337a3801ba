"""Random models of the families whose rescaling is exact, and what is measured on them."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from scipy import stats

from fairbits.models.checkpoint import Checkpoint
from fairbits_research.outliers.outlier_writer import OutlierPlan, rescale

SHAPE = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
GATED = SHAPE | {"intermediate_size": 128, "num_key_value_heads": 2, "head_dim": 16}
CONFIGS = {
    "bloom": lambda: transformers.BloomConfig(**SHAPE),
    "llama": lambda: transformers.LlamaConfig(**GATED, attention_bias=True, mlp_bias=True),
    "mistral": lambda: transformers.MistralConfig(**GATED),
    "qwen2": lambda: transformers.Qwen2Config(**GATED),
    "qwen3": lambda: transformers.Qwen3Config(**GATED | {"head_dim": 32}),
}


@pytest.fixture(scope="session")
def random_checkpoint():
    """Returns the function that saves a random model, of a family or a configuration, in several shards."""

    def random_checkpoint(family: Any, directory: Path, *, dtype: torch.dtype = torch.float32) -> Checkpoint:
        generator = torch.Generator().manual_seed(0)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            config = CONFIGS[family]() if isinstance(family, str) else family
            model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name or name.endswith("bias"):  # which would all be alike
                    parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
                elif parameter.ndim == 2:
                    parameter.mul_(5)  # so that attention is not uniform
        model.to(dtype).save_pretrained(directory, max_shard_size="100KB")
        (directory / "tokenizer.json").write_text("{}")
        return Checkpoint(directory)

    return random_checkpoint


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory, random_checkpoint) -> dict[str, Checkpoint]:
    """Returns one model of every family, to be read only."""
    return {name: random_checkpoint(name, tmp_path_factory.mktemp(name)) for name in CONFIGS}


@pytest.fixture(scope="session")
def apply():
    """Returns the function that rescales the parameters of a loaded model as a plan says."""

    @torch.no_grad()
    def apply(model: torch.nn.Module, plan: OutlierPlan) -> None:
        for name, factors in plan.factors.items():
            parameter = model.get_parameter(name)
            parameter.copy_(rescale(name, parameter, factors))

    return apply


@pytest.fixture(scope="session")
def logits():
    """Returns the function that runs a model, or the model of a checkpoint, on fixed tokens."""
    tokens = torch.randint(0, SHAPE["vocab_size"], (3, 17), generator=torch.Generator().manual_seed(1))

    def logits(model: Any) -> torch.Tensor:
        with torch.no_grad():
            return (model.load() if isinstance(model, Checkpoint) else model)(tokens).logits

    return logits


@pytest.fixture(scope="session")
def kappa():
    """Returns the function that measures the kurtosis of a block's linear weights, by SciPy."""

    def kappa(checkpoint: Checkpoint, block: int, *, role: str | None = None) -> float:
        weights = checkpoint.architecture.blocks[block].linears.values()
        chosen = [checkpoint.read(w.name).double().flatten() for w in weights if role in (None, w.role)]
        return float(stats.kurtosis(torch.cat(chosen).numpy()))

    return kappa
