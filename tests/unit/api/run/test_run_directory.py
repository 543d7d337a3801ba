"""How a run goes on after an interruption, a crash, damage to its files or a full disk."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fairbits.api.run import FinishedRun, run
from fairbits.api.run.run_settings import recorded_device
from fairbits.core.errors import InputError
from fairbits.evaluation.scores import Scores
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import resolve_device

SCORES = ("scores.json", "baselines/rtn.json", "baselines/gptq-mix-english.json", "more-bits/3.json")
STAGES = ("audit.json", "model", *SCORES, "sweep.json")


def copied(whole: FinishedRun, to: Path) -> Path:
    return Path(shutil.copytree(whole.directory, to / "run"))


def damage(model: Path) -> None:
    """Flips a bit of the weights."""
    shard = next(model.glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)


def columns(scores: Scores) -> dict[str, list]:
    return {name: column.tolist() for name, column in vars(scores.documents).items()}


def assert_same(one: Path, other: Path) -> None:
    """Both directories have the same results to the bit; only where the written model lies may differ."""
    for name in SCORES:
        a, b = Scores.load(one / name), Scores.load(other / name)
        assert columns(a) == columns(b), name
        assert (a.quantized.fingerprint, a.notes) == (b.quantized.fingerprint, b.notes)
    for name in ("audit.json", "audit.safetensors", "sweep.json", "model/plan.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_the_same_call_makes_only_the_report_again(whole, model, monkeypatch, small) -> None:
    assert recorded_device(whole.directory) == resolve_device("auto")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # a GPU that has come since changes nothing
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    results = whole.directory.rglob("*")
    files = [path for path in results if path.is_file() and not path.name.startswith("report")]
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}
    stages: list[tuple[str, float | None]] = []

    def nothing(what: str, *_: int) -> None:
        raise AssertionError(f"{what}: nothing may be done again")

    again = run(
        model, out=whole.directory, **small, progress=nothing, finished=lambda what, s: stages.append((what, s))
    )
    assert [what for what, seconds in stages if seconds is None] == list(STAGES)
    assert [what for what, seconds in stages if seconds is not None] == ["report.html"]
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files} == before
    assert columns(again.scores) == columns(whole.scores)


@pytest.mark.long
def test_an_interruption_after_any_stage_changes_nothing(whole, model, tmp_path, small) -> None:
    stages: list[str] = []

    def stop(what: str, seconds: float | None) -> None:
        if seconds is not None:
            stages.append(what)
            if what == moment:
                raise KeyboardInterrupt

    moments = ("audit.json", "model", "answers of the reference", "scores.json", "baselines/rtn.json", "sweep.json")
    for moment in moments:  # noqa: B007  # which `stop` looks at
        with pytest.raises(KeyboardInterrupt):
            run(model, out=tmp_path / "run", **small, finished=stop)
    run(model, out=tmp_path / "run", **small, finished=stop)
    assert [what for what in stages if what != "answers of the reference"] == [*STAGES, "report.html"]  # nothing twice
    assert_same(whole.directory, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["notes"] == []


KILLED = """
import json, os, pathlib, signal, sys, time
from fairbits.api.run import run

model, out, settings, *moments = sys.argv[1:]

for moment in moments:
    if (child := os.fork()) == 0:
        def die(what, done, total=None):
            if what.endswith(moment) and (total is None or 2 * done > total):
                while total is not None and not any(pathlib.Path(out).glob(".model.partial/model/*.safetensors")):
                    time.sleep(0.01)  # another thread writes the blocks
                os.kill(os.getpid(), signal.SIGKILL)

        run(model, out=out, **json.loads(settings), progress=die, finished=die)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.long
