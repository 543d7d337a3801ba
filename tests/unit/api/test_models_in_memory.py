"""The verbs take a model in memory, give the results of its files, and leave it as it is."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as t

import fairbits as fb
from fairbits.api.quantize import NO_THRESHOLDS
from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.loaded_checkpoint import PackedOnSave

LANGUAGES = ["eng", "swh"]
TEXT = {"languages": LANGUAGES, "tokens": 128, "device": "cpu"}
IDS = torch.arange(4, 8)[None]


def state_of(model: Any) -> tuple[str, bool, torch.dtype, str, tuple[bool, ...]]:
    """Returns all that a verb must leave as it is."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes())
    grads = tuple(parameter.requires_grad for parameter in model.parameters())
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    return f"{digest.hexdigest()} {hooks} {model.config}", model.training, model.dtype, str(model.device), grads


@pytest.fixture(scope="module")
def tiny(outer_blocks: Callable[[int], Checkpoint]) -> Checkpoint:
    return outer_blocks(2)


@pytest.fixture(scope="module")
def tokenizer(tiny: Checkpoint) -> Any:
    return tiny.tokenizer()


@pytest.fixture
def model(tiny: Checkpoint) -> Any:
    """Returns the user's model, with a training mode of its own."""
    return t.AutoModelForCausalLM.from_pretrained(tiny.directory).train()


@pytest.fixture(scope="module")
def plan(tiny: Checkpoint) -> fb.Plan:
    return fb.plan(tiny, policy="gptq", bits=4, group=64, **TEXT)


def test_an_audit_is_that_of_the_files(tiny: Checkpoint, model: Any, tokenizer: Any) -> None:
    before = state_of(model)
    in_memory, expected = fb.audit(model, tokenizer, **TEXT), fb.audit(tiny, **TEXT)
    assert state_of(model) == before
    assert in_memory.model.fingerprint == expected.model.fingerprint
    assert in_memory.model.target.endswith("(in memory)")
    for form, damage in expected.damage.items():
        np.testing.assert_array_equal(in_memory.damage[form].sums, damage.sums)


def test_plan_and_quantized_model_are_those_of_the_files(
    tiny: Checkpoint, model: Any, tokenizer: Any, plan: fb.Plan, tmp_path: Path
) -> None:
    before = state_of(model)
    in_memory_plan = fb.plan(model, tokenizer=tokenizer, policy="gptq", bits=4, group=64, **TEXT)
    assert in_memory_plan.digest == plan.digest
    quantized = fb.quantize(model, in_memory_plan, tokenizer=tokenizer, device="cpu")
    assert state_of(model) == before
    assert (type(quantized), quantized.dtype, quantized.training) == (type(model), model.dtype, False)
    written = fb.quantize(tiny, plan, out=tmp_path / "written", device="cpu")
    assert fb.Plan.load(tmp_path / "written" / "plan.json").results == written.results

    quantized.save_pretrained(tmp_path / "saved")
    saved, expected = Checkpoint(tmp_path / "saved"), Checkpoint(tmp_path / "written")
    assert saved.config.quantization_config == expected.config.quantization_config
    assert saved.tensors.keys() == expected.tensors.keys()
    assert all(torch.equal(saved.read(name), expected.read(name)) for name in saved.tensors)
    with torch.no_grad():
        logits = quantized(IDS).logits
        for directory in ("written", "saved"):
            again = t.AutoModelForCausalLM.from_pretrained(tmp_path / directory).eval()
            assert torch.equal(again(IDS).logits, logits)
        assert not torch.equal(model.eval()(IDS).logits, logits)
    assert quantized.generate(IDS, max_new_tokens=2, min_new_tokens=2, do_sample=False).shape == (1, 6)


