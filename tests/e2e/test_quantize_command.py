"""`fairbits plan` and `fairbits quantize` as a user runs them."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from safetensors.torch import load_file

import fairbits as fb
from fairbits.models.io.checkpoint_writer import QuantizedWriter
from fairbits.quantization.plan import Plan

pytestmark = pytest.mark.usefixtures("four_block_embedded")

TINY = "embedded:tiny"
SMALL = ("--languages", "eng_Latn,heb_Hebr", "--tokens", "64", "--sequence", "64")


def fits(printed: str) -> bool:
    return max(cell_len(line) for line in printed.splitlines()) <= 80


def weights(directory: Path) -> dict:
    return {name: tensor for file in directory.glob("*.safetensors") for name, tensor in load_file(file).items()}


def test_plan_writes_what_quantize_carries_out(command, tmp_path) -> None:
    plan, one, other = tmp_path / "plan.json", tmp_path / "one", tmp_path / "other"
    options = ("--policy", "rtn", "--bits", "4", "--group", "channel")
    code, printed, errors = command("plan", TINY, *options, "--out", plan)
    assert (code, errors) == (0, "")
    assert fits(printed)
    assert command("quantize", TINY, "--plan", plan, "--out", one)[0] == 0
    code, printed, _ = command("quantize", TINY, *options, "--out", other, "--json")
    assert code == 0
    result = json.loads(printed)
    assert result["results"]
    assert json.loads((other / "plan.json").read_text()) == result
    planned = json.loads(plan.read_text())
    assert planned["layers"] == result["layers"]
    tensors = weights(one)
    assert sum(tensor.nbytes for tensor in tensors.values()) == planned["size_bytes"]
    assert all((tensor == weights(other)[name]).all() for name, tensor in tensors.items())


@pytest.mark.long
def test_options_reach_the_policy(command) -> None:
    def planned(*options: str) -> dict:
        code, printed, errors = command("plan", TINY, "--group", "channel", *SMALL, *options, "--json")
        assert (code, errors) == (0, ""), errors
        return json.loads(printed)

    assert planned("--policy", "aciq", "--distribution", "laplace")["layers"][5]["clip"] == "laplace"
    assert planned("--mix", "heb=1")["languages"] == {"eng_Latn": 0.0, "heb_Hebr": 1.0}  # gptq, the default
    plan = planned("--policy", "gateway", "--k", "2", "--bits", "3", "--rounding", "nearest", "--embeddings", "8")
    widths = {layer["block"]: layer["bits"] for layer in plan["layers"]}
    assert (widths[0], widths[1], widths[3], widths[None]) == (8, 3, 8, 8)
    assert planned("--policy", "laaciq", "--language", "he")["settings"]["language"] == "heb_Hebr"
    assert planned("--policy", "mixed", "--tau", "8")["settings"]["tau"] == 8.0
    plan = planned("--policy", "allocate", "--avg-bits", "4.5", "--objective", "mean", "--sensitivity", "predicted")
    assert (plan["settings"]["avg_bits"], plan["settings"]["objective"]) == (4.5, "mean")
    assert (plan["calibration"]["tokens"], plan["calibration"]["sequence"]) == (64, 64)
    plan = planned("--policy", "allocate", "--avg-bits", "5", "--widths", "4,8")
    assert {layer["bits"] for layer in plan["layers"] if layer["block"] is not None} == {4, 8}


@pytest.mark.parametrize(
    ("verb", "options", "message"),
    [
        ("plan", ("--policy", "best"), "policy"),
        ("plan", ("--policy", "rtn", "--distribution", "laplace"), "rtn does not take --distribution (aciq does)"),
        ("plan", ("--policy", "rtn", "--avg-bits", "4"), "rtn does not take --avg-bits (allocate, fair do)"),
        ("plan", ("--device", "foo"), "device is 'foo'"),
        ("plan", ("--policy", "allocate", "--avg-bits", "4", "--widths", "4-8"), "--widths is '4-8'"),
        ("quantize", ("--device", "foo", "--out", "w4"), "device is 'foo'"),
        ("quantize", ("--group", "100", "--out", "w4"), "groups of 100 do not divide"),
        ("plan", ("--policy", "rtn", "--bits", "9"), "bits"),
        ("plan", ("--group", "row"), "--group is 'row'"),
        ("plan", ("--embeddings", "2"), "--embeddings is '2'"),
        ("plan", ("--out", "nowhere/plan.json"), "is not a directory"),
        ("quantize", ("--plan", "none.json", "--out", "w4"), "none.json cannot be read"),
        ("quantize", ("--plan", "none.json", "--bits", "3", "--out", "w4"), "--plan has already decided --bits"),
        *(
            ("quantize", ("--plan", "none.json", flag, "32", "--out", "w4"), f"--plan has already decided {flag}")
            for flag in ("--tokens", "--sequence", "--seed")
        ),
    ],
)
def test_bad_input_ends_with_2_and_one_line(command, tmp_path, monkeypatch, verb, options, message) -> None:
    monkeypatch.chdir(tmp_path)
    code, printed, errors = command(verb, TINY, *options)
    assert (code, printed, errors.count("\n")) == (2, "", 1)
    assert message in errors
    assert not list(tmp_path.iterdir())


def test_dangers_are_said_before_rounding_and_the_next_step_at_the_end(command, tmp_path) -> None:
    options = ("--policy", "mse", "--group", "channel", "--out", tmp_path / "w4")
    code, printed, errors = command("quantize", TINY, *options)
    assert code == 0
    assert "clips weights without knowing" in errors
    directory = tmp_path / "w4"
    assert printed.splitlines()[-1] == f"wrote {directory}; next: fairbits evaluate {directory} --reference {TINY}"


def interrupt(out: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Carries out a plan until two blocks are written."""
    add, written = QuantizedWriter.add, []

    def stop(self: QuantizedWriter, index: int | None, *args: Any, **options: Any) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(index)
        add(self, index, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(QuantizedWriter, "add", stop)
        with pytest.raises(KeyboardInterrupt):
            fb.quantize(TINY, plan, out=out)


def test_resume_takes_the_plan_of_the_draft(command, tmp_path, monkeypatch) -> None:
    plan = fb.plan(TINY, policy="aciq", distribution="laplace", bits=3, group="channel")
    interrupt(tmp_path / "w3", plan, monkeypatch)
    options = ("--resume", "--out", tmp_path / "w3")
    for other, message in (
        (("--bits", "4"), "--bits is 4, but the interrupted run had 3"),
        (("--policy", "rtn"), "--policy is rtn, but the interrupted run had aciq"),
        (("--distribution", "gaussian"), "had laplace"),
    ):
        code, _, errors = command("quantize", TINY, *options, *other)
        assert (code, errors.count("\n")) == (2, 1)
        assert message in errors
    assert not (tmp_path / "w3").exists()
    assert command("quantize", TINY, *options, "--bits", "3", "--distribution", "laplace")[0] == 0
    assert fb.Plan.load(tmp_path / "w3" / "plan.json").digest == plan.digest
    whole = tmp_path / "whole"
    fb.quantize(TINY, plan, out=whole)
    assert all((tensor == weights(whole)[name]).all() for name, tensor in weights(tmp_path / "w3").items())


def test_a_plan_is_held_to_its_own_group(command, tmp_path, reading_model) -> None:
    model = reading_model("llama").directory  # groups of 128, the default, do not divide its 32 inputs
    fb.plan(model, policy="rtn", group=16).save(tmp_path / "plan.json")
    assert command("quantize", model, "--plan", tmp_path / "plan.json", "--out", tmp_path / "w4")[0] == 0
    assert command("quantize", model, "--policy", "rtn", "--out", tmp_path / "other")[0] == 2


def test_nothing_is_written_over(command, tmp_path) -> None:
    (tmp_path / "w4").mkdir()
    (tmp_path / "w4" / "mine").write_text("mine")
    code, printed, errors = command("quantize", TINY, "--policy", "rtn", "--out", tmp_path / "w4")
    assert (code, printed) == (2, "")
    assert [path.name for path in (tmp_path / "w4").iterdir()] == ["mine"]
    assert "w4" in errors
