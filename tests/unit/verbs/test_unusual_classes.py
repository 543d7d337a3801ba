"""Classes that fairbits cannot measure or write are refused with one sentence; tests/architectures tries them all."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import fairbits as fb
from fairbits.errors import InputError
from fairbits.language import udhr
from fairbits.language.text_request import TextRequest
from fairbits.measure.passes.run import probe
from fairbits.model.scheme import Scheme

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
        ("reformer", "ReformerModelWithLMHead", r"sees \d+ positions of a text that has \d+"),
    ],
)
def test_what_cannot_be_measured(saved, family, name, reason) -> None:
    with pytest.raises(InputError, match=reason):
        fb.audit(saved(family, name), languages=LANGUAGES, tokens=64, scheme=Scheme(4, 16))


def test_a_map_that_chooses_positions_has_no_gradient_and_its_block_has_some(saved) -> None:
    checkpoint = saved("deepseek_v32", "DeepseekV32ForCausalLM")
    measured = probe(checkpoint, udhr(LANGUAGES), request=TextRequest(tokens=64, sequence=64))
    silent = {name for name, each in measured.gradients.items() if not each.any()}
    assert silent
    assert all(".indexer." in name for name in silent)
    assert len(silent) < len(measured.gradients) / 2


def test_what_transformers_joins_cannot_be_written(saved, tmp_path) -> None:
    checkpoint = saved("olmo_hybrid", "OlmoHybridForCausalLM")
    with pytest.raises(InputError, match=r"joins .*k_conv1d.weight and .*q_conv1d.weight into one tensor"):
        fb.quantize(checkpoint, fb.plan(checkpoint, policy="rtn", bits=4, group=16), out=tmp_path / "packed")
    assert not (tmp_path / "packed").exists()
