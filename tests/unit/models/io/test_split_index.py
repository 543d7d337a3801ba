"""Shapes that vLLM cannot load: where they lie, what each reader is told, and that nothing else changes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from safetensors.torch import load_file

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.scheme import Scheme

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
    own = weight_map(tmp_path / "out/transformers.safetensors.index.json").keys() - usual.keys()
    assert own == {f"gpt_neox.layers.{block}.attention.query_key_value.weight_shape" for block in range(2)}


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