def test_a_quantized_model_in_memory_is_evaluated(
    model: Any, tokenizer: Any, tiny: Checkpoint, plan: fb.Plan, tmp_path: Path
) -> None:
    quantized = fb.quantize(tiny, plan, device="cpu")  # from files into memory
    assert isinstance(quantized.hf_quantizer, PackedOnSave)
    states = [state_of(network) for network in (quantized, model)]
    scores = fb.evaluate(quantized, reference=model, tokenizer=tokenizer, **TEXT)
    assert [state_of(network) for network in (quantized, model)] == states
    fb.quantize(tiny, plan, out=tmp_path / "written", device="cpu")
    expected = fb.evaluate(tmp_path / "written", reference=tiny, **TEXT)
    # files are dequantized in float32; a model in float16 has rounded weights
    np.testing.assert_allclose(scores.frame().values, expected.frame().values, rtol=0.05, atol=1e-4)
    assert scores.quantized.size_bytes == expected.quantized.size_bytes
    assert scores.reference.fingerprint == expected.reference.fingerprint
    assert "quantized, in memory" in scores.quantized.target

    again = fb.evaluate(quantized, reference=model, tokenizer=tokenizer, repeat=str(scores.signature()), device="cpu")
    np.testing.assert_array_equal(again.frame().values, scores.frame().values)
    other = t.AutoModelForCausalLM.from_pretrained(tiny.directory)
    with torch.no_grad():
        other.transformer.h[0].mlp.dense_4h_to_h.weight.mul_(2)
    with pytest.raises(InputError, match="has other weights"):
        fb.evaluate(quantized, reference=other, tokenizer=tokenizer, **TEXT)


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("mse", {}),
        ("laaciq", {}),
        ("gptq", {}),
        ("fair", {"block_steps": 1, "model_steps": 1, "block_tokens": 512, "tokens": 512}),
    ],
)
def test_float32_weights_are_read_in_place_and_not_written(
    policy: str, options: dict[str, Any], reading_model: Callable[[str], Checkpoint]
) -> None:
    """Nothing is cast, so whatever wrote to a tensor that it read would write to the user's model."""
    source = reading_model("llama")
    model, tokenizer = t.AutoModelForCausalLM.from_pretrained(source.directory), source.tokenizer()
    before = state_of(model)
    policy_plan = fb.plan(model, tokenizer=tokenizer, policy=policy, bits=4, group=16, **(TEXT | options))
    quantized = fb.quantize(model, policy_plan, tokenizer=tokenizer, device="cpu")
    assert state_of(model) == before
    fb.audit(model, tokenizer, scheme=fb.Scheme(4, 16), **TEXT)
    assert state_of(model) == before
    assert (NO_THRESHOLDS.encode() in quantized.hf_quantizer.plan_bytes) == (policy == "laaciq")


def test_policies_are_compared_in_memory(tiny: Checkpoint, model: Any, tokenizer: Any) -> None:
    before = state_of(model)
    asked = {"policies": ["rtn"], "group": 64, "languages": LANGUAGES, "evaluation_tokens": 64, "device": "cpu"}
    in_memory, expected = fb.compare(model, tokenizer=tokenizer, **asked), fb.compare(tiny, **asked)
    assert state_of(model) == before
    np.testing.assert_array_equal(in_memory.entries[0].frame.values, expected.entries[0].frame.values)


def test_what_cannot_be_done_in_memory_is_refused(model: Any, tokenizer: Any, plan: fb.Plan) -> None:
    with pytest.raises(InputError, match="came without its tokenizer"):
        fb.audit(model, **TEXT)
    with pytest.raises(InputError, match="give out="):
        fb.quantize(model, plan, resume=True)  # type: ignore[call-overload]
    quantized = fb.quantize(model, plan, tokenizer=tokenizer, device="cpu")
    for verb in (lambda: fb.audit(quantized, tokenizer), lambda: fb.plan(quantized, policy="rtn")):
        with pytest.raises(InputError, match="already quantized"):
            verb()
    with torch.no_grad():
        model.transformer.h[0].mlp.dense_4h_to_h.weight.mul_(2)
    with pytest.raises(InputError, match="has other weights"):
        fb.quantize(model, plan, tokenizer=tokenizer)
