"""`fairbits research` as a user runs it."""

import json
from pathlib import Path

import pytest

SMALL = ("--languages", "eng,heb", "--tokens", "64", "--evaluation-tokens", "64")


def test_the_list_shows_every_experiment_with_what_it_found(command) -> None:
    code, shown, _ = command("research")
    assert code == 0
    assert "gateway-layers" in shown
    assert "not run yet" not in shown


@pytest.mark.long
@pytest.mark.usefixtures("two_block_embedded")
def test_an_experiment_runs_twice_to_the_same_bytes(command, tmp_path: Path) -> None:
    code, shown, errors = command("research", "bounds", *SMALL, "--out", tmp_path / "a.json")
    assert code == 0, errors
    code, printed, _ = command("research", "bounds", *SMALL, "--out", tmp_path / "b.json", "--json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    data = json.loads(printed)
    assert data["schema"] == "fairbits.research/1"
    assert data["subject"]["languages"] == 2
    assert data["answer"] in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gateways",), "the experiment"),
        (("training-choices",), "training/arms.py"),
        (("bounds", "--models", "."), "training/arms.py"),
        (("training-data", "--shares", "eng=much"), "number per language"),
        (("training-data", "--shares", "equal"), "positive number per language"),
        (("training-data", "--languages", "eng,fra,heb,swh,ron"), "training share of ron_Latn"),
        (("bounds", "--out", "no/such/place.json"), "not a directory"),
        (("bounds", "--markdown"), "takes no experiment"),
        (("bounds", "--languages", "eng"), "two or more"),
        (("correlations", "--languages", "eng,fra,heb"), "name at least 4"),
        (("correlations", "--outlier-layers", "five"), "whole numbers with commas"),
        (("correlations", "--outlier-kappa", "500"), "give a lower cut-off"),
        (("correlations", "--outlier-layers", "12"), "12"),
        (("bounds", "--insert-outliers", "3=125"), "BLOCK:KAPPA"),
        (("null-controls", "--insert-outliers", "2:3"), "outliers cannot be inserted"),
    ],
)
def test_bad_input_ends_with_code_2_and_one_line(command, arguments, message) -> None:
    code, shown, errors = command("research", *arguments)
    assert (code, shown) == (2, ""), errors
    assert message in " ".join(errors.split())
    assert "Traceback" not in errors
