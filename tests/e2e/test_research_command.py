"""`fairbits research` as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("fairbits")
SMALL = ("--languages", "eng,heb,swh", "--tokens", "192", "--evaluation-tokens", "192")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, "research", *arguments], capture_output=True, text=True)


def test_the_list_shows_every_experiment_with_what_it_found() -> None:
    done = run()
    assert done.returncode == 0
    assert "gateway-layers" in done.stdout
    assert "not run yet" not in done.stdout


def test_an_experiment_runs_twice_to_the_same_bytes(tmp_path: Path) -> None:
    first = run("bounds", *SMALL, "--out", tmp_path / "a.json")
    assert first.returncode == 0, first.stderr
    second = run("bounds", *SMALL, "--out", tmp_path / "b.json", "--json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    data = json.loads(second.stdout)
    assert data["schema"] == "fairbits.research/1"
    assert data["subject"]["languages"] == 3
    assert data["answer"] in first.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gateways",), "the experiment"),
        (("training-choices",), "training/arms.py"),
        (("bounds", "--models", "."), "training/arms.py"),
        (("training-data", "--shares", "eng=much"), "number per language"),
        (("training-data", "--shares", "equal"), "positive number per language"),
        (("training-data", "--languages", "eng,fra,heb,swh,ron"), "training share of ron_Latn"),
        (("bounds", "--out", "no/such/place.json"), "no directory"),
        (("bounds", "--markdown"), "takes no experiment"),
        (("bounds", "--languages", "eng"), "two or more"),
    ],
)
def test_bad_input_ends_with_code_2_and_one_line(arguments, said) -> None:
    done = run(*arguments)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
