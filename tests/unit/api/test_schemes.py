"""Formats that servers know, as `quantize` writes them: read again here, by transformers, and after an interruption."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from safetensors.torch import load_file

import fairbits as fb
from fairbits.api.quantize import calibration_text
from fairbits.core.errors import InputError
from fairbits.forward.experts import ExpertCall
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.checkpoint_writer import QuantizedWriter
from fairbits.models.scales.groups import choose_scales, dequantize_in_float32
from fairbits.models.scales.scheme import FORMATS, Scheme
from fairbits.quantization.execute import execute_plan
from fairbits.quantization.policies.variants import variant
from fairbits.reports.hub_card import stored_widths
from fairbits.text.corpus import Corpus

TEXT: dict[str, Any] = {"languages": ["eng", "fra"], "tokens": 128, "sequence": 64}
IDS = torch.arange(20, 60)[None]
RAIN = [f"On day {i} the wind came from the north{' and brought rain' * (i % 3)}." for i in range(12)]
VENT = [f"Le jour {i}, le vent venait du nord{' et apportait la pluie' * (i % 3)}." for i in range(12)]
WEATHER = Corpus("weather", {"eng": RAIN[:6], "fra": VENT[:6]}, {"eng": RAIN[6:], "fra": VENT[6:]}, parallel=True)
STEPS = {"block_steps": 2, "model_steps": 2}


def quantized(model: Path, out: Path, **options: Any) -> fb.Plan:
    return fb.quantize(model, fb.plan(model, **TEXT, **options), out=out)


@torch.no_grad()
def check_alike(out: Path, *, dtype: torch.dtype = torch.float32) -> None:
    """Asserts that fairbits and transformers have the same weights, and in float32 compute the same."""
    ours = Checkpoint(out).plain.load(device="cpu")
    theirs = t.AutoModelForCausalLM.from_pretrained(out, dtype=dtype)
    expected, logits = ours(input_ids=IDS).logits, theirs(input_ids=IDS).logits  # which unpacks the weights
    if dtype == torch.float32:
        assert (logits - expected).abs().max() < 1e-4 * expected.abs().max()
    unpacked = dict(theirs.named_parameters())
    for name, weight in ours.named_parameters():
        assert torch.allclose(unpacked[name].float(), weight, rtol=2**-8, atol=1e-6), name


def unpacked_in(scheme: str) -> torch.dtype:
    """Returns the type in which transformers computes a format: its scales in 8 bits become bfloat16."""
    return torch.float32 if FORMATS[scheme].scales == "model" else torch.bfloat16


@pytest.mark.parametrize("scheme", FORMATS)
def test_every_format_is_read_as_it_was_rounded(reading_model, tmp_path: Path, scheme: str) -> None:
    model, out = reading_model("wide_llama"), tmp_path / scheme
    plan = fb.plan(model.directory, scheme=scheme, **TEXT)
    done = fb.quantize(model.directory, plan, out=out)
    assert {layer.scheme.format for layer in plan.quantized} == {scheme}
    assert done.size_bytes == sum(tensor.nbytes for tensor in read(out).values())
    check_alike(out, dtype=unpacked_in(scheme))
    loaded, weights = Checkpoint(out).plain, model.architecture.weights
    for block in execute_plan(model, plan, text=words(model, plan)):
        for name, codes in block.layers.items():
            assert torch.equal(loaded.read(name), dequantize_in_float32(codes))
            assert weights[name].shape == tuple(codes.codes.shape)


def words(model: Checkpoint, plan: fb.Plan) -> Any:
    return calibration_text(model, plan, None)


def read(out: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in out.glob("model-*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize(("family", "scheme"), [("qwen2", "NVFP4"), ("gemma3", "FP8"), ("mixtral", "FP8_DYNAMIC")])
def test_families(reading_model, tmp_path: Path, family: str, scheme: str) -> None:
    quantized(reading_model(family).directory, tmp_path / scheme, scheme=scheme)
    if family == "mixtral":  # transformers does not round the inputs of experts
        plain = Checkpoint(tmp_path / scheme).plain
        assert all(plain.read(name).isfinite().all() for name in plain.tensors)
    else:
        check_alike(tmp_path / scheme, dtype=unpacked_in(scheme))


def test_layers_that_servers_join_share_their_global_scales(reading_model, tmp_path: Path) -> None:
    model = reading_model("mixtral")
    quantized(model.directory, tmp_path / "out", scheme="NVFP4", policy="rtn")
    tensors = read(tmp_path / "out")
    for members in model.architecture.fused_groups.values():
        for kind in ("weight_global_scale", "input_global_scale"):
            assert len({tensors[weight.name.replace("weight", kind)].item() for weight in members}) == 1
    ends = [weight.name for weight in model.architecture.linears.values() if weight.role == "mlp_down"]
    inputs = [tensors[name.replace("weight", "input_global_scale")].item() for name in ends]
    assert len(inputs) == 6
    assert len(set(inputs)) == 2  # one for the experts of each block


def test_experts_that_no_text_reaches_have_finite_scales(reading_model, tmp_path: Path, monkeypatch) -> None:
    """llm-compressor #2826 wrote NaN there."""
    reaches = ExpertCall.reaches
    monkeypatch.setattr(ExpertCall, "reaches", lambda call, expert: reaches(call, expert) & (expert != 2))
    for scheme in ("NVFP4", "FP8"):
        done = quantized(reading_model("mixtral").directory, tmp_path / scheme, scheme=scheme)
        assert any("no calibration text reached" in note for result in done.results for note in result.notes)
        assert all(tensor.float().isfinite().all() for tensor in read(tmp_path / scheme).values())


