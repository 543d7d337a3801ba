"""The report of a run's directory, and of files that are named."""

import json
import shutil
from pathlib import Path

import pytest

import fairbits
from fairbits.errors import InputError
from fairbits.steps.report import report


def copied(run: Path, to: Path) -> Path:
    """Returns a copy of a run without the weights of its model."""
    return Path(shutil.copytree(run, to, ignore=shutil.ignore_patterns("*.safetensors", "tokenizer*")))


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    return copied(finished_run, tmp_path / "run")


def test_a_directory_and_its_files_give_the_same_numbers(finished_run: Path) -> None:
    whole = report(finished_run).content
    named = fairbits.report(
        finished_run / "scores.json",
        against=[finished_run / "baselines" / "gptq-mix-english.json", finished_run / "baselines" / "rtn.json"],
        audit=finished_run / "audit.json",
        plan=finished_run / "model" / "plan.json",
        sweep=finished_run / "sweep.json",
    ).content
    for part in ("languages", "blocks", "patterns", "causes", "checklist", "certificate", "allocation", "curves"):
        assert whole[part] == named[part]
    assert whole["headline"]["worst"] == named["headline"]["worst"]
    assert named["methods"][0]["name"] == "gptq"  # as the plan says


def test_the_same_run_gives_the_same_bytes(finished_run: Path) -> None:
    first, second = report(finished_run), report(finished_run)
    assert [first.written(form) for form in ("html", "md", "json")] == [
        second.written(form) for form in ("html", "md", "json")
    ]


def test_what_a_run_did_not_measure_is_left_out(run: Path) -> None:
    (run / "audit.json").unlink()
    (run / "sweep.json").unlink()
    (run / "model" / "plan.json").unlink()
    found = report(run).content
    assert [found[part] for part in ("blocks", "curves", "allocation", "prediction")] == [None] * 4
    assert set(found["provenance"]["files"]) == {"run", "scores", "scores of gptq:mix=english", "scores of rtn"}


@pytest.mark.parametrize(
    ("gone", "problem"),
    [
        ("run.json", "has no run.json; a report is made of a finished run"),
        ("scores.json", "has no scores.json"),
        ("baselines/rtn.json", "is no file of scores"),
    ],
)
def test_a_run_that_is_not_finished_is_refused(run: Path, gone: str, problem: str) -> None:
    (run / gone).unlink()
    with pytest.raises(InputError, match=problem):
        report(run)


@pytest.mark.parametrize("baselines", [3, {}, [3], [{"name": "rtn"}], [{"name": "rtn", "scores": "\x00"}], None])
def test_a_damaged_record_of_a_run_is_refused(run: Path, baselines: object) -> None:
    data = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(data | {"baselines": baselines}))
    with pytest.raises(InputError, match=r"baselines|no file of scores"):
        report(run)


def test_a_directory_is_given_alone(run: Path) -> None:
    with pytest.raises(InputError, match="give it alone"):
        report(run, audit=run / "audit.json")
