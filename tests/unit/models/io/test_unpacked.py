"""A quantized checkpoint, unpacked tensor by tensor: the same weights as transformers' loader gives."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fairbits.core.errors import InputError
from fairbits.models.architecture.meta_model import model_class
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.unpacked import UnpackedCheckpoint
from fairbits.models.scales.scheme import Scheme
from fairbits.models.streaming_model import StreamingModel

Make = Callable[..., Checkpoint]
SCHEMES = {"3 bits": Scheme(3, 32), "4 bits": Scheme(4, "channel"), "8 bits": Scheme(8, 32), "mixed": None}


def check_weights(checkpoint: UnpackedCheckpoint) -> None:
    """All weights that a block-by-block pass loads are those that transformers loads, and those of the whole model."""
    config = copy.deepcopy(checkpoint.stored.config)
    config.quantization_config["dequantize"] = True
    loader = model_class(config)
    expected = loader.from_pretrained(checkpoint.directory, config=config, dtype=torch.float32).state_dict()
    whole = checkpoint.stored.load().state_dict()
    streamed = StreamingModel(checkpoint)
    streamed.load_outside(torch.arange(80), {})
    streamed.load_head()
    for block in checkpoint.architecture.blocks:
        streamed.load_block(block, {})
    loaded = streamed.model.state_dict()
    assert loaded.keys() <= expected.keys()  # a loader keeps scales too
    for name, tensor in loaded.items():
        assert torch.equal(tensor, expected[name]), name
        assert torch.equal(tensor, whole[name]), name


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("family", ["bloom", "llama", "gemma3", "gpt_neox", "xlmr"])
def test_weights_are_those_of_the_loader(
    make: Make, tmp_path: Path, family: str, scheme: str, inside: Any, mixed: Any, write: Any
) -> None:
    checkpoint = make(family, torch.bfloat16)
    chosen = SCHEMES[scheme]
    schemes = mixed(checkpoint) if chosen is None else dict.fromkeys(inside(checkpoint), chosen)
    write(checkpoint, schemes, tmp_path / "out")
    unpacked = UnpackedCheckpoint(Checkpoint(tmp_path / "out"))
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    assert {name: info.shape for name, info in unpacked.tensors.items()} == shapes
    check_weights(unpacked)


@pytest.mark.parametrize("family", ["bloom", "llama"])  # with a tied head, and without
def test_an_embedding_in_8_bits_is_read(make: Make, tmp_path: Path, family: str, inside: Any, write: Any) -> None:
    checkpoint = make(family, torch.bfloat16)
    table = next(name for name, w in checkpoint.architecture.weights.items() if w.role == "embedding")
    write(checkpoint, {**dict.fromkeys(inside(checkpoint), Scheme(4, 32)), table: Scheme(8, "channel")}, tmp_path / "o")
    check_weights(UnpackedCheckpoint(Checkpoint(tmp_path / "o")))


@pytest.fixture
def written(make: Make, tmp_path: Path, inside: Any, write: Any) -> Path:
    checkpoint = make("llama")
    write(checkpoint, dict.fromkeys(inside(checkpoint), Scheme(3, 32)), tmp_path / "out")
    return tmp_path / "out"


def test_another_method_is_refused(written: Path) -> None:
    config = json.loads((written / "config.json").read_text())
    config["quantization_config"]["quant_method"] = "gptq"
    (written / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="format = .pack-quantized"):
        UnpackedCheckpoint(Checkpoint(written))


HEAD = "lm_head.weight"
MAP = "model.layers.0.mlp.up_proj.weight"
CHANGES: dict[str, tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = {
    "a zero point": (lambda t: t.update({f"{MAP}_zero_point": torch.zeros(1)}), "has zero points"),
    "a scale of nothing": (
        lambda t: t.update({"model.norm.weight_scale": torch.ones(1)}),
        "belongs to no packed weight",
    ),
    "a byte per weight": (lambda t: t.update({HEAD: t[HEAD].to(torch.float8_e4m3fn)}), "stored as .*float8_e4m3fn"),
    "no scale": (lambda t: t.pop(f"{MAP}_scale"), "lack .*up_proj.weight_scale"),
    "ten codes in a word": (
        lambda t: t.update({f"{MAP}_packed": torch.zeros(96, 7, dtype=torch.int32)}),
        "7 words for 96 rows of 64 codes, which are not packed densely",
    ),
    "a shape that is a number": (lambda t: t.update({f"{MAP}_shape": torch.tensor(6144)}), "not a matrix"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_layout_is_refused(written: Path, change: str) -> None:
    alter, message = CHANGES[change]
    tensors = {name: t for file in written.glob("*.safetensors") for name, t in load_file(file).items()}
    for file in written.glob("*.safetensors*"):
        file.unlink()
    alter(tensors)
    save_file(tensors, written / "model.safetensors")
    with pytest.raises(InputError, match=message):
        _ = UnpackedCheckpoint(Checkpoint(written)).architecture