def test_scales_of_inputs_are_those_of_all_languages(reading_model, tmp_path: Path) -> None:
    model = reading_model("wide_llama").directory
    done = quantized(model, tmp_path / "all", scheme="FP8", policy="rtn")
    tensors, name = read(tmp_path / "all"), "model.layers.1.mlp.down_proj"
    ranges = next(result.largest_input for result in done.results if result.name == f"{name}.weight")
    assert set(ranges) == {"eng_Latn", "fra_Latn"}
    assert tensors[f"{name}.input_scale"].item() == pytest.approx(max(ranges.values()) / 448, rel=1e-6)
    quantized(model, tmp_path / "english", scheme="FP8", policy="gptq:mix=english")
    english = read(tmp_path / "english")[f"{name}.input_scale"].item()
    assert english == pytest.approx(ranges["eng_Latn"] / 448, rel=0.5)


def test_what_is_learned_is_what_is_written(reading_model, tmp_path: Path) -> None:
    model = reading_model("wide_llama").directory
    done = quantized(model, tmp_path / "out", scheme="NVFP4", policy="fair", **STEPS)
    assert done.learned is not None
    assert all(set(result.largest_input) == {"eng_Latn", "fra_Latn"} for result in done.results)
    check_alike(tmp_path / "out", dtype=torch.bfloat16)


