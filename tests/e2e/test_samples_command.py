"""`fairbits gate --samples` and `fairbits tasks` as a user runs them; lm-eval 0.4.13 wrote the samples."""

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.cells import cell_len

from fairbits.evaluation.lm_eval.paired_samples import pair_samples
from fairbits.evaluation.lm_eval.sample_files import find_run


@pytest.fixture
def runs():
    """Returns the directories of two recorded runs: the embedded model, and the same in 2 bits; see their README."""
    return DATA / "before", DATA / "after"


DATA = Path(__file__).parents[1] / "data/lm_eval"
CLOZE, BPB = ("--tasks", "*_cloze_*"), ("--tasks", "*_bpb_*")


def test_recorded_scores_are_read_as_lm_eval_reported_them(runs) -> None:
    for kind, metric in (("bpb", "bits_per_byte"), ("cloze", "acc")):
        paired = pair_samples(*runs, tasks=f"*_{kind}_*")
        assert paired.notes == ()
        for side, run in enumerate(map(find_run, runs)):
            for code, scores in paired.scores.items():
                task = f"fairbits_{kind}_{code}"
                (reported,) = (
                    metrics
                    for path in run.directory.glob("results_*.json")
                    if (metrics := json.loads(path.read_text())["results"].get(task))
                )
                assert scores[side] == pytest.approx(reported[f"{metric},none"], rel=1e-9)


@pytest.mark.parametrize("tasks", [CLOZE, BPB])
def test_a_table_of_80_columns(runs, command, tasks) -> None:
    code, printed, errors = command("gate", "--samples", *runs, *tasks)
    assert (code, errors) == (1 if tasks == BPB else 0, "")
    assert max(map(cell_len, printed.splitlines()[:-1])) <= 80
    assert "heb_Hebr" in printed
    assert "if nothing had changed" in " ".join(printed.split())


def test_limits_json_and_junit(runs, command, tmp_path) -> None:
    file = tmp_path / "gate.xml"
    code, printed, errors = command("gate", "--samples", *runs, *CLOZE, "--max-worst", "0.9", "--junit", file, "--json")
    data = json.loads(printed)
    assert (code, errors, data["passed"], data["metric"]) == (0, "", True, "acc")
    assert {row["items"] for row in data["languages"]} == {8}
    assert ElementTree.parse(file).getroot().get("failures") == "0"
    code, printed, _ = command("gate", "--samples", *runs, *CLOZE, "--max-worst", "0.001", "--junit", file)
    assert code == 1
    assert "items per language would decide" in printed
    assert ElementTree.parse(file).getroot().get("failures") == "1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gate", "--samples", "none", "none"), "none is not a directory"),
        (("gate", "--samples", ".", "."), "has no file samples_TASK_DATE.jsonl"),
        (("gate", "scores.json", "--samples", ".", "."), "SCORES.json cannot be given with --samples"),
        (("gate", "--samples", ".", ".", "--against", "b.json"), "--against cannot be given with --samples"),
        (("gate", "--samples", ".", ".", "--measure", "loss"), "--measure cannot be given with --samples"),
        (("gate", "s.json", "--max-worst", "1", "--metric", "acc"), "--metric needs --samples BEFORE AFTER"),
        (("gate", "--max-worst", "1"), "SCORES.json is missing"),
        (("gate", "--samples", ".", ".", "--language-of", "xnli"), "--language-of is 'xnli'; it must be a task and"),
        (("gate", "--samples", ".", ".", "--language-of", "a=de", "--language-of", "a=fr"), "gives a two languages"),
        (("tasks", "--out", "tasks"), "there is no text to read"),
        (("tasks", "--out", "tasks", "--languages", "eng", "--kinds", "bits"), "kind is 'bits'"),
    ],
)
def test_bad_input_ends_with_2_and_one_line(command, tmp_path, monkeypatch, arguments, message) -> None:
    monkeypatch.chdir(tmp_path)
    code, printed, errors = command(*arguments)
    assert (code, printed, errors.count("\n")) == (2, "", 1)
    assert message in errors
    assert not list(tmp_path.iterdir())


def test_damaged_samples_end_with_2(runs, command, tmp_path) -> None:
    shutil.copytree(runs[1], tmp_path / "after")
    file = next((tmp_path / "after").rglob("samples_fairbits_cloze_heb*"))
    whole = file.read_bytes()
    for content, message in (
        (whole[:-200], "line 8 (the file ends in the middle of it) is not valid JSON"),
        (whole + whole.splitlines(keepends=True)[0], "line 9: document 0 occurs twice"),
        (whole.replace("״".encode(), b"\xff").replace(b"\xd7\x94", b"\xff", 1), "line 1 is not valid JSON"),
        (b"".join(whole.splitlines(keepends=True)[:7]), "has 8 items before and 7 items after"),
        (whole.replace(b'"acc": 1.0}', b'"acc": NaN}', 1), " is nan; it must be "),
    ):
        file.write_bytes(content)
        code, printed, errors = command("gate", "--samples", runs[0], tmp_path / "after", *CLOZE)
        assert (code, printed, errors.count("\n")) == (2, "", 1)
        assert message in errors


def test_tasks_of_a_text(command, tmp_path) -> None:
    code, printed, _ = command("tasks", "--languages", "eng,heb", "--items", "6", "--out", tmp_path / "tasks")
    assert code == 0
    assert "--tasks fairbits_bpb,fairbits_cloze --log_samples" in " ".join(printed.split())
    assert len(list((tmp_path / "tasks").iterdir())) == 12
    code, printed, _ = command("tasks", "--languages", "eng", "--kinds", "cloze", "--out", tmp_path / "more", "--json")
    assert json.loads(printed)["groups"] == {"cloze": "fairbits_cloze"}
