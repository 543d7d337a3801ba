"""A small model, the settings of a quick run of it, and such a run."""

import shutil
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fairbits.api.run import FinishedRun, run


@pytest.fixture(scope="session")
def small() -> dict[str, object]:
    """Returns the settings of a quick run."""
    return {
        "languages": ["eng_Latn", "heb_Hebr"],
        "group": 16,
        "tokens": 64,
        "evaluation_tokens": 128,
        "sequence": 64,
        "more_bits": (3,),
        "baselines": ("rtn", "gptq:mix=english"),
        "audit": True,
    }


@pytest.fixture(scope="session")
def model(reading_model, tmp_path_factory) -> Path:
    """A llama of five blocks, so that a run can stop between them."""
    source, directory = reading_model("llama"), tmp_path_factory.mktemp("five")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**source.config.to_dict() | {"num_hidden_layers": 5})).save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source.directory / name, directory)
    return directory


@pytest.fixture(scope="session")
def whole(model, small, tmp_path_factory) -> FinishedRun:
    return run(model, out=tmp_path_factory.mktemp("whole") / "run", **small)
