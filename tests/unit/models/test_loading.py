"""A quantized checkpoint in memory is a model like any other."""

from pathlib import Path

import pytest
import torch

import fairbits as fb
from fairbits.models.checkpoint import Checkpoint


@pytest.fixture(scope="module")
def packed(reading_model, tmp_path_factory) -> Path:
    source, out = reading_model("llama"), tmp_path_factory.mktemp("packed") / "w4"
    fb.quantize(source, fb.plan(source, policy="rtn", bits=4, group=16), out=out)
    return out


def test_it_can_be_moved(packed) -> None:
    model = Checkpoint(packed).load()
    assert {weight.device.type for weight in model.to("meta").parameters()} == {"meta"}  # as it would go to a GPU


def test_tied_weights_stay_tied(tmp_path) -> None:
    fb.quantize("embedded:tiny", fb.plan("embedded:tiny", policy="rtn", bits=4), out=tmp_path / "w4")
    model = Checkpoint(tmp_path / "w4").load()
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    source = Checkpoint("embedded:tiny").load()
    assert torch.equal(model.get_input_embeddings().weight, source.get_input_embeddings().weight)
