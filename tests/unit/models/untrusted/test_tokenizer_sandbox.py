"""Tokenizers that strangers made: hostile ones are refused, and this process lives; honest ones are tried once."""

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.embedded import ASSETS
from fairbits.models.untrusted import sandbox_child, tokenizer_sandbox
from fairbits.models.untrusted.tokenizer_sandbox import check_tokenizer

SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
PADDING = {"strategy": "BatchLongest", "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
TEMPLATE = {"Sequence": {"id": "A", "type_id": 0}}
BOMB = {"SpecialToken": {"id": "B", "type_id": 0}}
Content = dict[str, Any]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fairbits" / "opened"


@pytest.fixture
def model(tmp_path) -> Path:
    """The embedded model as one that came from elsewhere."""
    directory = tmp_path / "model"
    directory.mkdir()
    for path in (ASSETS / "tiny").iterdir():
        if path.name == "tokenizer.json":
            shutil.copy(path, directory)
        else:
            (directory / path.name).symlink_to(path)
    return directory


def changed(model: Path, /, **entries: Any) -> Path:
    file = model / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    vocab = entries.pop("vocab", {})
    content["model"]["vocab"].update(vocab)
    file.write_text(json.dumps({**content, **entries}), encoding="utf-8")
    return model


def charsmap(raw: bytes) -> Content:
    return {"normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(raw).decode()}}


HOSTILE: dict[str, tuple[Content, str]] = {
    "a huge id": ({"vocab": {"zzzz": 4_294_967_295}}, "its vocabulary has the id 4,294,967,295"),
    "an id to count to": ({"vocab": {"zzzz": 10**9}}, "its vocabulary has the id 1,000,000,000"),
    "backtracking": ({"pre_tokenizer": {**SPLIT, "pattern": {"Regex": "(a+)+$"}}}, "retry-limit-in-match"),
    "no expression": ({"pre_tokenizer": {**SPLIT, "pattern": {"Regex": "("}}}, "unmatched parenthesis"),
    "padding to a length": ({"padding": {**PADDING, "strategy": {"Fixed": 10**12}}}, "memory|capacity"),
    "padding to a multiple": ({"padding": {**PADDING, "pad_to_multiple_of": 10**12}}, "memory|capacity"),
    "growth": (
        {"normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}] * 12}},
        "bytes of memory",
    ),
    "many tokens of one": (
        {"post_processor": {"type": "TemplateProcessing", "single": [BOMB] * 1000 + [TEMPLATE], "pair": [TEMPLATE],
                            "special_tokens": {"B": {"id": "B", "ids": [1] * 99_999, "tokens": ["b"] * 99_999}}}},
        "bytes of memory",
    ),
    "an empty table": (charsmap(b"\0" * 4), "PanicException"),
    "a table beyond its end": (charsmap(b"\xfc\xff\xff\x7f" + b"\xff" * 1000), "PanicException|memory"),
    "no object": ({"model": []}, "Exception"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_tokenizer_is_refused_and_this_process_lives(model, cache, case, monkeypatch) -> None:
    monkeypatch.setattr(tokenizer_sandbox, "TOKENIZER_BYTES", 2**29)  # a bomb takes time to fill more
    entries, message = HOSTILE[case]
    with pytest.raises(InputError, match=message) as raised:
        Checkpoint(changed(model, **entries)).tokenizer()
    assert str(raised.value).startswith(f"{model / 'tokenizer.json'} is not usable (")
    assert "fetch the model again" in str(raised.value)
    assert not cache.exists()  # what failed is tried again


def test_a_limit_of_time(model, monkeypatch) -> None:
    monkeypatch.setattr(tokenizer_sandbox, "WALL_SECONDS", 0.01)
    with pytest.raises(InputError, match=r"parsing it took more than 0\.01 seconds"):
        Checkpoint(model).tokenizer()


def test_processor_time_that_runs_out(model, monkeypatch) -> None:
    monkeypatch.setattr(tokenizer_sandbox, "CPU_SECONDS", 1)
    longer = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
    with pytest.raises(InputError, match="parsing it took more than 1 seconds"):
        Checkpoint(changed(model, normalizer={"type": "Sequence", "normalizers": [longer] * 5})).tokenizer()


def test_an_honest_tokenizer_is_tried_once(model, cache, monkeypatch) -> None:
    assert Checkpoint(model).tokenizer()("a")["input_ids"]
    [verdict] = cache.iterdir()
    monkeypatch.setattr(tokenizer_sandbox, "run_child", pytest.fail)
    began = perf_counter()
    check_tokenizer(model)
    assert perf_counter() - began < 0.5
    Checkpoint(model).tokenizer()
    Checkpoint("embedded:tiny").tokenizer()  # ours, which nobody tries
    assert list(cache.iterdir()) == [verdict]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 12345678}', True),
        ('{"a"\n:\t 12345678}', True),
        ("[12345678]", True),
        ("[1,\r\n12345678]", True),
        ('{"a": 1234567, "b": [1, 2]}', False),
        ('{"12345678": 1234567, "a": "12345678"}', False),
    ],
)
def test_a_number_of_eight_digits_is_found_wherever_parts_end(tmp_path, monkeypatch, text, expected) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(text)
    for part in range(1, len(text) + 1):
        monkeypatch.setattr(sandbox_child, "PART", part)
        assert sandbox_child.has_number(str(file), 8) is expected
    assert sandbox_child.has_number(str(file), 7)


def test_the_child_imports_the_tokenizer_library_alone(model) -> None:
    line = "import sys, sandbox_child; sandbox_child.opener(sys.argv[1]); print(*sys.modules)"
    command = [sys.executable, "-c", line, str(model / "tokenizer.json")]
    place = {**os.environ, "PYTHONPATH": str(tokenizer_sandbox.CHILD.parent)}
    loaded = subprocess.run(command, env=place, capture_output=True, text=True, check=True).stdout.split()
    assert "tokenizers" in loaded
    assert not {"torch", "transformers", "numpy", "fairbits"} & set(loaded)


def test_another_content_is_tried_again(model, cache) -> None:
    check_tokenizer(model)
    check_tokenizer(changed(model, vocab={"zzzz": 20_000}))
    assert len(list(cache.iterdir())) == 2


def test_a_cache_that_cannot_be_written_changes_nothing(model, tmp_path) -> None:
    (tmp_path / "cache").write_text("no directory")
    assert Checkpoint(model).tokenizer()("a")["input_ids"]


def test_files_that_are_none(model) -> None:
    os.mkfifo(model / "chat_template.jinja")
    with pytest.raises(InputError, match=r"chat_template\.jinja is not a plain file"):
        check_tokenizer(model)
    (model / "chat_template.jinja").unlink()
    with (model / "vocab.txt").open("wb") as file:
        file.truncate(10**9)
    with pytest.raises(InputError, match=r"vocab\.txt has 1,000,000,000 bytes; it must have at most 100,000,000"):
        check_tokenizer(model)


@pytest.mark.long
def test_a_model_without_tokenizer_json_is_opened_by_transformers_in_the_child(model, cache) -> None:
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").unlink()
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    (model / "vocab.json").write_text(json.dumps({chr(code): code for code in range(33, 127)}))
    (model / "merges.txt").write_text("#version: 0.2\n")
    check_tokenizer(model)
    assert len(list(cache.iterdir())) == 1
    (model / "vocab.json").write_text('{"a": 4294967295}')
    with pytest.raises(InputError, match="is not usable"):
        check_tokenizer(model)
