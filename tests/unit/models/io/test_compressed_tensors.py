"""The layout of a quantized linear layer against packing written bit by bit, and sizes."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.compressed_tensors import (
    layer_bytes,
    layer_tensors,
    pack_codes,
    packed_tensors,
    planned_bytes,
    read_packed,
)
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
    found = pack_codes(codes, bits)
    assert torch.equal(found, pack_to_int32(codes, bits))
    assert found.is_contiguous()


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
    monkeypatch.setattr("fairbits.models.io.compressed_tensors.PACKED_WEIGHTS", 100)  # two rows
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
