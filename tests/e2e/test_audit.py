"""`fairbits audit` as a user runs it, on a small random model with a real tokenizer."""

import errno
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.cells import cell_len
from safetensors.torch import load_file, save_file
from transformers import BloomConfig, BloomForCausalLM
from transformers.utils import logging

from fairbits.models.checkpoint import Checkpoint
from fairbits.text.included_texts import udhr

Call = Callable[..., tuple[int, str, str]]
FILE = "model.safetensors"
SMALL = ("--tokens", "64", "--group", "channel")
LANGUAGES = ("--languages", "eng,he,tha_Thai")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Sums of floats depend on how they are shared out; other tests keep their threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def bloom(tmp_path_factory) -> Path:
    """A BLOOM of five small blocks that speaks the embedded model's tokens."""
    directory = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = BloomConfig(vocab_size=16384, hidden_size=16, n_layer=5, n_head=2, initializer_range=0.2)
    model = BloomForCausalLM(config)
    save_file(
        {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}, directory / FILE
    )
    config.architectures = ["BloomForCausalLM"]
    config.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Checkpoint("embedded:tiny").directory / name, directory)
    return directory


@pytest.fixture
def model(bloom, tmp_path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(bloom, tmp_path / "model")


@pytest.fixture
def call(command) -> Call:
    """Returns a function that runs `fairbits audit` in this process."""
    return partial(command, "audit")


def loaded(text: str) -> Any:
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def refused(result: tuple[int, str, str]) -> str:
    """Returns the message of a command that ended as bad input does: code 2, no output, one line."""
    code, printed, errors = result
    assert (code, printed) == (2, "")
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    return errors


def text_of(directory: Path, **documents: list[str]) -> Path:
    directory.mkdir()
    for lang, texts in documents.items():
        (directory / f"{lang}.txt").write_text("\n".join(texts), encoding="utf-8")
    return directory


@pytest.fixture
def bars() -> Iterator[None]:
    """Bars of transformers are shown, as they are unless somebody turned them off."""
    shown = logging.is_progress_bar_enabled()
    logging.enable_progress_bar()
    yield
    if not shown:
        logging.disable_progress_bar()


@pytest.mark.usefixtures("bars")
def test_the_table_names_everyone_and_fits(call, bloom) -> None:
    code, printed, errors = call(bloom, *LANGUAGES, *SMALL, "--details")
    assert code == 0
    assert errors.splitlines() == [
        "eng → English, eng_Latn (ISO 639-3 code)",
        "he → Hebrew, heb_Hebr (BCP-47 code)",
    ]  # and no bar of transformers, which
    assert logging.is_progress_bar_enabled()  # shows again where the user calls it
    assert max(cell_len(line) for line in printed.splitlines()) <= 80
    rows = re.findall(r"^(English|Hebrew|Thai) +(\w{3}_\w{4}) ([\d.]+) \(", printed, flags=re.MULTILINE)
    assert {code for _, code, _ in rows} == {"eng_Latn", "heb_Hebr", "tha_Thai"}
    damage = [float(value) for _, _, value in rows]
    assert damage == sorted(damage, reverse=True)
    for title in (
        "Where the damage comes from",
        "What the research notes predict",
        "What is proven",
        "Notes",
        "Blocks",
    ):
        assert f"\n{title}\n" in printed


def test_the_same_input_gives_the_same_bytes_and_the_json_is_the_file(call, bloom, tmp_path) -> None:
    results = []
    for name in ("one", "two"):
        place = tmp_path / name
        place.mkdir()
        code, printed, errors = call(bloom, *LANGUAGES, *SMALL, "--seed", "3", "--out", place / "a.json", "--json")
        assert code == 0, errors
        assert loaded(printed) == loaded((place / "a.json").read_text(encoding="utf-8"))
        assert sorted(path.name for path in place.iterdir()) == ["a.json", "a.safetensors"]
        results.append([(place / file).read_bytes() for file in ("a.json", "a.safetensors")])
    assert results[0] == results[1]
    data = loaded(printed)
    assert data["schema"] == "fairbits.audit/1"
    assert data["model"]["seed"] == 3
    assert data["scheme"]["group"] is None
    assert {"token", "diagonal"} <= data["damage"].keys()


def test_json_without_a_file_and_a_scheme_of_choice(call, bloom) -> None:
    scheme = ("--bits", "3", "--group", "8", "--clip", "exact")
    code, printed, _ = call(bloom, "--languages", "eng", "--tokens", "32", *scheme, "--json")
    assert code == 0
    assert loaded(printed)["scheme"]["name"] == "W3 group 8 exact clip"


def test_text_of_the_user_needs_no_names(call, bloom, tmp_path) -> None:
    declared = udhr(["eng", "fra"]).calibration
    documents = {lang[:3]: [" ".join(document.split()) for document in texts] for lang, texts in declared.items()}
    text = text_of(tmp_path / "text", **documents)
    code, printed, errors = call(bloom, "--text", text, *SMALL)
    assert (code, errors) == (0, "")
    assert {"eng_Latn", "fra_Latn"} == set(re.findall(r"\b[a-z]{3}_[A-Z][a-z]{3}\b", printed))
    assert "calibration text of text: 2 languages, " in printed


def test_the_embedded_model_has_languages_of_its_own(call) -> None:
    assert "groups of 7 do not divide" in refused(call("embedded:tiny", "--tokens", "16", "--group", "7"))


def test_a_group_that_fits_is_chosen(call, bloom) -> None:
    advice = re.search(r"give --group (\w+)", refused(call(bloom, "--languages", "eng_Latn", "--group", "128")))[1]
    code, printed, errors = call(bloom, "--languages", "eng_Latn", "--tokens", "64", "--group", "auto")
    assert (code, errors) == (0, "")
    assert f"per {advice}" in printed or f"group {advice}" in printed


def test_other_models_need_names_or_text(call, bloom) -> None:
    assert "there is no text to read" in refused(call(bloom))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--languages", "eng_Latn,qqq"), "qqq"),
        (("--bits", "1"), "bits is 1"),
        (("--bits", "9"), "bits is 9"),
        (("--group", "7"), "groups of 7 do not divide"),
        (("--group", "128"), "groups of 128 do not divide"),
        (("--group", "wide"), "--group is 'wide'"),
        (("--group", "0"), "group is 0"),
        (("--clip", "some"), "clip is 'some'"),
        (("--tokens", "1"), "tokens is 1"),
        (("--sequence", "0"), "sequence is 0"),
        (("--seed", "-1"), "seed is -1"),
    ],
)
def test_values_that_cannot_be(options, message, call, bloom) -> None:
    arguments = dict([("--languages", "eng_Latn"), ("--group", "channel"), options])
    assert message in refused(call(bloom, *(word for pair in arguments.items() for word in pair)))


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ({"eng": []}, "no text in "),
        ({}, "holds no text in any language"),
        (None, "nowhere"),
    ],
)
def test_text_that_does_not_do(documents, message, call, bloom, tmp_path) -> None:
    text = tmp_path / "nowhere" if documents is None else text_of(tmp_path / "text", **documents)
    assert message in refused(call(bloom, "--text", text, *SMALL))


