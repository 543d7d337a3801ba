"""Quantized checkpoints: what transformers loads is what was written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from safetensors.torch import load_file, save_file

from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.compressed_tensors import planned_bytes
from fairbits.models.scales.groups import Codes
from fairbits.models.scales.scheme import Scheme

Make = Callable[..., Checkpoint]


def check_loads(checkpoint: Checkpoint, codes: dict[str, Codes], out: Path, cls: Any) -> None:
    """Weights are those of the codes, and logits those of the model with these weights put in its place."""
    weights = checkpoint.architecture.weights
    fake = cls.from_pretrained(checkpoint.directory)
    with torch.no_grad():
        for name, each in codes.items():
            fake.get_submodule(weights[name].module).weight.copy_(each.dequantized)
    loaded = cls.from_pretrained(out)
    assert loaded.dtype == fake.dtype == checkpoint.scale_dtype
    tokens = torch.arange(3, 35)[None]
    with torch.no_grad():
        got, expected = loaded(tokens).logits.float(), fake(tokens).logits.float()
    for name, each in codes.items():
        assert torch.equal(loaded.get_submodule(weights[name].module).weight, each.dequantized), name
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-3 * float(expected.abs().max()))


def check_size(checkpoint: Checkpoint, stored: dict[str, Scheme], out: Path) -> None:
    planned = planned_bytes(checkpoint, stored)
    assert sum(info.nbytes for info in Checkpoint(out).tensors.values()) == planned
    index = json.loads((out / "config.json").read_text()).get("transformers_weights", "model.safetensors.index.json")
    assert json.loads((out / index).read_text())["metadata"]["total_size"] == planned
    assert planned < sum(info.nbytes for info in checkpoint.tensors.values())


SCHEMES: dict[str, Scheme | None] = {
    "int4 group": Scheme(4, 32),
    "int4 channel": Scheme(4, "channel"),
    "int8": Scheme(8, 32),
    "int3": Scheme(3, 32),
    "int3 signed": Scheme(3, 32, "exact", "signed"),
    "mixed": None,
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("family", ["bloom", "llama", "qwen2", "gemma3", "opt", "gpt_neox"])
def test_round_trip(make: Make, tmp_path: Path, family: str, scheme: str, inside: Any, mixed: Any, write: Any) -> None:
    checkpoint = make(family)
    how = SCHEMES[scheme]
    stored = mixed(checkpoint) if how is None else dict.fromkeys(inside(checkpoint), how)
    codes = write(checkpoint, stored, tmp_path / "out")
    check_loads(checkpoint, codes, tmp_path / "out", t.AutoModelForCausalLM)
    check_size(checkpoint, stored, tmp_path / "out")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("family", ["bloom", "llama", "gemma3"])
def test_round_trip_in_other_types(
    make: Make, tmp_path: Path, family: str, dtype: torch.dtype, write: Any, mixed: Any
) -> None:
    checkpoint = make(family, dtype)
    codes = write(checkpoint, mixed(checkpoint), tmp_path / "out")
    check_loads(checkpoint, codes, tmp_path / "out", t.AutoModelForCausalLM)


@pytest.mark.parametrize("family", ["bloom", "gemma3", "opt", "llama", "gpt_neox"])
@pytest.mark.parametrize("group", [None, 32])
def test_embedding_in_8_bits_with_a_tied_head_and_without(
    make: Make, tmp_path: Path, family: str, group: int | None, inside: Any, write: Any
) -> None:
    checkpoint = make(family)
    architecture = checkpoint.architecture
    table = next(name for name, weight in architecture.weights.items() if weight.role == "embedding")
    heads = {name: Scheme(4, 32) for name, weight in architecture.linears.items() if weight.role == "head"}
    assert bool(heads) == (family in ("llama", "gpt_neox"))
    stored = dict.fromkeys(inside(checkpoint), Scheme(4, 32)) | {table: Scheme(8, group)} | heads
    codes = write(checkpoint, stored, tmp_path / "out")
    check_loads(checkpoint, codes, tmp_path / "out", t.AutoModelForCausalLM)
    check_size(checkpoint, stored, tmp_path / "out")


def test_masked_language_model(make: Make, tmp_path: Path, inside: Any, write: Any) -> None:
    checkpoint = make("xlmr")
    stored = dict.fromkeys([*inside(checkpoint), "lm_head.dense.weight"], Scheme(4, 32))
    codes = write(checkpoint, stored, tmp_path / "out")
    check_loads(checkpoint, codes, tmp_path / "out", t.AutoModelForMaskedLM)


@pytest.mark.parametrize("head", [{}, {"lm_head.weight": Scheme(8, "channel")}])
def test_experts_with_a_tensor_each(
    make: Make, tmp_path: Path, head: dict[str, Scheme], inside: Any, write: Any
) -> None:
    checkpoint = make("mixtral")
    stored = dict.fromkeys(inside(checkpoint), Scheme(4, 32)) | head
    codes = write(checkpoint, stored, tmp_path / "out")
    loaded = t.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    layer = "model.layers.1.block_sparse_moe.experts.2"
    experts = loaded.model.layers[1].mlp.experts
    assert torch.equal(experts.down_proj[2], codes[f"{layer}.w2.weight"].dequantized)
    gate_up = torch.cat([codes[f"{layer}.w1.weight"].dequantized, codes[f"{layer}.w3.weight"].dequantized])
    assert torch.equal(experts.gate_up_proj[2], gate_up)
    loaded(torch.arange(3, 35)[None])
    query = loaded.model.layers[1].self_attn.q_proj.weight
    assert torch.equal(query, codes["model.layers.1.self_attn.q_proj.weight"].dequantized)


def test_files_of_the_bare_model_keep_their_names(make: Make, tmp_path: Path, write: Any, mixed: Any) -> None:
    source = make("bloom").directory
    bare = tmp_path / "bare"
    bare.mkdir()
    tensors = load_file(source / "model.safetensors")
    named = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    save_file(named, bare / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(source / "config.json", bare)
    checkpoint = Checkpoint(bare)
    codes = write(checkpoint, mixed(checkpoint), tmp_path / "out")
    assert "h.0.mlp.dense_h_to_4h.weight_packed" in Checkpoint(tmp_path / "out").tensors
    check_loads(checkpoint, codes, tmp_path / "out", t.AutoModelForCausalLM)


def test_embedded_model_with_what_lies_beside_it(tmp_path: Path, inside: Any, write: Any) -> None:
    checkpoint = Checkpoint("embedded:tiny?outliers=3:60")
    stored = dict.fromkeys(inside(checkpoint), Scheme(4, 64))
    codes = write(checkpoint, stored, tmp_path / "out")
    check_loads(checkpoint, codes, tmp_path / "out", t.AutoModelForCausalLM)
    check_size(checkpoint, stored, tmp_path / "out")
    made = Checkpoint(tmp_path / "out")
    assert made.tokenizer()("a")["input_ids"] == checkpoint.tokenizer()("a")["input_ids"]
    assert any("outliers were given" in note for note in made.notes)
    assert (tmp_path / "out" / "plan.json").read_bytes() == b"{}\n"
    assert set(load_file(tmp_path / "out" / "thresholds.safetensors")) == {f"t{i}" for i in range(12)}
    assert not any(name.startswith("t") and name[1:].isdigit() for name in made.tensors)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
