"""Checkpoints that other tools wrote: their scores are those of transformers, or they are refused."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import transformers as t
from other_tools import FORMATS
from safetensors.torch import load_file, save_file

import fairbits
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
REFUSED = {"modelopt": "quantized by modelopt", "modelopt, beside": "holds hf_quant_config.json: ModelOpt"}
BLOCKWISE = ("W4A16", "W8A16")
"""What can be read block by block; other formats are loaded whole."""
SIXTEEN_BITS = ("NVFP4", "NVFP4A16", "MXFP4", "MXFP4A16", "MXFP6A16", "MXFP8", "MXFP8A16", "fp8")
"""What transformers unpacks to bfloat16, whatever type is asked for: it can only compute in that."""


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


@torch.no_grad()
def divergence(reference: ReferenceModel, model: Checkpoint, quantized: Path, dtype: torch.dtype) -> float:
    """Returns the mean KL of two models that transformers alone loads and computes, in nats per token."""
    p, q = (t.AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval() for path in (model.directory, quantized))
    divergences = []
    for window in reference.text.windows:
        ids = torch.tensor([window.main.ids])
        asked = torch.tensor(window.main.labels) != NO_LABEL
        a, b = (network(input_ids=ids).logits[0][asked].float().log_softmax(-1) for network in (p, q))
        divergences.append((a.exp() * (a - b)).sum(1))
    return float(torch.cat(divergences).mean())


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in REFUSED])
def test_divergence_is_that_of_transformers(
    model: Checkpoint, reference: ReferenceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    FORMATS[name](model.directory, tmp_path / "written")
    exact = name not in SIXTEEN_BITS
    expected = divergence(reference, model, tmp_path / "written", torch.float32 if exact else torch.bfloat16)
    for large in (False, True):
        monkeypatch.setattr(features, "fits_whole", lambda *_, large=large: not large)
        checkpoint = Checkpoint(tmp_path / "written")
        sums = reference.compare(checkpoint)
        kl = sums.kl.sum() / sums.predicted.sum()
        assert kl == pytest.approx(expected, rel=1e-3 if exact else 0.05)
        assert any("in memory as a whole" in note for note in sums.notes) == (large and name not in BLOCKWISE)
        assert any("activations were not rounded" in note for note in checkpoint.notes) == (name == "fp8")


@pytest.mark.parametrize("name", REFUSED)
def test_what_transformers_would_load_without_scales_is_refused(model: Checkpoint, tmp_path: Path, name: str) -> None:
    FORMATS[name](model.directory, tmp_path / "written")
    with pytest.raises(InputError, match=REFUSED[name]):
        fairbits.evaluate(tmp_path / "written", reference=model, text=CORPUS)
    with pytest.raises(InputError, match=REFUSED[name]):
        Checkpoint(tmp_path / "written").load()


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
