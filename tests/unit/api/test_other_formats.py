"""Checkpoints that other tools wrote: their scores are those of independent code, whole and block by block."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import independent
import pytest
import torch
from other_tools import FORMATS
from safetensors.torch import load_file, save_file

import fairbits
from fairbits.api.dry_run import estimate_evaluate
from fairbits.core.errors import InputError
from fairbits.evaluation import hidden_states as features
from fairbits.evaluation.reference import ReferenceModel
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import NO_LABEL
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import Corpus, TextRequest

ENG = [f"On day {i} the wind came from the north{' and brought rain' * (i % 3)}." for i in range(2)]
HEB = [f"ביום {i} באה הרוח מצפון{' והביאה גשם' * (i % 3)}." for i in range(2)]
CORPUS = Corpus("weather", {}, {"eng": ENG, "heb": HEB}, parallel=True)
REFERENCES = {"FP8_DYNAMIC": "compressed-tensors", "modelopt, beside": "modelopt", "fp8": "fp8"}
"""Formats that are tried as references too, and what the note on them names."""


@pytest.fixture(scope="module")
def model(reading_model: Callable[[str], Checkpoint]) -> Checkpoint:
    """Returns a model in bfloat16 whose maps have whole blocks of 128."""
    return reading_model("wide_llama")


@pytest.fixture(scope="module")
def reference(model: Checkpoint) -> Iterator[ReferenceModel]:
    """Returns the answers of the model."""
    text = tokenize_corpus(model, CORPUS, request=TextRequest("evaluation"), least=1)
    with ReferenceModel.on_text(model, text) as reference:
        yield reference


@pytest.fixture(scope="module")
def windows(reference: ReferenceModel) -> list[SimpleNamespace]:
    """Returns the tokens of the text, and where one is predicted."""
    mains = [window.main for window in reference.text.windows]
    return [SimpleNamespace(ids=main.ids, asked=[label != NO_LABEL for label in main.labels]) for main in mains]


@pytest.fixture(scope="module")
def plain(model: Checkpoint) -> torch.nn.Module:
    """Returns the model as independent code loads it."""
    return independent.load(model.directory)


@pytest.fixture(scope="module")
def written(model: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the function that gives a checkpoint in a format, which is written once."""
    home = tmp_path_factory.mktemp("formats")

    def written(name: str) -> Path:
        if not (home / name).exists():
            FORMATS[name](model.directory, home / name)
        return home / name

    return written


@pytest.mark.parametrize("name", FORMATS)
def test_divergence_is_that_of_independent_code(
    reference: ReferenceModel,
    windows: list[SimpleNamespace],
    plain: torch.nn.Module,
    written: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    expected = independent.divergence(windows, plain, independent.load(written(name)))
    for whole in (True, False):
        monkeypatch.setattr(features, "fits_whole", lambda *_, whole=whole: whole)
        sums = reference.compare(Checkpoint(written(name)))
        assert sums.kl.sum() / sums.predicted.sum() == pytest.approx(expected, rel=1e-3)
        assert not any("in memory as a whole" in note for note in sums.notes)


@pytest.mark.parametrize("name", REFERENCES)
def test_a_quantized_reference_is_noted(
    windows: list[SimpleNamespace], written: Callable[[str], Path], name: str
) -> None:
    other = written("W8A16")
    scores = fairbits.evaluate(other, reference=written(name), text=CORPUS)
    expected = independent.divergence(windows, *map(independent.load, (written(name), other)))
    assert scores.documents.kl.sum() / scores.documents.tokens.sum() == pytest.approx(expected, rel=1e-3)
    assert f"reference: the reference is itself quantized ({REFERENCES[name]})" in scores.notes


def test_a_quantized_reference_is_estimated(written: Callable[[str], Path]) -> None:
    request = TextRequest("evaluation")
    estimate = estimate_evaluate(
        Checkpoint(written("FP8_DYNAMIC")), device="cpu", languages=None, text=CORPUS, request=request
    )
    assert estimate.seconds > 0


def test_an_unused_tensor_is_refused(model: Checkpoint, tmp_path: Path) -> None:
    shutil.copytree(model.directory, tmp_path / "changed")
    tensors = load_file(tmp_path / "changed/model.safetensors")
    scale = {"model.layers.0.mlp.up_proj.weight_scale": torch.ones(1)}
    save_file(tensors | scale, tmp_path / "changed/model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"holds .*up_proj\.weight_scale.*does not have"):
        fairbits.evaluate(tmp_path / "changed", reference=model, text=CORPUS)


def test_one_byte_without_a_scheme_is_refused(model: Checkpoint, tmp_path: Path) -> None:
    directory = tmp_path / "written"
    FORMATS["FP8_DYNAMIC"](model.directory, directory)
    config = json.loads((directory / "config.json").read_text())
    del config["quantization_config"]
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"stored as torch\.float8_e4m3fn, and config\.json has no quantization_conf"):
        fairbits.evaluate(directory, reference=model, text=CORPUS)
