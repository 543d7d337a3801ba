"""from_pretrained with a FairbitsConfig gives the weights of fairbits.quantize."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t

import fairbits as fb
from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint

TEXT = {"languages": ["eng", "swh"], "tokens": 64, "device": "cpu"}
IDS = torch.arange(4, 20)[None]


def loaded(source: Checkpoint, config: Any, **options: Any) -> Any:
    return t.AutoModelForCausalLM.from_pretrained(source.directory, quantization_config=config, **options)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {"policy": "gptq", "bits": 4, "group": 16, **TEXT}),
        ("gemma3", {"policy": "rtn", "bits": 8, "group": "channel", "embeddings": 8, "device": "cpu"}),
    ],
)
def test_weights_are_those_of_quantize(
    family: str, settings: dict[str, Any], reading_model: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    source = reading_model(family)
    quantized = loaded(source, fb.FairbitsConfig(**settings))
    fb.quantize(source, fb.plan(source, **settings), out=tmp_path / "written", device="cpu")
    quantized.save_pretrained(tmp_path / "saved")
    assert Checkpoint(tmp_path / "saved").fingerprint == Checkpoint(tmp_path / "written").fingerprint
    again = t.AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
    with torch.no_grad():
        assert torch.equal(quantized(IDS).logits, again(IDS).logits)
    assert quantized.generate(IDS, max_new_tokens=2, min_new_tokens=2, do_sample=False).shape == (1, 18)
    assert quantized.is_quantized
    assert not quantized.training


def test_a_plan_and_a_tokenizer_may_be_given(reading_model: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    source = reading_model("llama")
    plan = fb.plan(source, policy="gptq", bits=4, group=16, **TEXT)
    plan.save(tmp_path / "plan.json")
    config = fb.FairbitsConfig(plan=tmp_path / "plan.json", tokenizer=source.tokenizer(), device="cpu")
    quantized = loaded(source, config)
    expected = fb.quantize(source, plan, device="cpu")
    for name, weight in expected.state_dict().items():
        assert torch.equal(quantized.state_dict()[name], weight)
    with pytest.raises(InputError, match="has other weights"):
        loaded(source, config, dtype=torch.bfloat16)


def test_bad_settings_are_refused_before_anything_is_loaded(
    reading_model: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="gptq does not take widths"):
        fb.FairbitsConfig(bits=4, widths=3)
    with pytest.raises(InputError, match="give one of them"):
        fb.FairbitsConfig(bits=4, plan="plan.json")
    with pytest.raises(InputError, match="must be 'fairbits'"):
        fb.FairbitsConfig(quant_method="gptq")
    assert repr(fb.FairbitsConfig(4, ["eng"], group=64)) == (
        "FairbitsConfig(policy='gptq', bits=4, group=64, languages=['eng'])"
    )
    t.AutoModelForCausalLM.from_pretrained(reading_model("llama").directory).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"there is no tokenizer next to .* pass it"):
        loaded(Checkpoint(tmp_path), fb.FairbitsConfig(4, group=16, **TEXT))