def test_a_killed_run_is_completed_to_the_same_bits(whole, model, tmp_path, small) -> None:
    out = tmp_path / "run"
    arguments = [sys.executable, "-c", KILLED, model, out, json.dumps(small), "audit.json", "rounding blocks"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # a process with threads must not be forked
    ended = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [str(-signal.SIGKILL)] * 2, ended.stderr
    assert (out / "audit.json").is_file()
    assert not (out / "model").exists()
    shard = min((out / ".model.partial" / "model").glob("*.safetensors"))  # a block that is finished
    number = shard.stat().st_ino
    run(model, out=out, **small)
    assert (out / "model" / shard.name).stat().st_ino == number  # and was not done again
    assert not (out / ".model.partial").exists()
    assert_same(whole.directory, out)


def test_a_run_that_was_killed_while_it_wrote_its_first_file_begins_anew(model, tmp_path, small) -> None:
    left = tmp_path / f".{'0' * 12}.{'0' * 8}-1-1-1.part"
    left.write_bytes(b"{")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(model, out=tmp_path, **small, progress=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json"]


@pytest.mark.long
def test_what_is_damaged_is_made_again_with_a_note(whole, model, tmp_path, small) -> None:
    out = copied(whole, tmp_path)
    damage(out / "model")
    (out / "model.damaged").mkdir()  # of an earlier time
    for name in ("audit.json", "baselines/rtn.json"):
        (out / name).write_text("{")
    (out / "more-bits" / "3.json").unlink()  # what is missing is no damage
    rerun = run(model, out=out, **small)
    assert [note.split(": ")[0] for note in rerun.notes] == [
        "audit.json was made again",
        "model was made again",
        "the model that was found there is now model.damaged-2",
        "baselines/rtn.json was made again",
    ]
    assert Checkpoint(out / "model.damaged-2").fingerprint != whole.scores.quantized.fingerprint
    assert_same(whole.directory, out)
    assert json.loads((out / "run.json").read_text())["notes"] == list(rerun.notes)
    assert "audit.json was made again" in (out / "report.json").read_text()


@pytest.mark.long
def test_scores_of_something_else_are_measured_again_and_the_model_stays(whole, model, tmp_path, small) -> None:
    out = copied(whole, tmp_path)
    shutil.copy(out / "baselines" / "gptq-mix-english.json", out / "scores.json")
    shutil.copy(out / "more-bits" / "3.json", out / "baselines" / "rtn.json")
    english = json.loads((out / "baselines" / "gptq-mix-english.json").read_text())
    english["quantized"]["fingerprint"] = "0" * 64  # a plan with other settings and the same name
    (out / "baselines" / "gptq-mix-english.json").write_text(json.dumps(english))
    shards = {path: path.stat().st_ino for path in (out / "model").iterdir()}
    rerun = run(model, out=out, **small)
    assert [(note.split()[0], note.split("scores of ")[1]) for note in rerun.notes] == [
        ("scores.json", f"{model}, gptq:mix=english, 4 bits, not of what it is for"),
        ("baselines/rtn.json", f"{model}, gptq, 3 bits, not of what it is for"),
        ("baselines/gptq-mix-english.json", f"{model}, gptq:mix=english, 4 bits, not of what it is for"),
    ]
    assert {path: path.stat().st_ino for path in (out / "model").iterdir()} == shards
    assert_same(whole.directory, out)


def test_what_was_measured_goes_with_the_model(whole, model, tmp_path, small) -> None:
    out = copied(whole, tmp_path)
    damage(out / "model")

    def stop(what: str, seconds: float | None) -> None:
        if (what, seconds is not None) == ("model", True):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(model, out=out, **small, finished=stop)
    assert not [name for name in ("scores.json", "sweep.json", "report.html", "report.md") if (out / name).exists()]
    assert Checkpoint(out / "model").fingerprint == whole.scores.quantized.fingerprint
    assert (out / "baselines" / "rtn.json").exists()  # which is not about it


@pytest.mark.parametrize(
    "changes",
    [
        {"fingerprint": "0"},
        {"policy": "rtn"},
        {"sizes": {"4": 1}},
        {"damage": {}},
        {"critical_width": None},
    ],
)
def test_a_sweep_of_something_else_is_made_again(whole, model, tmp_path, changes, small) -> None:
    out = copied(whole, tmp_path)
    swept = json.loads((out / "sweep.json").read_text())
    (out / "sweep.json").write_text(json.dumps(swept | changes))
    rerun = run(model, out=out, **small)
    assert [note.split(": ")[0] for note in rerun.notes] == ["sweep.json was made again"]
    assert (out / "sweep.json").read_bytes() == (whole.directory / "sweep.json").read_bytes()


def test_one_run_at_a_time(whole, model, tmp_path, small) -> None:
    out = copied(whole, tmp_path)
    left = out / "baselines" / f".{'0' * 12}.{'0' * 8}-1-1-1.part"
    left.write_bytes(b"{")
    with (out / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as another process does
        with pytest.raises(InputError, match=r"another run is using .*run; wait until it ends"):
            run(model, out=out, **small)
        assert left.exists()  # it may be what the other one is writing
    assert run(model, out=out, **small).notes == ()
    assert not left.exists()


def test_where_no_locks_are_kept_it_is_said(whole, model, tmp_path, monkeypatch, small) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    (note,) = run(model, out=copied(whole, tmp_path), **small).notes
    assert note.startswith("this file system has no locks")


def test_a_link_to_a_model_is_refused_and_links_to_reports_are_not_followed(whole, model, tmp_path, small) -> None:
    out, mine = copied(whole, tmp_path), tmp_path / "mine"
    mine.write_text("mine")
    for name in ("report.html", "sweep.json", "baselines/rtn.json"):
        (out / name).unlink()
        (out / name).symlink_to(mine)
    run(model, out=out, **small)
    assert mine.read_text() == "mine"
    assert_same(whole.directory, out)
    assert not (out / "report.html").is_symlink()
    (out / "model").rename(tmp_path / "elsewhere")
    (out / "model").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="model is a link"):
        run(model, out=out, **small)
    assert (tmp_path / "elsewhere" / "plan.json").is_file()


def test_other_versions_are_noted(whole, model, tmp_path, small) -> None:
    out = copied(whole, tmp_path)
    record = json.loads((out / "run.json").read_text())
    record["versions"] |= {"torch": "1.0", "torch threads": "999"}
    (out / "run.json").write_text(json.dumps(record))
    (note,) = run(model, out=out, **small).notes
    threads = torch.get_num_threads()
    assert note == (
        f"continued with torch {torch.__version__} (started with 1.0), torch threads {threads} (started with 999)"
    )
    shown = json.loads((out / "report.json").read_text())
    assert shown["provenance"]["versions"]["torch"] == torch.__version__
    assert shown["provenance"]["versions"]["measured with"] == "torch 1.0, torch threads 999"
    assert "torch 1.0" in (out / "report.html").read_text()


@pytest.mark.long
def test_a_full_disk_is_told_as_a_run_goes_on(whole, model, tmp_path, monkeypatch, small) -> None:
    out = copied(whole, tmp_path)
    shutil.rmtree(out / "model")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(
            InputError, match=r"No space left on device\); free some space and run the same command again$"
        ):
            run(model, out=out, **small)
    run(model, out=out, **small)
    assert_same(whole.directory, out)
