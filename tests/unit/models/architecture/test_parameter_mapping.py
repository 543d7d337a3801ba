"""Experts that a file stacks in one tensor are read one by one, and written so that transformers loads them."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from safetensors.torch import load_file

import fairbits as fb
from fairbits.models.architecture.meta_model import model_class
from fairbits.models.checkpoint import Checkpoint, UnpackedCheckpoint
from fairbits.models.io.safetensors_files import TensorInfo, read_tensor
from fairbits.models.streaming_model import StreamingModel

Reading = Callable[[str], Checkpoint]
IDS = torch.arange(5, 37)[None]
LANGUAGES = ("eng", "heb")
SIZE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48}


def stacked_again(source: Checkpoint, directory: Path) -> Checkpoint:
    """Returns a model with files in which experts are stacked, as its class has them in memory."""
    loaded(source.directory).save_pretrained(directory, save_original_format=False)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source.directory / name, directory)
    return Checkpoint(directory)


def loaded(directory: Path) -> Any:
    config = t.AutoConfig.from_pretrained(directory)
    return model_class(config).from_pretrained(directory, dtype=torch.float32).eval()


@pytest.fixture
def stacked(family: str, reading_model: Reading, tmp_path: Path) -> Checkpoint:
    """Returns a model whose files stack their experts."""
    source = reading_model(family)
    return source if family == "llama4" else stacked_again(source, tmp_path / "stacked")


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    output: torch.Tensor = model(input_ids=IDS, use_cache=False).logits
    return output


def test_a_file_that_stacks_experts_is_read_as_one_that_does_not(reading_model: Reading, tmp_path: Path) -> None:
    apart = reading_model("mixtral")
    restacked = stacked_again(apart, tmp_path)
    assert sum(len(info.shape) == 3 for info in restacked.files.values()) == 4
    experts = {name for name, weight in apart.architecture.weights.items() if weight.expert is not None}
    assert experts == restacked.slices.keys()
    assert len(experts) == 2 * 3 * 3
    for name in experts:
        assert restacked.tensors[name] == TensorInfo(
            name, apart.tensors[name].shape, torch.float32, apart.tensors[name].nbytes
        )
        assert torch.equal(restacked.read(name), apart.read(name))
        assert restacked.architecture.weights[name] == apart.architecture.weights[name]
    assert restacked.size_bytes == apart.size_bytes


def test_experts_of_llama_4_are_turned(reading_model: Reading) -> None:
    checkpoint = reading_model("llama4")
    tensors = load_file(checkpoint.directory / "model.safetensors")
    path = "model.layers.1.feed_forward.experts"
    both, down = tensors[f"{path}.gate_up_proj"], tensors[f"{path}.down_proj"]
    assert torch.equal(checkpoint.read(f"{path}.2.gate_proj.weight"), both[2].T[:48])
    assert torch.equal(checkpoint.read(f"{path}.2.up_proj.weight"), both[2].T[48:])
    assert torch.equal(checkpoint.read(f"{path}.1.down_proj.weight"), down[1].T)
    assert checkpoint.read(f"{path}.1.down_proj.weight").is_contiguous()
    weight = checkpoint.architecture.weights[f"{path}.1.down_proj.weight"]
    assert (weight.role, weight.shape, weight.transposed, weight.expert) == ("mlp_down", (32, 48), False, 1)
    expert_slice = checkpoint.slices[weight.name]
    assert torch.equal(
        expert_slice.cut(read_tensor(expert_slice.place(checkpoint.files[expert_slice.stacked]))), down[1].T
    )
    assert f"{path}.down_proj" not in checkpoint.tensors


def test_the_fingerprint_is_that_of_the_file(reading_model: Reading, tmp_path: Path) -> None:
    restacked = stacked_again(reading_model("mixtral"), tmp_path)
    before = Checkpoint(tmp_path).fingerprint  # before anything is told apart
    assert restacked.tensors.keys() != restacked.files.keys()
    assert restacked.fingerprint == before


@pytest.mark.parametrize("family", ["llama4", "mixtral"])
def test_blocks_are_loaded_from_experts_one_by_one(stacked: Checkpoint) -> None:
    streamed = StreamingModel(stacked)
    streamed.load_all(copies=True)
    assert torch.equal(logits(streamed.model), logits(loaded(stacked.directory)))


@pytest.mark.parametrize("family", ["llama4", "mixtral"])
def test_a_quantized_file_has_every_expert_and_loads_with_the_computed_weights(
    stacked: Checkpoint, tmp_path: Path
) -> None:
    packed = tmp_path / "packed"
    plan = fb.plan(stacked, policy="gptq", bits=4, group=16, languages=LANGUAGES, tokens=96)
    assert not any("experts" in note for note in plan.notes)
    fb.quantize(stacked, plan, out=packed)
    computed = fb.quantize(stacked, plan)  # in memory, with the weights that were computed
    theirs = loaded(packed)
    torch.testing.assert_close(logits(theirs), logits(computed), rtol=0, atol=1e-5)
    original = logits(loaded(stacked.directory))
    assert (logits(theirs) - original).abs().max() > 1e-3  # so a model that was not quantized would be noticed

    files = Checkpoint(packed)
    assert all(f"{name}_packed" in files.files for name in stacked.slices)
    assert not any(len(info.shape) == 3 for info in files.files.values())
    assert files.size_bytes == plan.size_bytes
    streamed = StreamingModel(UnpackedCheckpoint(files))  # as evaluate reads a model that is too large
    streamed.load_all(copies=True)
    torch.testing.assert_close(logits(streamed.model), logits(theirs), rtol=0, atol=1e-5)

    computed.save_pretrained(tmp_path / "saved")
    saved = load_file(tmp_path / "saved/model.safetensors")
    for name in stacked.slices:
        assert torch.equal(saved[f"{name}_packed"], files.read(f"{name}_packed"))
    scores = fb.evaluate(packed, reference=stacked, languages=LANGUAGES, tokens=96)
    assert scores.languages == ("eng_Latn", "heb_Hebr")


NO_NAMES: dict[str, tuple[Any, Any]] = {
    "gpt_oss": (t.GptOssForCausalLM, t.GptOssConfig),
    "granitemoe": (t.GraniteMoeForCausalLM, t.GraniteMoeConfig),
}


@pytest.mark.parametrize("family", NO_NAMES)
def test_experts_without_names_of_their_own_stay_together(family: str, tmp_path: Path) -> None:
    cls, config = NO_NAMES[family]
    extra = {"head_dim": 8} if family == "gpt_oss" else {}
    sizes = {**SIZE, **extra, "num_key_value_heads": 2, "vocab_size": 50, "pad_token_id": 3, "eos_token_id": 2}
    cls(config(**sizes, num_local_experts=3, num_experts_per_tok=2)).save_pretrained(tmp_path)
    checkpoint = Checkpoint(tmp_path)
    assert not checkpoint.slices
    plan = fb.plan(checkpoint, policy="rtn", bits=4, group=16)
    (note,) = [note for note in plan.notes if "expert tensors" in note]
    assert note.startswith("4 expert tensors are not quantized")
    assert f"{cls.__name__} in transformers has no names for single experts" in note
    fb.quantize(checkpoint, plan, out=tmp_path / "packed")
    packed = Checkpoint(tmp_path / "packed")
    ignored = [
        name[3:]
        for name in json.loads((packed.directory / "config.json").read_text())["quantization_config"]["ignore"]
        if name.startswith("re:")
    ]
    module = {"gpt_oss": "mlp.experts", "granitemoe": "block_sparse_moe.experts.routed_experts"}[family]
    for block in range(SIZE["num_hidden_layers"]):  # as vLLM asks
        assert any(re.match(pattern, f"model.layers.{block}.{module}.0.gate_proj") for pattern in ignored)
        assert not any(re.match(pattern, f"model.layers.{block}.self_attn.q_proj") for pattern in ignored)
    ids = torch.arange(4, 20)[None]
    loaded = cls.from_pretrained(packed.directory, dtype=torch.float32).eval()
    assert torch.allclose(loaded(ids).logits, packed.load()(ids).logits, atol=1e-5)


def test_sinusoids_that_are_in_no_file_are_computed(saved: Callable[[Any], Checkpoint]) -> None:
    size = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    tokens = {"vocab_size": 96, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
    config = t.MarianConfig(**size, **tokens, encoder_attention_heads=4, decoder_attention_heads=4)
    checkpoint, positions = saved(t.MarianMTModel(config)), "model.decoder.embed_positions.weight"
    assert positions not in checkpoint.tensors
    expected = t.MarianMTModel.from_pretrained(checkpoint.directory).get_parameter(positions)
    whole, outside = StreamingModel(checkpoint), StreamingModel(checkpoint)
    whole.load_all(copies=True)
    outside.load_outside(IDS[0], {})
    for streamed in (whole, outside):
        assert torch.equal(streamed.model.get_parameter(positions), expected)