def test_a_file_that_cannot_be_written_is_refused_before_any_work(call, tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, reason in {tmp_path / "pipe": "not a regular file", tmp_path / "x" / "y": "not a directory"}.items():
        assert reason in refused(call("no/such/model", "--out", path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]


def test_a_full_disk_leaves_what_was_there(call, bloom, tmp_path, monkeypatch) -> None:
    class Full(io.BytesIO):
        def write(self, _data: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    opened = Path.open

    def opens(path: Path, *args: Any, **kwargs: Any) -> Any:
        file = opened(path, *args, **kwargs)
        if path.suffix != ".part":
            return file
        file.close()  # it is there, and empty
        return Full()

    target = tmp_path / "audit.json"
    target.write_text("before")
    monkeypatch.setattr(Path, "open", opens)
    message = refused(call(bloom, "--languages", "eng_Latn", *SMALL, "--out", target))
    assert "No space left on device" in message
    assert [entry.name for entry in tmp_path.iterdir()] == ["audit.json"]
    assert target.read_text() == "before"


def test_a_model_without_tokenizer(call, model) -> None:
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").unlink()
    assert "has no usable tokenizer" in refused(call(model, "--languages", "eng_Latn", *SMALL))


def test_weights_that_are_not_numbers(call, model) -> None:
    tensors = load_file(model / FILE)
    tensors["transformer.h.1.mlp.dense_h_to_4h.weight"][3, 4] = torch.nan
    save_file(tensors, model / FILE)
    assert "NaN" in refused(call(model, "--languages", "eng_Latn", *SMALL))


def test_a_truncated_file(call, model) -> None:
    raw = (model / FILE).read_bytes()
    (model / FILE).write_bytes(raw[:-1])
    assert "truncated" in refused(call(model, "--languages", "eng_Latn", *SMALL))
