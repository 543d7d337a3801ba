import pytest

from fairbits.forward.recorder import measuring_points, observable_linears


def opened(checkpoint):
    model = checkpoint.load()
    return checkpoint.architecture, model


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3", "xlmr"])
def test_every_block_has_its_seven_points(family, reading_model):
    points = measuring_points(*opened(reading_model(family)))
    for block in range(2):
        own = {point.name: point for point in points if point.block == block}
        inside = ("attention", "mlp", "attention.input", "attention_out.input", "mlp.input", "mlp_down.input")
        assert set(own) == {f"blocks.{block}", *(f"blocks.{block}.{name}" for name in inside)}
        kinds = [own[name].kind for name in (f"blocks.{block}", f"blocks.{block}.mlp", f"blocks.{block}.attention")]
        assert kinds == ["block", "mlp", "attention"]
        assert own[f"blocks.{block}.mlp"].module == own[f"blocks.{block}.mlp_down.input"].module
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
