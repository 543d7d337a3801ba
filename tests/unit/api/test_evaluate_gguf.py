"""A GGUF file as the quantized model: its own reference in full precision, with a tokenizer of its own."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from fairbits.api.compare import compare
from fairbits.api.evaluate import evaluate
from fairbits.api.make_plan import plan
from fairbits.api.quantize import quantize
from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import Corpus

CORPUS = Corpus(
    "weather",
    {},
    {
        "eng": [f"On day {i} the wind came from the north." for i in range(6)],
        "heb": [f"ביום {i} באה הרוח." for i in range(6)],
    },
)
TYPES = ("ALL_F32", "MOSTLY_Q4_0", "MOSTLY_Q8_0")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, write_gguf) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("gguf")
    paths = {name.partition("_")[2]: place / f"{name}.gguf" for name in TYPES}
    for name, path in zip(TYPES, paths.values(), strict=True):
        write_gguf(path, gguf.LlamaFileType[name])
    return paths


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def edited(files: dict[str, Path], tmp_path: Path) -> Callable[..., Path]:
    """Returns the function that gives the reference as a directory whose tokenizer is changed."""

    def edited(file: str, change: Callable[[dict], object]) -> Path:
        directory = tmp_path / "reference"
        shutil.copytree(Checkpoint(files["F32"]).directory, directory)
        content = json.loads((directory / file).read_text("utf-8"))
        change(content)
        (directory / file).write_text(json.dumps(content), "utf-8")
        return directory

    return edited


def test_more_bits_hurt_less_and_sizes_are_those_of_the_files(files: dict[str, Path]) -> None:
    four, eight = (evaluate(files[name], reference=files["F32"], text=CORPUS, tokens=64) for name in ("Q4_0", "Q8_0"))
    assert 0 < eight.documents.kl.sum() < four.documents.kl.sum() / 20
    assert four.quantized.size_bytes == files["Q4_0"].stat().st_size < four.reference.size_bytes
    assert "quantized: Q4_0, from a GGUF file, dequantized to float32" in four.notes
    assert "reference: read from a GGUF file (F32)" in four.notes


def test_the_text_is_read_with_the_tokenizer_and_start_of_the_reference(files: dict[str, Path], edited) -> None:
    plain = evaluate(files["Q8_0"], reference=files["F32"], text=CORPUS, tokens=64)
    without = edited("tokenizer_config.json", lambda config: config.update(bos_token=None, add_bos_token=False))
    assert Checkpoint(without).tokenizer().bos_token_id is None
    other = evaluate(files["Q8_0"], reference=without, text=CORPUS, tokens=64)
    assert plain.documents.tokens.sum() == other.documents.tokens.sum() + len(other.documents.lang)


def test_another_vocabulary_is_refused(files: dict[str, Path], edited) -> None:
    def swap(tokenizer: dict) -> None:
        vocabulary = tokenizer["model"]["vocab"]
        if isinstance(vocabulary, list):
            vocabulary[100], vocabulary[101] = vocabulary[101], vocabulary[100]
        else:
            names = {number: name for name, number in vocabulary.items()}
            vocabulary[names[100]], vocabulary[names[101]] = 101, 100

    with pytest.raises(
        InputError, match=r"token 10[01] is '<0x6[12]>' in .* both models must have the same vocabulary"
    ):
        evaluate(files["Q8_0"], reference=edited("tokenizer.json", swap), text=CORPUS, tokens=64)


def test_what_is_not_quantized_is_written_in_bfloat16(files: dict[str, Path], tmp_path: Path) -> None:
    source = Checkpoint(files["Q8_0"])
    result = quantize(source, plan(source, policy="rtn", bits=4, group=32), out=tmp_path / "out")
    written = Checkpoint(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))["dtype"] == "bfloat16"
    assert written.size_bytes == result.size_bytes
    for name in source.tensors.keys() & written.tensors.keys():
        assert torch.equal(written.read(name), source.read(name).bfloat16()), name
    packed = [name for name in written.tensors if name.endswith("_scale")]
    assert len(packed) == len(result.schemes)
    assert {written.tensors[name].dtype for name in packed} == {torch.bfloat16}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.dtype == torch.bfloat16
    assert loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()
    in_memory = quantize(source, plan(source, policy="rtn", bits=4, group=32))
    ids = torch.arange(3, 19)[None]
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, in_memory(ids).logits)
    in_memory.save_pretrained(tmp_path / "saved")
    assert Checkpoint(tmp_path / "saved").size_bytes == result.size_bytes


def test_a_trial_in_memory_measures_what_would_be_written(files: dict[str, Path], tmp_path: Path) -> None:
    source = Checkpoint(files["Q8_0"])
    settings = {"group": 32}
    quantize(source, plan(source, policy="rtn", bits=4, **settings), out=tmp_path / "out")
    (trial,) = compare(source, policies=["rtn"], text=CORPUS, evaluation_tokens=64, **settings).entries
    scores = evaluate(tmp_path / "out", reference=source, text=CORPUS, tokens=64)
    assert np.allclose(trial.frame.values, scores.frame("bits_per_byte").values, rtol=1e-6, atol=0)
    assert trial.size_bytes == scores.quantized.size_bytes


def test_a_result_larger_than_the_model_says_why(files: dict[str, Path]) -> None:
    def notes(**settings: object) -> str:
        return " ".join(plan(files["Q4_0"], policy="rtn", group=32, **settings).notes)

    assert "not quantized are written in bfloat16" in notes(bits=4)
    why = "larger than the model, 0.058 MB: the embedding, 0.033 MB, is not quantized: use --embeddings 8"
    assert why in notes(bits=8)
    assert "larger than the model" not in notes(bits=2, embeddings=8)


def test_a_model_in_float32_is_written_in_float32_and_that_is_said(files: dict[str, Path], tmp_path: Path) -> None:
    directory = Checkpoint(files["F32"]).directory
    result = quantize(directory, plan(directory, policy="rtn", bits=4, group=32), out=tmp_path / "out")
    (note,) = result.notes
    assert note.startswith("0.068 MB of 0.1 MB are tensors that are not quantized, in float32 as the model stores them")
    assert "dtype='bfloat16'" in note
    assert Checkpoint(tmp_path / "out").tensors["model.embed_tokens.weight"].dtype == torch.float32
