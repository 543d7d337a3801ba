"""Every command of README and docs, run twice in one process: the second time gives what the first gave."""

import json
import re
import sys
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from test_docs import TEXTS, commands, words_of

from fairbits.cli import main
from fairbits.models import embedded

GREETING = {"eng": "the wind", "fra": "le vent", "heb": "הרוח", "swh": "upepo", "hin": "हवा", "jpn": "風"}
NOT_RUN = {
    "serve": "it does not end",
    "doctor": "it measures the machine",
    "--dry-run": "it measures the machine",
    "--ray": "a cluster",
    "--samples": "runs of lm-eval",
    "research": "hours",
    "whisper": "tests/unit/verbs/test_whisper.py",
    "xglm": "a model on the Hub",
    "OWNER/MODEL --languages": "a model on the Hub",
    "--repo": "a repository on the Hub",
    "Q4_K_M": "a file of llama.cpp",
    "--sequence 2048": "more text than there is",
    "--resume": "a draft that was interrupted",
    "?outliers=3": "a block that the small model has not",
}
"""What is in a command that is not run, and why."""
SMALLER = {"--tokens": "384", "--evaluation-tokens": "64", "--sequence": "32"}
BASELINES = ("baseline.json", "last-release.json")
"""Scores that gates compare with: those of the last evaluation, under other names."""
TIMES = re.compile(r"\d[\d.,]* (ms|s|min|h|MB|GB)\b|\d\d:\d\d")
VARYING = {"seconds", "date", "created", "took", "rates"}


def wanted() -> list[str]:
    """Returns the commands, those that write before those that read."""
    lines = dict.fromkeys(" ".join(map(_quoted, words_of(line))) for text in TEXTS.values() for line in commands(text))
    kept = [line for line in lines if not any(sign in line for sign in NOT_RUN)]
    order = ("audit", "plan", "quantize", "overlay", "evaluate", "mix", "imatrix", "run")
    ranked = sorted(kept, key=lambda line: order.index(line.split()[0]) if line.split()[0] in order else len(order))
    last = max(i for i, line in enumerate(ranked) if line.startswith("evaluate") and line.endswith("--out scores.json"))
    again = [ranked[last].replace("scores.json", name) for name in BASELINES]
    return [*ranked[: last + 1], *again, *ranked[last + 1 :]]


def _quoted(word: str) -> str:
    return f"'{word}'" if " " in word else word


def run_all(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Runs all commands in a directory; returns exit codes and what was printed, without times."""
    monkeypatch.chdir(place)
    results, refused = {}, {}
    for line in wanted():
        words = words_of(f"fairbits {line}")
        words = [
            {"MODEL": "./model", "$MODEL": "./model", "$LANGUAGES": "eng,fra,heb"}.get(word, word) for word in words
        ]
        words += [
            word for option, value in SMALLER.items() if option not in words for word in _taken(words[0], option, value)
        ]
        out = Path(words[words.index("--out") + 1]) if "--out" in words else None
        if words[0] in ("quantize", "run", "overlay", "tasks") and out is not None and out.exists():
            continue  # written by the same command on another page
        monkeypatch.setattr(sys, "argv", ["fairbits", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        if ended.value.code not in (0, 1, None):
            refused[line] = printed.err
        shown = "" if words[0] == "plan" else TIMES.sub("·", printed.out).replace(str(place), "")  # what it will take
        results[line] = ended.value.code, shown
    assert not refused
    return results


def _taken(verb: str, option: str, value: str) -> list[str]:
    from test_docs import GROUP

    flags = {flag for parameter in GROUP.commands[verb].params for flag in parameter.opts}
    return [option, value] if option in flags else []


def content_of(file: Path, place: Path) -> Any:
    """Returns what a file says, without times and places."""
    if file.suffix != ".json":
        data = file.read_bytes().replace(str(place).encode(), b"")
        return TIMES.sub("·", data.decode("utf-8", "surrogateescape")) if file.suffix in (".html", ".md") else data
    return _lasting(json.loads(file.read_text().replace(str(place), "")))


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _lasting(entry) for name, entry in value.items() if name not in VARYING}
    return [_lasting(entry) for entry in value] if isinstance(value, list) else value


def test_the_second_time_is_like_the_first(
    reading_model: Any,
    outer_blocks: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(embedded, "ASSETS", outer_blocks(2).directory.parent)
    places = [tmp_path / name for name in ("first", "other")]
    for place in places:
        copytree(reading_model("wide_llama").directory, place / "model")
        (place / "texts").mkdir()
        for code, words in GREETING.items():
            lines = [f"{i}: {words} {words * (i % 3)} {i * i}." for i in range(40)]
            (place / "texts" / f"{code}.txt").write_text("\n".join(lines), "utf-8")
    first, second = (run_all(place, monkeypatch, capsys) for place in places)
    assert first == second
    files = [sorted(file.relative_to(place) for file in place.rglob("*") if file.is_file()) for place in places]
    assert files[0] == files[1]
    for file in files[0]:
        assert content_of(places[0] / file, places[0]) == content_of(places[1] / file, places[1]), file
