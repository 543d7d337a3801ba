"""Models that cannot be packed: mT5 is written in whole bytes, GPT-2 is refused at once and compared in memory.

Other encoder-decoders are packed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from safetensors.torch import load_file

import fairbits as fb
from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint, UnpackedCheckpoint
from fairbits.models.streaming_model import StreamingModel

Reading = Callable[[str], Checkpoint]
IDS = torch.arange(5, 37)[None]
LANGUAGES = ("eng", "heb")
SHORT: dict[str, Any] = {"group": 16, "languages": LANGUAGES, "tokens": 96}


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    output: torch.Tensor = model(input_ids=IDS, decoder_input_ids=IDS, use_cache=False).logits
    return output


def test_mt5_in_whole_bytes_loads_with_the_computed_weights(reading_model: Reading, tmp_path: Path) -> None:
    mt5, out = reading_model("mt5"), tmp_path / "w8"
    plan = fb.plan(mt5, policy="gptq", bits=8, **SHORT)
    done = fb.quantize(mt5, plan, out=out)
    files, name = Checkpoint(out), "encoder.block.0.layer.0.SelfAttention.q.weight"
    assert files.files[name].dtype == torch.int8
    assert not any("_packed" in tensor_name for tensor_name in files.files)
    assert files.size_bytes == done.size_bytes
    assert files.config.quantization_config["format"] == "int-quantized"

    computed = fb.quantize(mt5, plan)
    theirs = t.MT5ForConditionalGeneration.from_pretrained(out, dtype=torch.float32).eval()
    torch.testing.assert_close(logits(theirs), logits(computed), rtol=0, atol=1e-5)
    streamed = StreamingModel(UnpackedCheckpoint(files))  # as evaluate reads a model that is too large
    streamed.load_all(copies=True)
    torch.testing.assert_close(logits(streamed.model), logits(computed), rtol=0, atol=1e-5)
    assert not torch.equal(logits(computed), logits(mt5.load()))

    computed.save_pretrained(tmp_path / "saved")
    saved = load_file(tmp_path / "saved/model.safetensors")
    for tensor_name in plan.schemes:
        assert torch.equal(saved[tensor_name], files.read(tensor_name))
    scores = fb.evaluate(out, reference=mt5, languages=LANGUAGES, tokens=96)
    assert scores.languages == ("eng_Latn", "heb_Hebr")


def test_other_encoder_decoders_are_packed(reading_model: Reading, tmp_path: Path) -> None:
    model, out = reading_model("m2m100"), tmp_path / "w4"
    plan = fb.plan(model, policy="gptq", bits=4, **SHORT)
    fb.quantize(model, plan, out=out)
    theirs = t.M2M100ForConditionalGeneration.from_pretrained(out, dtype=torch.float32).eval()
    torch.testing.assert_close(logits(theirs), logits(fb.quantize(model, plan)), rtol=0, atol=1e-5)
    assert all(f"{name}_packed" in Checkpoint(out).files for name in plan.schemes)
    scores = fb.evaluate(out, reference=model, languages=LANGUAGES, tokens=96)
    assert scores.languages == ("eng_Latn", "heb_Hebr")


@pytest.mark.parametrize(
    ("family", "reason"),
    [("gpt2", "no file can hold the quantized model"), ("mt5", "it loads whole bytes: use 8 bits")],
)
def test_what_no_file_can_hold_is_refused_before_weights_are_read(
    family: str, reason: str, reading_model: Reading, tmp_path: Path
) -> None:
    plan = fb.plan(reading_model(family), policy="rtn", bits=4, group=16)
    again = Checkpoint(reading_model(family).directory)
    for out in (tmp_path / "w4", None):
        with pytest.raises(InputError, match=reason) as refused:
            fb.quantize(again, plan, out=out)
        assert "in memory (fairbits compare, fairbits sweep)" in str(refused.value)
        assert "\n" not in str(refused.value)
    assert "fingerprint" not in vars(again)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("family", ["gpt2", "mt5"])
def test_what_no_file_can_hold_is_compared_in_memory(family: str, reading_model: Reading) -> None:
    comparison = fb.compare(reading_model(family), policies=["rtn", "gptq"], bits=[4], evaluation_tokens=96, **SHORT)
    assert [entry.policy for entry in comparison.entries] == ["rtn", "gptq"]
