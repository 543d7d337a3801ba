"""A GGUF file as the quantized model: its own reference in full precision, with a tokenizer of its own."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from fairbits.api.evaluate import evaluate
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
