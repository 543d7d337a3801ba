"""Output formats: one interface, what compressed-tensors checks before anything is written, and another format."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io import compressed_tensors_config as module
from fairbits.models.io.compressed_tensors import stored_bytes
from fairbits.models.io.formats import DEFAULT_FORMAT, FORMATS, OutputFormat, planned_bytes
from fairbits.models.io.split_index import SplitIndex
from fairbits.models.io.stored_weights import scale_dtype
from fairbits.models.io.weight_files import Directory, read_weights
from fairbits.models.io.writer import QuantizedWriter
from fairbits.models.scales.groups import Codes
from fairbits.models.scales.scheme import Scheme

Reading = Callable[[str], Checkpoint]
IDENTITY = {"plan": "0" * 64, "model": "1" * 64, "tokenizer": "3" * 64, "fairbits": "0.2.0", "device": "cpu"}
UP = "model.layers.0.mlp.up_proj.weight"


def blocks(checkpoint: Checkpoint, scheme: Scheme) -> dict[str, Scheme]:
    linears = checkpoint.architecture.linears
    return {name: scheme for name, weight in linears.items() if weight.block is not None}


def zeros(checkpoint: Checkpoint, name: str, scheme: Scheme) -> Codes:
    out, columns = checkpoint.architecture.weights[name].shape
    scales = torch.ones(out, scheme.groups(columns), dtype=scale_dtype(checkpoint))
    return Codes(torch.zeros(out, columns, dtype=torch.int8), scales, scheme.bits)


def test_planned_bytes_count_what_is_kept_too(reading_model: Reading) -> None:
    llama = reading_model("llama")
    name = "model.layers.0.mlp.up_proj.weight"
    everything = sum(info.nbytes for info in llama.tensors.values())
    expected = everything - llama.tensors[name].nbytes + stored_bytes((48, 32), Scheme(4, "channel"), torch.float32)
    assert planned_bytes(DEFAULT_FORMAT, llama, {name: Scheme(4, "channel")}) == expected
    assert planned_bytes(DEFAULT_FORMAT, llama, {}) == everything


def test_a_parameter_tied_to_an_embedding_has_scales_of_its_own(reading_model: Reading) -> None:
    gemma, scheme = reading_model("gemma3"), Scheme(8, "channel")
    weight = gemma.architecture.weights["model.embed_tokens.weight"]
    alone, tied = (DEFAULT_FORMAT.layer_bytes(weight, scheme, dtype=torch.float16, tied=n) for n in (0, 1))
    assert tied - alone == 2 * weight.shape[0]
    stored = DEFAULT_FORMAT.tensors(weight, zeros(gemma, weight.name, scheme), tied=("lm_head.weight",))
    assert sum(each.nbytes for each in stored.values()) == DEFAULT_FORMAT.layer_bytes(
        weight, scheme, dtype=scale_dtype(gemma), tied=1
    )


def test_the_format_says_why_it_cannot_hold_a_tensor(reading_model: Reading) -> None:
    weights = reading_model("llama").architecture.weights
    assert DEFAULT_FORMAT.why_not(weights[UP], Scheme(3)) is None
    assert "norms, biases" in str(DEFAULT_FORMAT.why_not(weights["model.norm.weight"], Scheme(8)))
    table = weights["model.embed_tokens.weight"]
    assert "give it 8 bits" in str(DEFAULT_FORMAT.why_not(table, Scheme(4)))
    assert DEFAULT_FORMAT.why_not(table, Scheme(DEFAULT_FORMAT.embedding_bits)) is None


@pytest.mark.parametrize("change", [{"strategy": "wrong"}, {"num_bits": "four"}, {"strategy": "group"}, {"type": None}])
def test_a_configuration_that_the_library_refuses_stops_before_anything_is_written(
    reading_model: Reading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    llama, made = reading_model("llama"), module._group

    def odd(*args: Any) -> dict[str, Any]:
        group = made(*args)
        return group | {"weights": group["weights"] | change}

    monkeypatch.setattr(module, "_group", odd)
    with pytest.raises(InputError, match="compressed-tensors refuses the quantization_config that would be written"):
        QuantizedWriter(llama, tmp_path / "out", schemes=blocks(llama, Scheme(4, "channel")), identity=IDENTITY)
    assert list(tmp_path.iterdir()) == []


class PlainBytes:
    """A format that stores every code as a byte, and says so in a file of its own."""

    embedding_bits = 8

    def why_not(self, weight: Any, scheme: Scheme) -> str | None:
        return None if scheme.bits == 8 else f"{weight.name} has {scheme.bits} bits; it must have 8"

    def check(self, checkpoint: Checkpoint, schemes: Mapping[str, Scheme]) -> None:
        for name, scheme in schemes.items():
            if reason := self.why_not(checkpoint.architecture.weights[name], scheme):
                raise InputError(reason)

    def layer_bytes(self, weight: Any, scheme: Scheme, *, dtype: torch.dtype, tied: int = 0) -> int:
        out, columns = weight.shape
        return out * columns + out * scheme.groups(columns) * dtype.itemsize * (1 + tied)

    def tensors(self, weight: Any, codes: Codes, *, tied: tuple[str, ...] = ()) -> dict[str, Tensor]:
        scales = {f"{name}.scales": codes.scales for name in (weight.name, *tied)}
        return {f"{weight.name}.bytes": codes.codes, **scales}

    def apart(self, checkpoint: Checkpoint, schemes: Mapping[str, Scheme]) -> SplitIndex:  # noqa: ARG002
        return SplitIndex()

    def read(self, tensors: Mapping[str, Tensor], name: str, *, bits: int) -> Codes:
        return Codes(tensors[f"{name}.bytes"], tensors[f"{name}.scales"], bits)

    def config_entries(self, checkpoint: Checkpoint, schemes: Mapping[str, Scheme]) -> dict[str, Any]:  # noqa: ARG002
        return {"quantization_config": {"quant_method": "plain-bytes", "modules": sorted(schemes)}}

    def extra_files(self, checkpoint: Checkpoint, schemes: Mapping[str, Scheme]) -> dict[str, bytes]:  # noqa: ARG002
        return {"plain_bytes.json": json.dumps({"layers": len(schemes)}).encode()}


def test_another_format_needs_nothing_but_its_methods(reading_model: Reading, tmp_path: Path) -> None:
    llama, output = reading_model("llama"), PlainBytes()
    checked: OutputFormat = output
    with pytest.raises(InputError, match="it must have 8"):
        QuantizedWriter(llama, tmp_path / "out", schemes={UP: Scheme(4)}, identity=IDENTITY, output=checked)
    schemes = {UP: Scheme(8, 16)}
    writer = QuantizedWriter(llama, tmp_path / "out", schemes=schemes, identity=IDENTITY, output=checked)
    writer.add(0, {UP: zeros(llama, UP, schemes[UP])})
    found = writer.finished(0)
    assert found is not None
    assert torch.equal(found.layers[UP].codes, torch.zeros(48, 32, dtype=torch.int8))
    writer.finish()
    tensors, _ = read_weights(Directory(tmp_path / "out"))
    assert {f"{UP}.bytes", f"{UP}.scales"} <= tensors.keys()
    assert UP not in tensors
    assert sum(info.nbytes for info in tensors.values()) == planned_bytes(output, llama, schemes) == writer.size_bytes
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"] == {"quant_method": "plain-bytes", "modules": [UP]}
    assert json.loads((tmp_path / "out" / "plain_bytes.json").read_text()) == {"layers": 1}


def test_the_default_is_one_of_the_formats() -> None:
    assert DEFAULT_FORMAT is FORMATS["compressed-tensors"]
