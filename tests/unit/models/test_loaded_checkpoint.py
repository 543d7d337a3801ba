"""Models in memory: read like a checkpoint without a copy, and packed when they are saved."""

import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t

import fairbits as fb
from fairbits.core.errors import InputError
from fairbits.models.architecture.meta_model import model_class
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.loaded_checkpoint import LoadedCheckpoint, _codes, open_checkpoint, open_checkpoints

FAMILIES = ("llama", "qwen2", "gemma3", "gpt2", "mt5", "xlmr", "mixtral", "llama4")


SIZE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 96}


def loaded(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> Any:
    return model_class(checkpoint.config).from_pretrained(checkpoint.directory, dtype=dtype)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_reads_what_the_files_hold(family: str, reading_model: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    model = loaded(reading_model(family))
    model.save_pretrained(tmp_path)
    stored, in_memory = Checkpoint(tmp_path), LoadedCheckpoint(model)
    assert in_memory.fingerprint == stored.fingerprint
    assert {name: info.shape for name, info in in_memory.tensors.items()} == {
        name: info.shape for name, info in stored.tensors.items()
    }
    assert all(torch.equal(in_memory.read(name), stored.read(name)) for name in stored.tensors)
    assert in_memory.architecture.weights.keys() == stored.architecture.weights.keys()
    assert in_memory.size_bytes == stored.size_bytes


@pytest.mark.parametrize("family", FAMILIES)
def test_what_it_loads_computes_the_same(family: str, reading_model: Callable[[str], Checkpoint]) -> None:
    stored = reading_model(family)
    model = loaded(stored).eval()
    checkpoint = LoadedCheckpoint(model)
    inputs = {"input_ids": torch.arange(4, 12)[None]}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    with torch.no_grad():
        expected = model(**inputs).logits
        for read_only in (True, False):
            assert torch.equal(checkpoint.load(read_only=read_only)(**inputs).logits, expected)


def test_only_what_is_read_only_shares_memory(reading_model: Callable[[str], Checkpoint]) -> None:
    model = loaded(reading_model("gemma3"))  # with a tied head
    checkpoint = LoadedCheckpoint(model)
    addresses = {parameter.data_ptr() for parameter in model.parameters()}
    assert {parameter.data_ptr() for parameter in checkpoint.load(read_only=True).parameters()} == addresses
    private = checkpoint.load()
    assert not addresses & {parameter.data_ptr() for parameter in private.parameters()}
    head, table = private.get_output_embeddings().weight, private.get_input_embeddings().weight
    assert head.data_ptr() == table.data_ptr()
    assert not addresses & {parameter.data_ptr() for parameter in checkpoint.copy_model().parameters()}
    assert checkpoint.read("model.embed_tokens.weight").data_ptr() in addresses


def test_it_computes_in_another_type(reading_model: Callable[[str], Checkpoint]) -> None:
    model = loaded(reading_model("llama"), torch.bfloat16)
    checkpoint = LoadedCheckpoint(model)
    wide = checkpoint.load(read_only=True)
    assert wide.dtype == torch.float32
    assert model.dtype == torch.bfloat16
    assert checkpoint.config.dtype == torch.bfloat16
    assert checkpoint.copy_model().dtype == torch.bfloat16
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(wide.get_parameter(name), model.get_parameter(name).float())


def test_configuration_and_tokenizer_are_its_own(reading_model: Callable[[str], Checkpoint]) -> None:
    stored = reading_model("llama")
    model = loaded(stored)
    before = model.config.to_dict()
    in_memory = LoadedCheckpoint(model, stored.tokenizer())
    in_memory.config.vocab_size = 7
    assert model.config.to_dict() == before
    assert in_memory.tokenizer()("a law")["input_ids"] == stored.tokenizer()("a law")["input_ids"]
    assert in_memory.without_fingerprint().fingerprint == ""
    directory = in_memory.directory
    assert directory.is_dir()
    del in_memory
    gc.collect()
    assert not directory.exists()


def test_a_model_that_was_never_saved() -> None:
    model = t.LlamaForCausalLM(t.LlamaConfig(**SIZE))
    checkpoint = LoadedCheckpoint(model)
    assert checkpoint.target == "LlamaForCausalLM (in memory)"
    assert checkpoint.architecture.n_blocks == 2
    with pytest.raises(InputError, match="came without its tokenizer"):
        checkpoint.tokenizer()
    with pytest.raises(InputError, match="cannot be sent to another process"):
        pickle.dumps(checkpoint)


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


IDS = torch.arange(4, 20)[None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_codes_are_found_again(dtype: torch.dtype, bits: int) -> None:
    random = torch.Generator().manual_seed(bits)
    codes = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (64, 32), generator=random).to(torch.int8)
    scales = (torch.randn(64, 2, generator=random) * 0.01).to(dtype)  # of either sign
    scales[0] = 0
    W = (codes.reshape(64, 2, 16).to(dtype) * scales[:, :, None]).reshape(64, 32)
    recovered = _codes("w", W, scales, bits=bits)
    assert torch.equal(recovered.codes[1:], codes[1:])
    assert torch.equal(recovered.dequantized, W)
    W[3, 5] += 0.4 * scales[3, 0]
    with pytest.raises(InputError, match="has changed since"):
        _codes("w", W, scales, bits=bits)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"bits": 4, "group": 16}),
        ("gemma3", {"bits": 4, "group": "channel", "embeddings": 8}),  # the head is tied
        ("qwen2", {"bits": 8, "group": "channel", "grid": "signed"}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_saved_and_loaded_again(
    family: str, options: dict[str, Any], dtype: torch.dtype, reading_model: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    model = t.AutoModelForCausalLM.from_pretrained(reading_model(family).directory, dtype=dtype)
    quantized = fb.quantize(model, fb.plan(model, policy="rtn", **options))
    quantized.save_pretrained(tmp_path / "saved")
    again = t.AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
    with torch.no_grad():
        assert torch.equal(again(IDS).logits, quantized(IDS).logits)
    assert fb.Checkpoint(tmp_path / "saved").size_bytes == quantized.hf_quantizer.size_bytes

    plain = quantized.dequantize()
    plain.save_pretrained(tmp_path / "plain")
    again = t.AutoModelForCausalLM.from_pretrained(tmp_path / "plain").eval()
    assert "quantization_config" not in again.config
    with torch.no_grad():
        assert torch.equal(again(IDS).logits, plain(IDS).logits)


def test_changed_weights_are_not_saved_as_if_they_were_not(
    reading_model: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    model = t.AutoModelForCausalLM.from_pretrained(reading_model("llama").directory)
    quantized = fb.quantize(model, fb.plan(model, policy="rtn", bits=4, group=16))
    with torch.no_grad():
        quantized.model.layers[0].mlp.up_proj.weight.add_(0.001)
    with pytest.raises(InputError, match=r"mlp\.up_proj\.weight has changed"):
        quantized.save_pretrained(tmp_path / "saved")


def test_every_kind_of_model(reading_model: Callable[[str], Checkpoint]) -> None:
    stored = reading_model("llama")
    assert open_checkpoint(stored) is stored
    assert open_checkpoint(stored.directory).fingerprint == stored.fingerprint
    model, tokenizer = stored.load(), stored.tokenizer()
    opened = open_checkpoint(model, tokenizer)
    assert isinstance(opened, LoadedCheckpoint)
    assert [checkpoint.kind for checkpoint in open_checkpoints([model, stored.directory], tokenizer)] == [
        "memory",
        "directory",
    ]


def test_other_modules_and_spare_tokenizers_are_refused(reading_model: Callable[[str], Checkpoint]) -> None:
    stored = reading_model("llama")
    with pytest.raises(InputError, match="leave it out"):
        open_checkpoint(stored, stored.tokenizer())
    with pytest.raises(InputError, match="leave it out"):
        open_checkpoints([stored], stored.tokenizer())
    with pytest.raises(InputError, match=r"the model is a Linear; it must be a PreTrainedModel of transformers$"):
        open_checkpoint(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
    adapted = torch.nn.Module()
    adapted.merge_and_unload = lambda: None  # type: ignore[assignment]
    with pytest.raises(InputError, match="merge its adapter first"):
        open_checkpoint(adapted)  # type: ignore[arg-type]
    compiled = torch.nn.Module()
    compiled._orig_mod = torch.nn.Linear(2, 2)
    with pytest.raises(InputError, match="compiled from"):
        open_checkpoint(compiled)  # type: ignore[arg-type]