def test_a_comparison_rounds_inputs_too(reading_model, tmp_path: Path) -> None:
    """What `compare` measures in memory is what `evaluate` measures of the files."""
    model = reading_model("wide_llama").directory
    variants = ["rtn:scheme=MXFP4", "rtn:scheme=MXFP4A16"]
    result = fb.compare(model, policies=variants, bits=[4], text=WEATHER)
    for name in variants:
        scheme = name.partition("=")[2]
        quantized(model, tmp_path / scheme, scheme=scheme, policy="rtn")
        written = fb.evaluate(tmp_path / scheme, reference=model, text=WEATHER).to_pandas()
        (entry,) = (entry for entry in result.as_data()["entries"] if entry["policy"] == name)
        for code, damage in entry["damage"].items():
            assert damage["value"] == pytest.approx(written[f"divergence_{result.unit}"][code], rel=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "NVFP4", "group": 32}, "scheme is NVFP4, which has 4 bits and group 16"),
        ({"scheme": "FP5"}, "scheme is 'FP5'"),
        ({"scheme": "NVFP4", "embeddings": 8}, "NVFP4 keeps them"),
        ({"scheme": "NVFP4", "policy": "protect"}, "protect does not take scheme"),
        ({"scheme": "NVFP4", "policy": "fair", "avg_bits": 4.5}, "bits are free for integers only"),
        ({"scheme": "FP8_BLOCK"}, r"inputs, which groups of 128 \(FP8_BLOCK\) do not divide"),
        ({"scheme": "attention=FP8,attention=NVFP4"}, "names a part twice"),
        ({"scheme": "heads=FP8"}, "a part in scheme is 'heads'"),
        ({"scheme": "attention=FP5"}, "scheme is 'FP5'"),
        ({"scheme": "experts=FP8"}, "which leaves out every block"),
    ],
)
def test_refusals(reading_model, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fb.plan(reading_model("llama").directory, **TEXT, **options)


def test_static_scales_need_text(reading_model) -> None:
    with pytest.raises(InputError, match="FP8 has scales of inputs, which need text"):
        fb.plan(reading_model("llama").directory, scheme="FP8", policy="rtn")


def test_in_memory_there_are_integers_only(reading_model) -> None:
    model = reading_model("wide_llama").directory
    with pytest.raises(InputError, match="MXFP4: write it with out"):
        fb.quantize(model, fb.plan(model, scheme="MXFP4", policy="rtn"))


@pytest.mark.parametrize("scheme", ["NVFP4", "MXFP4", "FP8_BLOCK", "FP8"])
def test_an_interrupted_run_ends_with_the_same_bytes(reading_model, tmp_path: Path, monkeypatch, scheme: str) -> None:
    model = reading_model("wide_llama").directory
    plan = fb.plan(model, scheme=scheme, **TEXT)
    fb.quantize(model, plan, out=tmp_path / "whole")
    added, blocks = QuantizedWriter.add, []

    def add(writer: QuantizedWriter, index: int | None, *args: Any, **more: Any) -> None:
        if blocks:
            raise KeyboardInterrupt
        blocks.append(index)
        added(writer, index, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(QuantizedWriter, "add", add)
        with pytest.raises(KeyboardInterrupt):
            fb.quantize(model, plan, out=tmp_path / "cut")
    fb.quantize(model, plan, out=tmp_path / "cut", resume=True)
    files = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert [(tmp_path / "cut" / name).read_bytes() for name in files] == [
        (tmp_path / "whole" / name).read_bytes() for name in files
    ]


def test_servers_that_cannot_load_a_format_are_named(reading_model) -> None:
    plan = fb.plan(reading_model("wide_llama").directory, scheme="FP8_BLOCK", policy="rtn")
    assert any("vLLM cannot load this FP8_BLOCK: it joins model.layers.0" in note for note in plan.notes)
    plan = fb.plan("embedded:tiny", scheme="NVFP4A16", policy="rtn")
    assert any("vLLM cannot load this NVFP4A16: it rearranges" in note for note in plan.notes)
    plan = fb.plan(reading_model("mixtral").directory, scheme="W8A8", policy="rtn")
    assert any("transformers computes experts without rounding" in note for note in plan.notes)


@pytest.mark.parametrize("scheme", ["attention=FP8_DYNAMIC,mlp=NVFP4A16", "mlp=W4A16", "attention=W8A8,mlp=MXFP4A16"])
def test_every_part_of_a_block_has_its_format(reading_model, tmp_path: Path, scheme: str) -> None:
    model, named = reading_model("wide_llama").directory, dict(pair.split("=") for pair in scheme.split(","))
    done = quantized(model, tmp_path / "out", scheme=scheme)
    for layer in done.layers:
        part = named.get("mlp" if layer.role.startswith("mlp") else "attention") if layer.block is not None else None
        assert (layer.scheme and ("W4A16" if layer.scheme.format == "integer" else layer.scheme.format)) == part
    check_alike(
        tmp_path / "out", dtype=torch.bfloat16 if "A16," in scheme + "," and "mlp=W" not in scheme else torch.float32
    )


def test_experts_may_have_another_format_than_attention(reading_model, tmp_path: Path) -> None:
    model = reading_model("mixtral").directory
    done = quantized(model, tmp_path / "out", scheme="experts=NVFP4,attention=FP8_DYNAMIC")
    assert any("transformers cannot load this" in note for note in done.notes)
    scores = fb.evaluate(tmp_path / "out", reference=model, text=WEATHER)
    assert all(0 < estimate.value < 5 for estimate in scores.kl.values())
    groups = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]["config_groups"].values()
    assert {group["format"] for group in groups} == {"float-quantized", "nvfp4-pack-quantized"}


def test_experts_whose_inputs_are_rounded_are_not_measured_in_memory(reading_model) -> None:
    with pytest.raises(InputError, match="rounds the inputs of experts"):
        fb.compare(reading_model("mixtral").directory, policies=["rtn:scheme=W8A8", "rtn"], bits=[8], text=WEATHER)


def test_variants_know_what_they_read() -> None:
    assert variant("rtn:scheme=attention=FP8+mlp=NVFP4A16").reads_text
    assert not variant("rtn:scheme=attention=FP8_DYNAMIC+mlp=NVFP4A16").reads_text
    assert variant("gptq:scheme=experts=NVFP4").rounds_experts
    assert not variant("gptq:scheme=experts=NVFP4A16+attention=FP8").rounds_experts
    with pytest.raises(InputError, match="has 8 bits, and not 4: give --bits 8"):
        variant("gptq:scheme=FP8").at(4)


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        ("NVFP4", "FP4A4-G16"),
        ("W8A8", "W8A8-channel"),
        ("attention=FP8,mlp=NVFP4A16", "FP4-8A8"),
        ("W4A16", "W4A16-G128"),
    ],
)
def test_cards_name_the_format(scheme: str, name: str) -> None:
    content = {"provenance": {"policy": {"settings": {"scheme": scheme, "group": 16}}}, "allocation": {}}
    assert stored_widths(content, {}).suffix == name


def test_tiny_weights_keep_a_scale() -> None:
    """In float16 scales of rows around 1e-6 would be 0."""
    W = torch.full((4, 128), 1e-6)
    for scheme in ("FP8_DYNAMIC", "FP8_BLOCK"):
        plain = Scheme(FORMATS[scheme].bits, FORMATS[scheme].group, format=scheme)
        for chosen in (plain, replace(plain, clip="exact")):
            assert (choose_scales(W, chosen, dtype=torch.float16)[0] > 0).all()
