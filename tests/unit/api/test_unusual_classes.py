"""Unusual classes are read and written as they need it, or refused with one sentence; tests/architectures tries all."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file
from transformers import OlmoHybridForCausalLM

import fairbits as fb
from fairbits.core.errors import InputError
from fairbits.forward.statistics import collect_statistics
from fairbits.models.scales.scheme import Scheme
from fairbits.text.corpus import TextRequest
from fairbits.text.included_texts import udhr

LANGUAGES = ("eng", "heb")


@pytest.fixture(scope="module")
def small_models() -> Iterator[ModuleType]:
    """The small random models of every class."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2] / "architectures")
        yield importlib.import_module("small_models")
    sys.modules.pop("small_models", None)


@pytest.fixture
def saved(small_models, tmp_path):
    """Returns a function that writes a small model of a class, and its checkpoint."""

    def save(family: str, name: str) -> fb.Checkpoint:
        tokenizer = fb.Checkpoint("embedded:tiny").tokenizer()
        small_models.small_model(family, name, vocabulary=len(tokenizer)).save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        return fb.Checkpoint(tmp_path)

    return save


def test_tokens_before_texts(saved) -> None:
    with pytest.raises(InputError, match=r"FSMTFor\w+ cannot be mapped: its blocks see the tokens of all texts"):
        _ = saved("fsmt", "FSMTForConditionalGeneration").architecture


@pytest.mark.parametrize(
    ("family", "name", "reason"),
    [
        ("inkling_text", "InklingForCausalLM", r"InklingForCausalLM cannot be measured: .*--policy rtn needs no text"),
        ("reformer", "ReformerModelWithLMHead", r"received [\d,]+ positions for an input of [\d,]+ tokens"),
    ],
)
def test_what_cannot_be_measured(saved, family, name, reason) -> None:
    with pytest.raises(InputError, match=reason):
        fb.audit(saved(family, name), languages=LANGUAGES, tokens=64, scheme=Scheme(4, 16))


def test_a_map_that_chooses_positions_has_no_gradient_and_its_block_has_some(saved) -> None:
    checkpoint = saved("deepseek_v32", "DeepseekV32ForCausalLM")
    measured = collect_statistics(checkpoint, udhr(LANGUAGES), request=TextRequest(tokens=64, sequence=64))
    silent = {name for name, gradient in measured.gradients.items() if not gradient.any()}
    assert silent
    assert all(".indexer." in name for name in silent)
    assert len(silent) < len(measured.gradients) / 2


def test_what_transformers_joins_is_written_for_it_and_for_others(saved, tmp_path) -> None:
    checkpoint = saved("olmo_hybrid", "OlmoHybridForCausalLM")
    out = tmp_path / "packed"
    fb.quantize(checkpoint, fb.plan(checkpoint, policy="rtn", bits=4, group=16), out=out)
    usual, for_transformers = (_files(out / f"{name}.safetensors.index.json") for name in ("model", "transformers"))
    parts = [f"model.layers.0.linear_attn.{projection}_conv1d.weight" for projection in "qkv"]
    (joined,) = for_transformers.keys() - usual.keys()
    assert joined == "model.layers.0.linear_attn.conv1d.weight"
    assert usual.keys() - for_transformers.keys() == set(parts)
    assert {usual[part] for part in parts} == {"parts.safetensors"}
    tensors = load_file(out / "parts.safetensors")
    assert all(torch.equal(tensors[part], checkpoint.read(part)) for part in parts)
    assert torch.equal(fb.Checkpoint(out).read(joined), torch.cat([checkpoint.read(part) for part in parts]))
    ids = torch.arange(8)[None]
    model = OlmoHybridForCausalLM.from_pretrained(out, dtype=torch.float32)
    with torch.no_grad():
        theirs, ours = (network(input_ids=ids).logits for network in (model, fb.Checkpoint(out).load()))
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-4)


def test_what_transformers_joins_cannot_be_saved_from_memory(saved, tmp_path) -> None:
    checkpoint = saved("olmo_hybrid", "OlmoHybridForCausalLM")
    plan = fb.plan(checkpoint, policy="rtn", bits=4, group=16)
    model = OlmoHybridForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"q_conv1d.weight .* cannot be saved from memory: write it with out="):
        fb.quantize(model, plan, tokenizer=checkpoint.tokenizer())


def _files(index: Path) -> dict[str, str]:
    return dict(json.loads(index.read_text())["weight_map"])
