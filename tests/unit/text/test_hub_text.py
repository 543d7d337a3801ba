"""Datasets are read with the package `datasets`, an extra; its tests run where it is installed."""

import importlib.util
import json
from pathlib import Path

import pytest

from fairbits.core.errors import InputError
from fairbits.text.hub_text import read_dataset

FRA, HEB = "fra_Latn", "heb_Hebr"
HERE = importlib.util.find_spec("datasets") is not None
installed = pytest.mark.skipif(not HERE, reason="the extra `datasets` is not installed")
pytestmark = pytest.mark.filterwarnings("default")  # those of datasets and pyarrow are not ours


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


def table(directory: Path, name: str, rows: list[dict[str, object]]) -> str:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(directory)


@pytest.fixture
def tagged(tmp_path) -> str:
    rows = [{"language": "fr", "content": f"phrase {i}"} for i in range(6)]
    rows += [{"language": "iw", "content": f"משפט {i}"} for i in range(4)] + [{"language": "xx-no", "content": "?"}]
    return table(tmp_path / "tagged", "train.jsonl", rows)


@installed
def test_one_table_with_a_language_column(tagged) -> None:
    corpus = read_dataset(tagged, ["French", "he"], text="content", lang="language")
    assert list(corpus.calibration) == [FRA, HEB]
    assert sorted(corpus.calibration[HEB] + corpus.evaluation[HEB]) == [f"משפט {i}" for i in range(4)]
    assert len(corpus.evaluation[FRA]) == 3
    assert corpus.notes == (
        f"{tagged}: 5 of 10 documents are for evaluation, chosen by hash with seed 0, the others for calibration",
    )


@installed
def test_limit_stops_the_stream_and_says_so(tagged) -> None:
    corpus = read_dataset(tagged, ["fra"], text="content", lang="language", limit=10, evaluation_share=0)
    assert corpus.calibration[FRA] == ("phrase 0", "phrase 1")
    assert corpus.notes == (f"{tagged} (fra_Latn): only the first 2 documents are kept (limit 10 bytes)",)


@installed
def test_a_configuration_per_language(tmp_path) -> None:
    directory = tmp_path / "configured"
    table(directory, "french.jsonl", [{"text": "un"}, {"text": "deux"}])
    table(directory, "hebrew.jsonl", [{"text": "אחת"}, {"text": "שתיים"}])
    configurations = [
        {"config_name": name, "data_files": f"{file}.jsonl"} for name, file in (("fr", "french"), ("v1.he", "hebrew"))
    ]
    (directory / "README.md").write_text(f"---\nconfigs: {json.dumps(configurations)}\n---\n")
    corpus = read_dataset(str(directory), {"fr": "fr", "heb": "v1.he"}, parallel=True)
    assert corpus.parallel
    assert sorted(corpus.calibration[FRA] + corpus.evaluation[FRA]) == ["deux", "un"]
    with pytest.raises(InputError, match="configuration he, split train, cannot be read"):
        read_dataset(str(directory), ["he"])


@installed
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"text": "body", "lang": "language"}, "has no column body; its columns are language, content"),
        ({"text": "content", "lang": "language", "split": "dev"}, "split dev, cannot be read"),
        ({"text": "content", "lang": "language", "languages": ["deu"]}, r"no row in .* \(deu_Latn\), split train"),
    ],
)
def test_what_a_dataset_lacks_is_named(tagged, options, reason) -> None:
    with pytest.raises(InputError, match=reason):
        read_dataset(tagged, options.pop("languages", ["fr"]), **options)


@installed
def test_columns_must_hold_strings(tmp_path) -> None:
    path = table(tmp_path / "numbers", "train.jsonl", [{"lang": "fr", "text": 3}])
    with pytest.raises(InputError, match=r"column text of .* has a int; it must have strings"):
        read_dataset(path, ["fr"], lang="lang")


@installed
def test_unknown_dataset_names_the_alternative(monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # retries without a connection take long
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"cannot be read .*give the text as files"):
        read_dataset("nobody/nothing-of-the-kind", ["fr"])


@pytest.mark.skipif(HERE, reason="the extra `datasets` is installed")
def test_missing_extra_names_the_command() -> None:
    with pytest.raises(InputError, match=r"pip install 'fairbits\[datasets\]'"):
        read_dataset("some/dataset", ["fr"])
