"""Compressed-tensors: packing against packing written bit by bit, sizes, the configuration, and what is refused."""

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from safetensors.torch import load_file, save_file

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io import compressed_tensors as module
from fairbits.models.io.checkpoint_writer import QuantizedWriter
from fairbits.models.io.compressed_tensors import check_storable, planned_bytes, quantization_config, why_not_storable
from fairbits.models.io.layer_files import layer_bytes, layer_tensors, pack_codes, packed_tensors, read_packed
from fairbits.models.scales.groups import Codes
from fairbits.models.scales.scheme import Scheme

Reading = Callable[[str], Checkpoint]
UP = "model.layers.0.mlp.up_proj.weight"


def random_codes(bits: int, *, out: int = 5, columns: int = 44, groups: int = 1) -> Codes:
    rng = torch.Generator().manual_seed(bits)
    codes = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (out, columns), generator=rng, dtype=torch.int8)
    return Codes(codes, torch.rand(out, groups, generator=rng).half(), bits)


def bit_by_bit(row: list[int], bits: int) -> list[int]:
    number = sum((code + 2 ** (bits - 1)) << (j * bits) for j, code in enumerate(row))
    words = -(-len(row) * bits // 32)
    return [
        int.from_bytes((number >> (32 * i) & 0xFFFFFFFF).to_bytes(4, "big"), "big", signed=True) for i in range(words)
    ]


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("columns", [1, 31, 32, 100, 4097])
def test_packing_is_the_one_of_the_library(bits: int, columns: int) -> None:
    from compressed_tensors.compressors.pack_quantized import pack_to_int32

    codes = random_codes(bits, columns=columns).codes
    packed = pack_codes(codes, bits)
    assert torch.equal(packed, pack_to_int32(codes, bits))
    assert packed.is_contiguous()


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("columns", [32, 44, 7])
def test_packing_is_the_one_written_bit_by_bit_and_its_inverse_is_exact(bits: int, columns: int) -> None:
    codes = random_codes(bits, columns=columns)
    tensors = packed_tensors("a.b.weight", codes)
    assert tensors["a.b.weight_packed"].tolist() == [bit_by_bit(row, bits) for row in codes.codes.tolist()]
    assert tensors["a.b.weight_packed"].dtype == torch.int32
    assert tensors["a.b.weight_shape"].tolist() == [5, columns]
    back = read_packed(tensors, "a.b.weight", bits=bits)
    assert torch.equal(back.codes, codes.codes)
    assert torch.equal(back.scales, codes.scales)
    assert back.bits == bits


def test_large_maps_are_packed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = random_codes(3)
    whole = packed_tensors("w.weight", codes)
    monkeypatch.setattr("fairbits.models.io.layer_files.PACKED_WEIGHTS", 100)  # two rows
    parts = packed_tensors("w.weight", codes)
    assert torch.equal(parts["w.weight_packed"], whole["w.weight_packed"])
    assert torch.equal(read_packed(parts, "w.weight", bits=3).codes, codes.codes)


def test_missing_tensor_is_named() -> None:
    tensors = packed_tensors("w.weight", random_codes(4))
    del tensors["w.weight_shape"]
    with pytest.raises(InputError, match=r"w\.weight_shape is missing"):
        read_packed(tensors, "w.weight", bits=4)


def test_a_parameter_tied_to_an_embedding_has_scales_too(reading_model: Reading) -> None:
    weight = reading_model("gemma3").architecture.weights["model.embed_tokens.weight"]
    codes = random_codes(8, out=weight.shape[0], columns=weight.shape[1])
    tensors = layer_tensors(weight, codes, tied=("lm_head.weight",))
    assert set(tensors) == {weight.name, f"{weight.name}_scale", "lm_head.weight_scale"}
    assert torch.equal(read_packed(tensors, weight.name, bits=8).codes, codes.codes)
    size = layer_bytes(weight, Scheme(8, "channel"), dtype=torch.float16, tied=1)
    assert sum(tensor.nbytes for tensor in tensors.values()) == size


@pytest.mark.parametrize("scheme", [Scheme(4, "channel"), Scheme(3, 16), Scheme(5, 4), Scheme(8, 16)])
@pytest.mark.parametrize("in_bytes", [False, True])
def test_size_is_that_of_the_tensors(reading_model: Reading, scheme: Scheme, in_bytes: bool) -> None:
    weight = replace(reading_model("llama").architecture.weights[UP], needs_weight=in_bytes)
    codes = random_codes(scheme.bits, out=48, columns=32, groups=scheme.groups(32))
    size = sum(tensor.nbytes for tensor in layer_tensors(weight, codes).values())
    assert layer_bytes(weight, scheme, dtype=torch.float16) == size


def test_planned_bytes_count_what_is_kept_too(reading_model: Reading) -> None:
    llama, scheme = reading_model("llama"), Scheme(4, "channel")
    everything = sum(info.nbytes for info in llama.tensors.values())
    quantized = layer_bytes(llama.architecture.weights[UP], scheme, dtype=torch.float32)
    assert planned_bytes(llama, {UP: scheme}) == everything - llama.tensors[UP].nbytes + quantized
    assert planned_bytes(llama, {}) == everything


IDENTITY = {"plan": "0" * 64, "model": "1" * 64, "tokenizer": "3" * 64, "fairbits": "0.2.0", "device": "cpu"}


def linears(checkpoint: Checkpoint) -> list[str]:
    return [name for name, weight in checkpoint.architecture.linears.items() if weight.block is not None]


def test_one_scheme_is_named_by_class_and_several_by_module(reading_model: Reading) -> None:
    llama = reading_model("llama")
    one = quantization_config(llama, dict.fromkeys(linears(llama), Scheme(4, "channel")))
    assert [group["targets"] for group in one["config_groups"].values()] == [["Linear"]]
    assert one["ignore"] == ["lm_head"]
    several = dict.fromkeys(linears(llama), Scheme(4, "channel")) | {
        "model.layers.1.mlp.down_proj.weight": Scheme(8, "channel")
    }
    two = quantization_config(llama, several)["config_groups"]
    assert len(two["group_0"]["targets"]) == 13
    assert two["group_1"]["targets"] == ["model.layers.1.mlp.down_proj"]
    assert two["group_1"]["weights"]["num_bits"] == 8
    head = quantization_config(
        llama, dict.fromkeys(linears(llama), Scheme(4, "channel")) | {"lm_head.weight": Scheme(8, "channel")}
    )
    assert [group["targets"] for group in head["config_groups"].values()] == [["lm_head"], ["Linear"]]
    assert head["ignore"] == []
    alike = quantization_config(llama, dict.fromkeys([*linears(llama), "lm_head.weight"], Scheme(4, "channel")))
    assert [group["targets"] for group in alike["config_groups"].values()] == [["lm_head", "Linear"]]  # for vLLM


def test_configuration_names_the_oldest_version_that_reads_the_file(reading_model: Reading) -> None:
    llama = reading_model("llama")
    for bits, version in ((2, "0.15.0"), (3, "0.18.0"), (4, "0.15.0"), (5, "0.18.0"), (7, "0.18.0"), (8, "0.15.0")):
        assert quantization_config(llama, dict.fromkeys(linears(llama), Scheme(bits, "channel")))["version"] == version


REFUSED = [
    ("gpt2", "transformer.h.0.mlp.c_fc.weight", Scheme(4, "channel"), "Conv1D"),
    ("gpt2", "transformer.wte.weight", Scheme(4, "channel"), "whole bytes"),
    (
        "mt5",
        "encoder.block.0.layer.0.SelfAttention.o.weight",
        Scheme(4, "channel"),
        "use 8 bits, or measure other bit widths in memory",
    ),
    ("llama", "model.norm.weight", Scheme(4, "channel"), "not a linear layer"),
    ("llama", "model.nothing.weight", Scheme(4, "channel"), "has no weight"),
    ("llama", "model.layers.0.mlp.down_proj.weight", Scheme(4, 32), "groups of 32"),
    ("llama", "model.embed_tokens.weight", Scheme(4, "channel"), "give it 8 bits, or keep it"),
    ("llama", "model.layers.0.self_attn.q_proj.weight", Scheme(4, "channel"), "vLLM fuses differ"),
    ("mixtral", "model.layers.0.block_sparse_moe.gate.weight", Scheme(4, "channel"), "router"),
    ("mixtral", "model.layers.0.block_sparse_moe.experts.0.w2.weight", Scheme(4, "channel"), "one scheme"),
]


@pytest.mark.parametrize(("family", "name", "stored", "reason"), REFUSED)
def test_what_the_format_cannot_hold_is_refused(
    reading_model: Reading, family: str, name: str, stored: Scheme, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        check_storable(reading_model(family), {name: stored})


def test_nothing_to_quantize_is_refused(reading_model: Reading) -> None:
    with pytest.raises(InputError, match="no tensor is to be quantized"):
        check_storable(reading_model("llama"), {})


def test_an_embedding_is_held_in_bytes_and_a_layer_in_any_bits(reading_model: Reading) -> None:
    weights = reading_model("llama").architecture.weights
    assert why_not_storable(weights["model.layers.0.mlp.up_proj.weight"], Scheme(3)) is None
    assert why_not_storable(weights["model.embed_tokens.weight"], Scheme(8)) is None


def test_stacked_experts_are_refused(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "head_dim": 8,
    }
    config = t.GptOssConfig(**sizes, intermediate_size=64, vocab_size=50, num_local_experts=2, num_experts_per_tok=1)
    t.GptOssForCausalLM(config).save_pretrained(tmp_path)
    checkpoint = Checkpoint(tmp_path)
    stacked = next(name for name, weight in checkpoint.architecture.linears.items() if weight.stacked)
    with pytest.raises(InputError, match="holds 2 experts in one tensor"):
        check_storable(checkpoint, {stacked: Scheme(4, "channel")})


def test_tied_copies_are_told_from_tensors_of_other_values(reading_model: Reading, tmp_path: Path) -> None:
    source = reading_model("gemma3").directory
    tensors = load_file(source / "model.safetensors")
    table: Any = tensors["model.embed_tokens.weight"]
    for head, copies in ((table.clone(), {"lm_head.weight"}), (table + 1, set())):
        save_file({**tensors, "lm_head.weight": head}, tmp_path / "model.safetensors", metadata={"format": "pt"})
        shutil.copy(source / "config.json", tmp_path)
        checkpoint = Checkpoint(tmp_path)
        assert checkpoint.tied_copies == copies
        reason = "stored once" if copies else "other values"
        with pytest.raises(InputError, match=reason):
            check_storable(checkpoint, {"lm_head.weight": Scheme(8, "channel")})


def test_configuration_is_valid_for_the_library(reading_model: Reading) -> None:
    from compressed_tensors.quantization import QuantizationConfig

    llama = reading_model("llama")
    stored = dict.fromkeys(linears(llama), Scheme(4, 16)) | {"model.embed_tokens.weight": Scheme(8, "channel")}
    config = quantization_config(llama, stored)
    assert json.loads(json.dumps(config)) == config
    read = QuantizationConfig.model_validate(copy.deepcopy(config))
    assert read.format == "mixed-precision"
    assert [group.weights.group_size for group in read.config_groups.values()] == [None, 16]


@pytest.mark.parametrize("change", [{"strategy": "wrong"}, {"num_bits": "four"}, {"strategy": "group"}, {"type": None}])
def test_a_configuration_that_the_library_refuses_stops_before_anything_is_written(
    reading_model: Reading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    llama, group_entry = reading_model("llama"), module._group

    def odd(*args: Any) -> dict[str, Any]:
        group = group_entry(*args)
        return group | {"weights": group["weights"] | change}

    monkeypatch.setattr(module, "_group", odd)
    schemes = dict.fromkeys(linears(llama), Scheme(4, "channel"))
    with pytest.raises(InputError, match="compressed-tensors refuses the quantization_config that would be written"):
        QuantizedWriter(llama, tmp_path / "out", schemes=schemes, identity=IDENTITY)
    assert list(tmp_path.iterdir()) == []


SHAPE = "transformer.h.{}.self_attention.query_key_value.weight_shape"


@pytest.fixture
def bloom(outer_blocks: Any, inside: Any, write: Any, tmp_path: Path) -> Path:
    """Returns two embedded blocks in 4 bits."""
    checkpoint = outer_blocks(2)
    write(checkpoint, dict.fromkeys(inside(checkpoint), Scheme(4, 64)), tmp_path / "out")
    return tmp_path / "out"


def weight_map(index: Path) -> dict[str, str]:
    return dict(json.loads(index.read_text())["weight_map"])


def test_the_usual_index_has_everything_but_the_shapes_of_query_key_value(bloom: Path) -> None:
    usual = weight_map(bloom / "model.safetensors.index.json")
    complete = weight_map(bloom / "transformers.safetensors.index.json")
    assert complete.keys() - usual.keys() == {SHAPE.format(0), SHAPE.format(1)}
    assert complete.items() >= usual.items()
    assert {name for name, file in complete.items() if file == "shapes.safetensors"} == complete.keys() - usual.keys()
    assert load_file(bloom / "shapes.safetensors")[SHAPE.format(0)].tolist() == [768, 256]
    for file in sorted(set(usual.values())):  # vLLM reads all that is in a file of the index
        assert not any("query_key_value.weight_shape" in name for name in load_file(bloom / file))


def test_transformers_and_fairbits_read_the_complete_index(bloom: Path) -> None:
    assert json.loads((bloom / "config.json").read_text())["transformers_weights"].startswith("transformers.")
    assert SHAPE.format(1) in Checkpoint(bloom).tensors
    model = t.AutoModelForCausalLM.from_pretrained(bloom, dtype=torch.float32)
    with torch.no_grad():
        assert model(input_ids=torch.arange(8)[None]).logits.isfinite().all()


def test_shapes_of_gpt_neox_lie_apart_too(make: Any, inside: Any, write: Any, tmp_path: Path) -> None:
    neox = make("gpt_neox")
    write(neox, dict.fromkeys(inside(neox), Scheme(4, "channel")), tmp_path / "out")
    usual = weight_map(tmp_path / "out/model.safetensors.index.json")
    extra = weight_map(tmp_path / "out/transformers.safetensors.index.json").keys() - usual.keys()
    assert extra == {f"gpt_neox.layers.{block}.attention.query_key_value.weight_shape" for block in range(2)}


def test_other_families_have_one_index(reading_model: Any, inside: Any, write: Any, tmp_path: Path) -> None:
    llama = reading_model("llama")
    write(llama, dict.fromkeys(inside(llama), Scheme(4, "channel")), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").glob("*index*")] == ["model.safetensors.index.json"]
    assert "transformers_weights" not in json.loads((tmp_path / "out/config.json").read_text())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../elsewhere.safetensors", "next to it"),
        ("weights.bin", "next to it"),
        (3, "next to it"),
        ("other.safetensors.index.json", "missing"),
    ],
)
def test_weights_that_the_configuration_names_wrongly(bloom: Path, name: object, message: str) -> None:
    config = json.loads((bloom / "config.json").read_text()) | {"transformers_weights": name}
    (bloom / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=message):
        Checkpoint(bloom)


def test_a_single_file_that_the_configuration_names(reading_model: Any, tmp_path: Path) -> None:
    source = reading_model("llama").directory
    (tmp_path / "own.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    config = json.loads((source / "config.json").read_text()) | {"transformers_weights": "own.safetensors"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"another one, which transformers does not read")
    assert Checkpoint(tmp_path).tensors.keys() == Checkpoint(source).tensors.keys()
