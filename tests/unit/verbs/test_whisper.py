"""Whisper reads sound: its weights are screened, inspected and quantized without text, and text is refused."""

from pathlib import Path

import pytest
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

import fairbits as fb
from fairbits.errors import InputError
from fairbits.model.scheme import Scheme

GROUP = 16
SCHEME = Scheme(4, GROUP)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model of two blocks in its encoder and two in its decoder."""
    stack = {"layers": 2, "attention_heads": 2, "ffn_dim": 48}
    sizes = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in stack.items()}
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 1)
    config = WhisperConfig(d_model=32, vocab_size=96, num_mel_bins=8, max_source_positions=10, **sizes, **tokens)
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("whisper")
    WhisperForConditionalGeneration(config).save_pretrained(path)
    fb.Checkpoint("embedded:tiny").tokenizer().save_pretrained(path)
    return path


def test_both_stacks_are_mapped(whisper: Path) -> None:
    found = fb.Checkpoint(whisper).architecture
    assert found.reads == "input_features"
    assert [block.stack for block in found.blocks] == ["encoder", "encoder", "decoder", "decoder"]
    assert found.weights["model.decoder.layers.1.encoder_attn.k_proj.weight"].sees == "encoder_output"
    assert not found.weights["model.encoder.conv1.weight"].linear
    assert found.head is not None
    assert found.head.name == "model.decoder.embed_tokens.weight"


def test_it_is_quantized_without_text(whisper: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = fb.quantize(whisper, fb.plan(whisper, policy="rtn", bits=4, group=GROUP), out=out)
    assert sum(each.bits == 4 for each in done.layers) == 2 * 6 + 2 * 10
    inputs = {"input_features": torch.randn(1, 8, 20), "decoder_input_ids": torch.arange(5)[None]}
    before, ours, theirs = (
        fb.Checkpoint(whisper).load(),
        fb.Checkpoint(out).load(),
        WhisperForConditionalGeneration.from_pretrained(out, dtype=torch.float32).eval(),
    )
    with torch.no_grad():
        original, found, loaded = (model(**inputs).logits for model in (before, ours, theirs))
    torch.testing.assert_close(found, loaded, rtol=0, atol=1e-5)
    assert (original - found).abs().max() > 1e-3


def test_its_weights_are_screened(whisper: Path) -> None:
    (row,) = fb.screen([whisper]).rows
    assert row.problem is None


@pytest.mark.parametrize(
    "measure",
    [
        lambda model: fb.audit(model, languages=["eng"], scheme=SCHEME),
        lambda model: fb.plan(model, policy="gptq", bits=4, group=GROUP, languages=["eng"]),
        lambda model: fb.evaluate(model, reference=model, languages=["eng"]),
    ],
    ids=["audit", "plan", "evaluate"],
)
def test_what_reads_text_is_refused(whisper: Path, measure) -> None:
    with pytest.raises(InputError, match=r"reads input_features, and not text.*quantize with --policy rtn need none"):
        measure(whisper)
