"""`fairbits generate` as a user runs it."""

import io
import json
import sys
from pathlib import Path

import pytest

from fairbits.serve.overlays.adaptive_model import AdaptiveModel

ENGLISH, HEBREW, JAPANESE = "All human beings are", "כל בני האדם נולדו", "すべての人間は"


@pytest.fixture
def asked(adaptive: tuple[Path, Path]) -> tuple[str, ...]:
    return ("generate", str(adaptive[0]), "--overlays", str(adaptive[1]), "--max-tokens", "5")


def lines_on_stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_every_prompt_is_continued_and_its_overlay_is_named(command, asked, adaptive) -> None:
    code, printed, errors = command(*asked, ENGLISH, JAPANESE, "12")
    assert code == 0
    completions = AdaptiveModel(*adaptive).generate([ENGLISH, JAPANESE, "12"], max_new_tokens=5)
    assert printed == "".join(f"{completion.text}\n" for completion in completions)
    notes = errors.splitlines()
    assert [note.split(":")[0].split(", served by ")[1] for note in notes] == ["a", "b", "base"]
    assert notes[0].startswith("English (eng_Latn), detected (confidence ")
    assert notes[2].startswith("no language, undetectable, served by base: 5 tokens (length)")


def test_lines_of_stdin_as_json(command, asked, monkeypatch) -> None:
    lines_on_stdin(monkeypatch, f"{ENGLISH}\r\n\n{HEBREW}\n".encode())
    code, printed, errors = command(*asked, "--json")
    assert (code, errors) == (0, "")
    english, hebrew = json.loads(printed)
    assert (english["prompt"], hebrew["prompt"]) == (ENGLISH, HEBREW)
    assert (english["language"], hebrew["language"]) == ("eng_Latn", "heb_Hebr")
    assert {completion["overlay"] for completion in (english, hebrew)} == {"a"}
    assert english["completion_tokens"] == 5
    assert 0.5 < english["confidence"] <= 1


def test_a_language_by_name_and_a_seed(command, asked) -> None:
    drawn = (*asked, ENGLISH, "--language", "ja", "--temperature", "0.9", "--top-p", "0.95", "--json")
    first, again, other = (json.loads(command(*drawn, "--seed", seed)[1])[0] for seed in ("1", "1", "2"))
    assert (first["overlay"], first["reason"], first["confidence"]) == ("b", "asked", None)
    assert first == again
    assert first["text"] != other["text"]


def test_what_is_wrong_ends_with_2(command, asked, adaptive, monkeypatch, tmp_path) -> None:
    wrong = {
        ("--language", "deu", ENGLISH): "must be one that is served",
        ("--temperature", "-1", ENGLISH): "--temperature is -1",
        ("--top-p", "0", ENGLISH): "--top-p is 0",
        ("--max-tokens", "0", ENGLISH): "--max-tokens is 0",
        ("--overlays", str(tmp_path), ENGLISH): "has no overlays.json",
        ("--confidence", "3", ENGLISH): "confidence is 3",
        ("",): "every prompt must be valid Unicode text, not empty",
    }
    for options, message in wrong.items():
        code, printed, errors = command(*asked, *options)
        assert (code, printed, errors.count("\n")) == (2, "", 1)
        assert message in errors
    for content, message in ((b"\n \n", "there is no prompt"), (b"a\xff", "stdin is not UTF-8")):
        lines_on_stdin(monkeypatch, content)
        code, printed, errors = command(*asked)
        assert (code, printed) == (2, "")
        assert message in errors
    assert command("generate", "embedded:tiny", ENGLISH, "--overlays", adaptive[1])[0] == 2  # another base
