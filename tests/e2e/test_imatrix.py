"""`fairbits imatrix` as a user runs it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fairbits.cli import main
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.imatrix_file import read_imatrix


@pytest.fixture
def call(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process: exit code, stdout, stderr."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fairbits", "imatrix", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call


def test_languages_are_measured_and_merged(tmp_path, call, two_block_embedded: Checkpoint) -> None:
    per_language, mix = tmp_path / "each", tmp_path / "mix.gguf"
    options = ("--languages", "eng,heb", "--tokens", "64")
    code, out, _ = call(two_block_embedded.directory, *options, "--out", mix, "--per-language", per_language)
    assert code == 0
    assert "importance of 8 layers" in out
    assert "Hebrew" in out
    assert sorted(path.name for path in per_language.iterdir()) == ["eng_Latn.gguf", "heb_Hebr.gguf"]
    merged = tmp_path / "merged.gguf"
    files = ("--merge", f"{per_language / 'eng_Latn.gguf'}=3", "--merge", per_language / "heb_Hebr.gguf")
    code, out, _ = call(*files, "--out", merged, "--json")
    assert code == 0
    assert json.loads(out)["languages"] == {"eng_Latn": 0.75, "heb_Hebr": 0.25}
    assert read_imatrix(merged).entries.keys() == read_imatrix(mix).entries.keys()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no model is given"),
        (("embedded:tiny", "--merge", "a.gguf", "--out", "b.gguf"), "--merge reads files, not a model"),
        (("--merge", "a.gguf"), "give --out"),
        (("--merge", "a.gguf=x", "--out", "b.gguf"), "a file and its weight"),
        (("--merge", "nowhere.gguf", "--out", "b.gguf"), "nowhere.gguf cannot be read"),
        (("embedded:tiny",), "no file to write is named"),
        (("embedded:tiny", "--out", "no/where.gguf"), "is not a directory"),
    ],
)
def test_bad_input_is_one_line(arguments, message, tmp_path, call, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
    assert list(tmp_path.iterdir()) == []
