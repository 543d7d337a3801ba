"""A model that was quantized in memory is saved packed, with exactly its weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t

import fairbits as fb
from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.loaded_checkpoint import _codes

IDS = torch.arange(4, 20)[None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_codes_are_found_again(dtype: torch.dtype, bits: int) -> None:
    random = torch.Generator().manual_seed(bits)
    codes = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (64, 32), generator=random).to(torch.int8)
    scales = (torch.randn(64, 2, generator=random) * 0.01).to(dtype)  # of either sign
    scales[0] = 0
    W = (codes.reshape(64, 2, 16).to(dtype) * scales[:, :, None]).reshape(64, 32)
    found = _codes("w", W, scales, bits=bits)
    assert torch.equal(found.codes[1:], codes[1:])
    assert torch.equal(found.dequantized, W)
    W[3, 5] += 0.4 * scales[3, 0]
    with pytest.raises(InputError, match="has changed since"):
        _codes("w", W, scales, bits=bits)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"bits": 4, "group": 16}),
        ("gemma3", {"bits": 4, "group": "channel", "embeddings": 8}),  # the head is tied
        ("qwen2", {"bits": 8, "group": "channel", "grid": "signed"}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_saved_and_loaded_again(
    family: str, options: dict[str, Any], dtype: torch.dtype, reading_model: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    model = t.AutoModelForCausalLM.from_pretrained(reading_model(family).directory, dtype=dtype)
    quantized = fb.quantize(model, fb.plan(model, policy="rtn", **options))
    quantized.save_pretrained(tmp_path / "saved")
    again = t.AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
    with torch.no_grad():
        assert torch.equal(again(IDS).logits, quantized(IDS).logits)
    assert fb.Checkpoint(tmp_path / "saved").size_bytes == quantized.hf_quantizer.size_bytes

    plain = quantized.dequantize()
    plain.save_pretrained(tmp_path / "plain")
    again = t.AutoModelForCausalLM.from_pretrained(tmp_path / "plain").eval()
    assert "quantization_config" not in again.config
    with torch.no_grad():
        assert torch.equal(again(IDS).logits, plain(IDS).logits)


def test_changed_weights_are_not_saved_as_if_they_were_not(
    reading_model: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    model = t.AutoModelForCausalLM.from_pretrained(reading_model("llama").directory)
    quantized = fb.quantize(model, fb.plan(model, policy="rtn", bits=4, group=16))
    with torch.no_grad():
        quantized.model.layers[0].mlp.up_proj.weight.add_(0.001)
    with pytest.raises(InputError, match=r"mlp\.up_proj\.weight has changed"):
        quantized.save_pretrained(tmp_path / "saved")
