"""`--dry-run` and the estimate of `plan` as a user sees them."""

import json

import pytest
from rich.cells import cell_len

from fairbits.api import fit, measured_rates

SMALL = ("--languages", "eng,heb", "--tokens", "64", "--sequence", "64", "--group", "16")


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(measured_rates, "SECONDS", 0.001)


@pytest.fixture(scope="module")
def model(reading_model):
    return reading_model("llama").directory


def test_a_dry_run_prints_a_table_and_writes_nothing(command, model, tmp_path) -> None:
    out = tmp_path / "run"
    code, printed, errors = command("run", model, *SMALL, "--evaluation-tokens", "128", "--out", out, "--dry-run")
    assert code == 0, errors
    assert max(map(cell_len, printed.splitlines())) <= 80
    for words in ("estimate on cpu", "stage", "time", "RAM", "disk", "quantize: gptq", "report", "in all", "free"):
        assert words in printed
    assert "GPU memory" not in printed
    assert list(tmp_path.iterdir()) == []


def test_a_release_says_what_its_evaluation_takes(command, model, tmp_path) -> None:
    named = (
        "release",
        model,
        "--reference",
        model,
        *SMALL[:2],
        "--tokens",
        "64",
        "--out",
        tmp_path / "new",
        "--dry-run",
    )
    code, printed, errors = command(*named)
    assert code == 0, errors
    assert "evaluate the quantized model" in printed
    assert "without the text that the models write" in errors
    assert list(tmp_path.iterdir()) == []
    code, _, errors = command("release", "http://127.0.0.1:1/v1", *named[2:])
    assert code == 2
    assert "--dry-run is for checkpoints" in errors


@pytest.mark.parametrize("policy", ["rtn", "gptq", "allocate"])
def test_quantize_estimates_as_json(command, model, tmp_path, policy) -> None:
    options = ("--avg-bits", "4.5") if policy == "allocate" else ()
    named = ("quantize", model, *SMALL, "--policy", policy, *options, "--out", tmp_path / "w4", "--dry-run", "--json")
    code, printed, errors = command(*named)
    assert code == 0, errors
    estimate = json.loads(printed)
    assert (estimate["schema"], estimate["device"], estimate["problems"]) == ("fairbits.estimate/1", "cpu", [])
    assert estimate["disk_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_plan_says_what_quantizing_takes_and_its_dry_run_too(command, model, tmp_path) -> None:
    file = tmp_path / "plan.json"
    code, printed, errors = command("plan", model, *SMALL, "--out", file)
    assert code == 0, errors
    assert "estimate on cpu" in printed
    assert max(map(cell_len, printed.splitlines())) <= 80
    code, printed, errors = command("quantize", model, "--plan", file, "--out", tmp_path / "w4", "--dry-run")
    assert code == 0, errors
    assert "in all" in printed
    assert command("quantize", model, "--plan", file, "--out", tmp_path / "w4")[0] == 0
    evaluate = ("evaluate", tmp_path / "w4", "--reference", model, *SMALL[:2], "--tokens", "64", "--dry-run")
    code, printed, errors = command(*evaluate)
    assert code == 0, errors
    assert "evaluate the reference model" in printed


def test_what_does_not_fit_ends_with_an_error(command, model, tmp_path, monkeypatch) -> None:
    from fairbits.models.device import Capacity

    monkeypatch.setattr(fit, "free_capacity", lambda *_args, **_named: Capacity(None, 1000, 10**12, 10**12, True))
    code, printed, errors = command("run", model, *SMALL, "--out", tmp_path / "run", "--dry-run")
    assert code == 2, errors
    assert "this does not fit: " in " ".join(printed.split())
    assert errors.splitlines()[-1].startswith("error: ")
    assert "use a machine with more memory" in errors
    assert command("run", model, *SMALL, "--out", tmp_path / "run")[0] == 2
    assert list(tmp_path.iterdir()) == []
