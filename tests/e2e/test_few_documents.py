"""`fairbits evaluate`, `gate`, `audit` and `report` on text in which a language has one document."""

import json
from pathlib import Path
from typing import Any

import pytest

from fairbits.auditing.audit_file import AUDIT
from fairbits.evaluation.scores import Scores
from fairbits.text.included_texts import udhr

TINY = "embedded:tiny"
DOCUMENTS = {"eng_Latn": 8, "heb_Hebr": 8, "yor_Latn": 1}
REASON = "1 document; an interval needs at least 5"
NOTE = f"no interval for yor_Latn: {REASON}; left out of worst, best, mean and gap"
SMALL = ("--tokens", "256", "--sequence", "64")


def loaded(text: str) -> Any:
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def words(text: str) -> str:
    return " ".join(text.split())


def written(directory: Path, documents: dict[str, int]) -> Path:
    """Returns a directory with this many documents of each language in both splits."""
    corpus = udhr(list(documents))
    for split in ("calibration", "evaluation"):
        (directory / split).mkdir(parents=True)
        for code, count in documents.items():
            lines = [" ".join(text.split()) for text in corpus.split(split)[code][:count]]
            (directory / split / f"{code}.txt").write_text("\n".join(lines), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("text") / "own", DOCUMENTS)


@pytest.fixture
def scores(command, text, tmp_path) -> Path:
    """The scores of a model that was quantized here; what is printed has the language and the reason."""
    options = ("--policy", "rtn", "--bits", "3", "--group", "channel", "--out", tmp_path / "model")
    assert command("quantize", TINY, *options)[0] == 0
    out = tmp_path / "scores.json"
    code, printed, _ = command(
        "evaluate", tmp_path / "model", "--reference", TINY, "--text", text, *SMALL, "--out", out
    )
    assert code == 0
    (line,) = [row for row in printed.splitlines() if row.startswith("Yoruba")]
    assert "(–)" in line
    assert NOTE in words(printed)
    return out


def test_evaluate_gate_and_report(command, scores, tmp_path) -> None:
    frame = Scores.load(scores).frame()
    assert frame.without_interval == {"yor_Latn": REASON}
    assert frame.worst()[1].bounded
    code, printed, errors = command("gate", scores, "--max-worst", "10", "--max-gap", "10", "--max-mean", "10")
    assert code == 1
    assert printed.startswith("undecided: ")
    assert printed.count(f", but there is no interval for yor_Latn ({REASON})") == 3
    assert NOTE in words(errors)
    code, printed, _ = command("gate", scores, "--max-worst", "10", "--json")
    verdict = loaded(printed)
    assert (code, verdict["passed"], verdict["checks"][0]["outcome"]) == (1, False, "undecided")
    assert NOTE in verdict["notes"]
    code, printed, _ = command("gate", scores, "--max-worst", "0")
    assert (code, printed.partition(":")[0]) == (1, "fail")
    assert command("gate", scores, "--against", scores)[0] == 1
    assert command("gate", scores, "--against", scores, "--max-worse", "1")[0] == 1
    code, _, _ = command("report", scores, "--out", tmp_path / "report.html")
    assert code == 0
    assert NOTE in words((tmp_path / "report.html").read_text(encoding="utf-8"))


@pytest.mark.long
@pytest.mark.parametrize("documents", [DOCUMENTS, {"eng_Latn": 2, "yor_Latn": 1}, {"yor_Latn": 1}])
def test_audit(documents, command, tmp_path) -> None:
    directory, out = written(tmp_path / "text", documents), tmp_path / "audit.json"
    code, printed, _ = command("audit", TINY, "--text", directory, *SMALL, "--bits", "3", "--details", "--out", out)
    assert code == 0
    assert "nan" not in words(printed).split()
    assert any("yor_Latn" in line and "(–)" in line for line in printed.splitlines())
    assert REASON in words(printed)
    saved = AUDIT.read(out)
    assert not saved.predicted.nats_per_token["yor_Latn"].bounded
    assert not saved.languages["yor_Latn"].redundancy.loss.bounded
    assert saved.predicted.nats_per_token["yor_Latn"].value > 0
    assert any(REASON in note for note in saved.model.notes)
    if documents is DOCUMENTS:
        assert saved.predicted.nats_per_token["eng_Latn"].bounded
    loaded(out.read_text(encoding="utf-8"))
