"""Points of a model where activations are measured, also of blocks with several states of each position."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from small_models import small_model

from fairbits.forward.recorder import measuring_points, observable_linears
from fairbits.forward.statistics import collect_statistics
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.scheme import Scheme
from fairbits.text.corpus import TextRequest
from fairbits.text.reading import open_corpus


def opened(checkpoint):
    model = checkpoint.load()
    return checkpoint.architecture, model


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3", "xlmr"])
def test_every_block_has_its_seven_points(family, reading_model):
    points = measuring_points(*opened(reading_model(family)))
    for block in range(2):
        by_name = {point.name: point for point in points if point.block == block}
        inside = ("attention", "mlp", "attention.input", "attention_out.input", "mlp.input", "mlp_down.input")
        assert set(by_name) == {f"blocks.{block}", *(f"blocks.{block}.{name}" for name in inside)}
        kinds = [by_name[name].kind for name in (f"blocks.{block}", f"blocks.{block}.mlp", f"blocks.{block}.attention")]
        assert kinds == ["block", "mlp", "attention"]
        assert by_name[f"blocks.{block}.mlp"].module == by_name[f"blocks.{block}.mlp_down.input"].module
    assert {point.stack for point in points} == {"encoder" if family == "xlmr" else "decoder"}


def test_cross_attention_has_inputs_of_its_own(reading_model):
    points = {point.name: point for point in measuring_points(*opened(reading_model("mt5")))}
    assert points["encoder_output.input"].stack == "encoder"
    assert points["blocks.2.cross_attention.input"].stack == "decoder"
    assert "SelfAttention" in points["blocks.2.attention"].module
    assert [point.stack for point in points.values() if point.kind == "block"] == ["encoder"] * 2 + ["decoder"] * 2


def test_experts_that_are_stacked_are_left_out_with_the_reason(reading_model):
    architecture, model = opened(reading_model("mixtral"))
    linears, left_out = observable_linears(architecture, model)
    assert {weight.role for weight in linears.values()} == {"q", "k", "v", "attention_out"}
    assert set(linears) | set(left_out) == {name for block in architecture.blocks for name in block.linears}
    reasons = {architecture.weights[name].role: reason for name, reason in left_out.items()}
    assert reasons.pop("router") == "a router is not quantized"
    assert set(reasons) == {"mlp_gate", "mlp_up", "mlp_down"}
    assert all("experts stacked" in reason for reason in reasons.values())
    kinds = [point.kind for point in measuring_points(architecture, model)]
    assert "mlp" not in kinds
    assert kinds.count("attention") == kinds.count("block") == 2


@pytest.mark.parametrize("family", ["llama", "gpt2", "mt5"])
def test_every_linear_map_sees_a_point(family, reading_model):
    architecture, model = opened(reading_model(family))
    linears, left_out = observable_linears(architecture, model)
    names = {point.name for point in measuring_points(architecture, model) if point.kind == "input"}
    assert {f"{weight.sees}.input" for weight in linears.values()} == names
    assert left_out == {}


EMBEDDED = "embedded:tiny"
STREAMED = {"gemma3n_text": "Gemma3nForCausalLM", "hy_v4": "HYV4ForCausalLM"}
"""One has the states of a position first in shape, the other third."""


@pytest.mark.parametrize("family", STREAMED)
def test_all_states_of_a_position_count(family: str, tmp_path: Path) -> None:
    embedded = Checkpoint(EMBEDDED)
    model = small_model(family, STREAMED[family], vocabulary=embedded.config.vocab_size)
    model.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(embedded.directory / name, tmp_path)
    checkpoint = Checkpoint(tmp_path)
    corpus = open_corpus(None, ["eng", "heb"])
    measured = collect_statistics(checkpoint, corpus, request=TextRequest(tokens=96), schemes=(Scheme(4, 16),))
    blocks = [measured.channels[f"blocks.{number}"] for number in range(2)]
    for channels in blocks:
        assert channels.shape[-1] == 4 * model.config.hidden_size
        streams = np.asarray(channels).reshape(2, 4, -1).sum(2)
        assert (streams > 0).all()
        assert len(np.unique(streams.round(9))) > 2  # they are not copies
