"""`fairbits mix` as a user runs it."""

import json
import os
import pty
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest
from rich.cells import cell_len

from fairbits.api.audit import audit
from fairbits.cli import main
from fairbits.text.included_texts import udhr
from fairbits.text.mix import Mix

COMMAND = Path(sys.executable).with_name("fairbits")
ENG, FRA, HEB = "eng_Latn", "fra_Latn", "heb_Hebr"
MODEL = "embedded:tiny"


@pytest.fixture
def call(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process, which has torch loaded already: exit code, stdout, stderr."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fairbits", "mix", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call


def test_default_mix_of_the_embedded_text(tmp_path, call) -> None:
    code, printed, errors = call(MODEL, "--languages", f"English,{FRA},he", "--out", tmp_path / "calib.jsonl")
    assert code == 0, errors
    mix = Mix.load(tmp_path / "calib.jsonl")
    assert len({part.tokens for part in mix.languages.values()}) == 1
    assert {sample.tokens for sample in mix.samples} == {512}
    assert "he → Hebrew, heb_Hebr" in errors
    assert FRA not in "".join(line for line in errors.splitlines() if "→" in line)
    assert "no budget given" in errors
    assert "cutting samples …" in errors  # one line, as there is no terminal
    assert max(cell_len(line) for line in printed.splitlines()) <= 80
    header, *rows, total = printed.splitlines()
    assert header.split() == ["language", "code", "samples", "tokens", "bytes/token", "share"]
    assert [row.split()[1] for row in rows] == [ENG, FRA, HEB]
    assert all(row.split()[-1] == "33.3%" for row in rows)
    assert total.split() == ["all", f"{len(mix.samples)}", f"{512 * len(mix.samples):,}"]


def test_text_of_the_user_with_weights_as_json(tmp_path, call) -> None:
    for lang, texts in udhr([ENG, FRA]).calibration.items():
        path = tmp_path / "text" / "calibration" / f"{lang[:2]}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(" ".join(text.split()) for text in texts))
    code, printed, errors = call(
        *(MODEL, "--text", tmp_path / "text", "--weights", "fr=2,en=1", "--tokens", "960", "--sequence", "64"),
        *("--seed", "7", "--out", tmp_path / "calib.jsonl", "--json"),
    )
    assert code == 0, errors
    manifest = json.loads(printed)
    assert manifest == json.loads((tmp_path / "calib.jsonl.manifest.json").read_text())
    assert {code: part["tokens"] for code, part in manifest["languages"].items()} == {ENG: 320, FRA: 640}
    assert (manifest["seed"], manifest["model"]) == (7, MODEL)


def test_too_little_text_ends_with_code_2_and_writes_nothing(tmp_path, call) -> None:
    code, printed, errors = call(
        MODEL, "--languages", "eng,fra", "--tokens", "1000000", "--out", tmp_path / "calib.jsonl"
    )
    assert (code, printed) == (2, "")
    assert "lacks eng_Latn" in errors
    assert not list(tmp_path.iterdir())


def test_a_path_that_cannot_be_written_is_refused_before_any_work(tmp_path, call) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, reason in {tmp_path / "pipe": "not a regular file", tmp_path / "x" / "y": "not a directory"}.items():
        code, printed, errors = call("no/such/model", "--out", path)
        assert (code, printed) == (2, "")
        assert reason in errors
    assert (tmp_path / "pipe").is_fifo()


def test_notes_on_the_model_are_in_the_manifest(tmp_path, call) -> None:
    code, printed, errors = call(
        *(f"{MODEL}?outliers=5:125", "--languages", "en,fr", "--sequence", "64"),
        *("--out", tmp_path / "calib.jsonl", "--json"),
    )
    assert code == 0, errors
    manifest = json.loads(printed)
    assert manifest["model"] == f"{MODEL}?outliers=5:125"
    assert manifest["notes"][0].startswith("outliers were given to blocks")
    assert manifest["notes"][0] in errors


@pytest.mark.long
def test_progress_is_shown_on_a_terminal(tmp_path) -> None:
    arguments = [str(COMMAND), "mix", MODEL, "--languages", "en,fr", "--out", str(tmp_path / "calib.jsonl")]
    shown = tmp_path / "shown"
    with shown.open("wb") as file:
        code = pty.spawn(arguments, lambda terminal: _copied(terminal, file))
    assert code == 0
    assert b"cutting samples" in shown.read_bytes()


def _copied(terminal: int, file: BinaryIO) -> bytes:
    data = os.read(terminal, 4096)
    file.write(data)
    return data


def test_a_few_languages_that_cover_an_audit(tmp_path, call, outer_blocks) -> None:
    checkpoint = outer_blocks(2)
    audit(checkpoint, languages=[ENG, FRA, HEB], tokens=64).save(tmp_path / "audit.json")
    arguments = (checkpoint.directory, "--cover", "2", "--audit", tmp_path / "audit.json", "--sequence", "64")
    code, _, errors = call(*arguments, "--out", tmp_path / "calib.jsonl")
    assert code == 0, errors
    mix = Mix.load(tmp_path / "calib.jsonl")
    assert len(mix.languages) == 2
    assert set(mix.languages) < {ENG, FRA, HEB}
    assert f"2 of 3 audited languages chosen: {', '.join(mix.languages)}; least protected: " in errors
    assert mix.notes[0].startswith("2 of 3 audited languages chosen")
    code, _, errors = call(*arguments, "--languages", f"{HEB},{ENG},deu", "--out", tmp_path / "calib.jsonl")
    assert code == 0, errors
    assert set(Mix.load(tmp_path / "calib.jsonl").languages) == {HEB, ENG}
    assert "not in the audit and were not considered: deu_Latn" in errors


def test_cover_and_audit_need_each_other(tmp_path, call) -> None:
    for option, other in ((("--cover", "2"), "--audit"), (("--audit", "audit.json"), "--cover")):
        code, _, errors = call(MODEL, "--languages", ENG, *option, "--out", tmp_path / "calib.jsonl")
        assert code == 2, errors
        assert f"{option[0]} is given without {other}" in errors
