"""A model in memory is read as it would be from the files that it saves, and stays as it is."""

import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t

from fairbits.core.errors import InputError
from fairbits.models.architecture.meta_model import model_class
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.loaded_checkpoint import LoadedCheckpoint

FAMILIES = ("llama", "qwen2", "gemma3", "gpt2", "mt5", "xlmr", "mixtral", "llama4")


SIZE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 96}


def loaded(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> Any:
    return model_class(checkpoint.config).from_pretrained(checkpoint.directory, dtype=dtype)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_reads_what_the_files_hold(family: str, reading_model: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    model = loaded(reading_model(family))
    model.save_pretrained(tmp_path)
    stored, found = Checkpoint(tmp_path), LoadedCheckpoint(model)
    assert found.fingerprint == stored.fingerprint
    assert {name: info.shape for name, info in found.tensors.items()} == {
        name: info.shape for name, info in stored.tensors.items()
    }
    assert all(torch.equal(found.read(name), stored.read(name)) for name in stored.tensors)
    assert found.architecture.weights.keys() == stored.architecture.weights.keys()
    assert found.size_bytes == stored.size_bytes


@pytest.mark.parametrize("family", FAMILIES)
def test_what_it_loads_computes_the_same(family: str, reading_model: Callable[[str], Checkpoint]) -> None:
    stored = reading_model(family)
    model = loaded(stored).eval()
    found = LoadedCheckpoint(model)
    inputs = {"input_ids": torch.arange(4, 12)[None]}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    with torch.no_grad():
        expected = model(**inputs).logits
        for read_only in (True, False):
            assert torch.equal(found.load(read_only=read_only)(**inputs).logits, expected)


def test_only_what_is_read_only_shares_memory(reading_model: Callable[[str], Checkpoint]) -> None:
    model = loaded(reading_model("gemma3"))  # with a tied head
    found = LoadedCheckpoint(model)
    own = {each.data_ptr() for each in model.parameters()}
    assert {each.data_ptr() for each in found.load(read_only=True).parameters()} == own
    private = found.load()
    assert not own & {each.data_ptr() for each in private.parameters()}
    head, table = private.get_output_embeddings().weight, private.get_input_embeddings().weight
    assert head.data_ptr() == table.data_ptr()
    assert not own & {each.data_ptr() for each in found.copy_model().parameters()}
    assert found.read("model.embed_tokens.weight").data_ptr() in own


def test_it_computes_in_another_type(reading_model: Callable[[str], Checkpoint]) -> None:
    model = loaded(reading_model("llama"), torch.bfloat16)
    found = LoadedCheckpoint(model)
    wide = found.load(read_only=True)
    assert wide.dtype == torch.float32
    assert model.dtype == torch.bfloat16
    assert found.config.dtype == torch.bfloat16
    assert found.copy_model().dtype == torch.bfloat16
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(wide.get_parameter(name), model.get_parameter(name).float())


def test_configuration_and_tokenizer_are_its_own(reading_model: Callable[[str], Checkpoint]) -> None:
    stored = reading_model("llama")
    model = loaded(stored)
    before = model.config.to_dict()
    found = LoadedCheckpoint(model, stored.tokenizer())
    found.config.vocab_size = 7
    assert model.config.to_dict() == before
    assert found.tokenizer()("a law")["input_ids"] == stored.tokenizer()("a law")["input_ids"]
    assert found.without_fingerprint().fingerprint == ""
    directory = found.directory
    assert directory.is_dir()
    del found
    gc.collect()
    assert not directory.exists()


def test_a_model_that_was_never_saved() -> None:
    model = t.LlamaForCausalLM(t.LlamaConfig(**SIZE))
    found = LoadedCheckpoint(model)
    assert found.target == "LlamaForCausalLM (in memory)"
    assert found.architecture.n_blocks == 2
    with pytest.raises(InputError, match="came without its tokenizer"):
        found.tokenizer()
    with pytest.raises(InputError, match="cannot be sent to another process"):
        pickle.dumps(found)


class Own(t.LlamaForCausalLM):
    """A class that transformers does not have."""


def test_models_that_are_not_plain_are_refused() -> None:
    config = t.LlamaConfig(**SIZE)
    with pytest.raises(InputError, match="not a class of transformers"):
        LoadedCheckpoint(Own(config))
    with torch.device("meta"):
        empty = t.LlamaForCausalLM(config)
    with pytest.raises(InputError, match="not in memory"):
        LoadedCheckpoint(empty)
    adapted = t.LlamaForCausalLM(config)
    adapted.model.layers[0].mlp.up_proj.base_layer = torch.nn.Linear(2, 2)
    with pytest.raises(InputError, match="merge it first"):
        LoadedCheckpoint(adapted)
    packed = t.LlamaForCausalLM(t.LlamaConfig(**SIZE))
    packed.config.quantization_config = {"quant_method": "bitsandbytes"}
    for quantized, advice in ((True, "evaluate its directory instead"), (False, "before it was quantized")):
        with pytest.raises(InputError, match=advice):
            LoadedCheckpoint(packed, quantized=quantized)
    with pytest.raises(InputError, match="must be a tokenizer of transformers"):
        LoadedCheckpoint(t.LlamaForCausalLM(config), "llama")  # type: ignore[arg-type]
