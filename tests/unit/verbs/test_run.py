"""The whole job in one directory: what it writes, how it goes on after any interruption, and what it refuses."""

import errno
import fcntl
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM

from fairbits.cli.tables.run import as_data, next_steps, run_table
from fairbits.errors import InputError
from fairbits.language import udhr
from fairbits.measure.scores.scores import Scores
from fairbits.model import Checkpoint
from fairbits.model.device import resolve_device
from fairbits.quantization.plan import Plan
from fairbits.quantization.policies.variants import variant
from fairbits.verbs.evaluate import evaluate
from fairbits.verbs.run import FinishedRun, run
from fairbits.verbs.run.job import file_name, usual_baselines
from fairbits.verbs.run.opening import recorded_device

SMALL = {
    "languages": ["eng_Latn", "heb_Hebr"],
    "group": 16,
    "tokens": 64,
    "evaluation_tokens": 128,
    "sequence": 64,
    "widths": (3,),
}
SCORES = ("scores.json", "baselines/rtn.json", "baselines/gptq-mix-english.json", "widths/3.json")
STAGES = ("audit.json", "model", *SCORES, "sweep.json")


@pytest.fixture(scope="module")
def model(reading_model, tmp_path_factory) -> Path:
    """A llama of five blocks, so that a run can stop between them."""
    source, directory = reading_model("llama"), tmp_path_factory.mktemp("five")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**source.config.to_dict() | {"num_hidden_layers": 5})).save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source.directory / name, directory)
    return directory


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory) -> FinishedRun:
    return run(model, out=tmp_path_factory.mktemp("whole") / "run", **SMALL)


@pytest.fixture(scope="module")
def alive() -> Iterator[list[int]]:
    """How many models that were loaded before are still in memory when another one is loaded."""
    load, loaded, counts = Checkpoint.load, [], []

    def spy(self: Checkpoint, *args: object) -> object:
        counts.append(sum(each() is not None for each in loaded))
        found = load(self, *args)
        loaded.append(weakref.ref(found))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "load", spy)
        yield counts


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


def test_the_directory_holds_everything(whole, model) -> None:
    found = {str(each.relative_to(whole.directory)) for each in whole.directory.rglob("*") if each.is_file()}
    reports = {"report.html", "report.md", "report.json"}
    expected = {".lock", "run.json", "audit.json", "audit.safetensors", "sweep.json", *SCORES, *reports}
    assert {name for name in found if not name.startswith("model/")} == expected
    said = json.loads((whole.directory / "run.json").read_text())
    source = Checkpoint(model)
    assert (said["schema"], said["policy"], said["fingerprint"]) == ("fairbits.run/1", "gptq", source.fingerprint)
    assert said["settings"] | {"bits": 4, "seed": 0, "widths": [3], "tokens": 64} == said["settings"]
    assert [each["name"] for each in said["baselines"]] == ["rtn", "gptq:mix=english"] == list(whole.baselines)
    assert all((whole.directory / each["scores"]).is_file() for each in said["baselines"])
    assert set(said["hashes"]) == {"calibration", "evaluation"}
    assert said["written"] == Checkpoint(whole.directory / "model").fingerprint == whole.scores.quantized.fingerprint
    assert (
        said["versions"] | {"torch": torch.__version__, "torch threads": str(torch.get_num_threads())}
        == (said["versions"])
    )
    assert {"fairbits", "Python", "transformers", "compressed-tensors", "numpy"} <= set(said["versions"])


def test_scores_are_those_of_the_written_model(whole, model) -> None:
    asked = {"languages": SMALL["languages"], "tokens": 128, "sequence": 64}
    again = evaluate(whole.directory / "model", reference=model, **asked)
    assert again.as_bytes() == whole.scores.as_bytes()
    plan = Plan.load(whole.directory / "model" / "plan.json")
    assert plan.outcomes
    assert (plan.settings["bits"], plan.calibration.tokens) == (4, 64)
    assert whole.scores.quantized.size_bytes == plan.size_bytes


def test_the_sweep_has_the_written_model_at_its_own_width(whole) -> None:
    swept = json.loads((whole.directory / "sweep.json").read_text())
    three = Scores.load(whole.directory / "widths" / "3.json")
    for code, estimate in whole.scores.frame().by_language().items():
        assert list(swept["damage"][code]) == ["3", "4"]
        assert swept["damage"][code]["4"] == estimate.to_dict()
        assert swept["damage"][code]["3"] == three.frame().language(code).to_dict()
    assert swept["sizes"] == {"3": three.quantized.size_bytes, "4": whole.scores.quantized.size_bytes}


def test_the_same_call_makes_only_the_report_again(whole, model, monkeypatch) -> None:
    assert recorded_device(whole.directory) == resolve_device("auto")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # a GPU that has come since changes nothing
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    results = (each for each in whole.directory.rglob("*") if each.name != ".lock")  # the lock names its holder
    files = [each for each in results if each.is_file() and not each.name.startswith("report")]
    before = {each: (each.stat().st_ino, each.stat().st_mtime_ns) for each in files}
    told: list[tuple[str, float | None]] = []

    def nothing(what: str, *_: int) -> None:
        raise AssertionError(f"{what}: nothing may be done again")

    again = run(model, out=whole.directory, **SMALL, progress=nothing, finished=lambda what, s: told.append((what, s)))
    assert [what for what, seconds in told if seconds is None] == list(STAGES)
    assert [what for what, seconds in told if seconds is not None] == ["report.html"]
    assert {each: (each.stat().st_ino, each.stat().st_mtime_ns) for each in files} == before
    assert columns(again.scores) == columns(whole.scores)


def test_an_interruption_after_any_stage_changes_nothing(whole, model, tmp_path) -> None:
    made: list[str] = []

    def stop(what: str, seconds: float | None) -> None:
        if seconds is not None:
            made.append(what)
            if what == moment:
                raise KeyboardInterrupt

    moments = ("audit.json", "model", "answers of the reference", "scores.json", "baselines/rtn.json", "sweep.json")
    for moment in moments:  # noqa: B007  # which `stop` looks at
        with pytest.raises(KeyboardInterrupt):
            run(model, out=tmp_path / "run", **SMALL, finished=stop)
    run(model, out=tmp_path / "run", **SMALL, finished=stop)
    assert [what for what in made if what != "answers of the reference"] == [*STAGES, "report.html"]  # nothing twice
    assert_same(whole.directory, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["notes"] == []


KILLED = """
import json, os, signal, sys
from fairbits.verbs.run import run

model, out, settings, *moments = sys.argv[1:]

for moment in moments:
    if (child := os.fork()) == 0:
        def die(what, done, total=None):
            if what == moment and (total is None or 2 * done > total):
                os.kill(os.getpid(), signal.SIGKILL)

        run(model, out=out, **json.loads(settings), progress=die, finished=die)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_killed_run_is_completed_to_the_same_bits(whole, model, tmp_path) -> None:
    out = tmp_path / "run"
    arguments = [sys.executable, "-c", KILLED, model, out, json.dumps(SMALL), "audit.json", "rounding blocks"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # a process with threads must not be forked
    ended = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [str(-signal.SIGKILL)] * 2, ended.stderr
    assert (out / "audit.json").is_file()
    assert not (out / "model").exists()
    shard = min((out / ".model.partial" / "model").glob("*.safetensors"))  # a block that is finished
    number = shard.stat().st_ino
    run(model, out=out, **SMALL)
    assert (out / "model" / shard.name).stat().st_ino == number  # and was not done again
    assert not (out / ".model.partial").exists()
    assert_same(whole.directory, out)


def test_a_run_that_was_killed_while_it_wrote_its_first_file_begins_anew(model, tmp_path) -> None:
    left = tmp_path / f".{'0' * 32}.part"
    left.write_bytes(b"{")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(model, out=tmp_path, **SMALL, progress=stop)
    assert sorted(each.name for each in tmp_path.iterdir()) == [".lock", "run.json"]


def test_what_is_damaged_is_made_again_with_a_note(whole, model, tmp_path) -> None:
    out = copied(whole, tmp_path)
    damage(out / "model")
    (out / "model.damaged").mkdir()  # of an earlier time
    for name in ("audit.json", "baselines/rtn.json"):
        (out / name).write_text("{")
    (out / "widths" / "3.json").unlink()  # what is missing is no damage
    found = run(model, out=out, **SMALL)
    assert [note.split(": ")[0] for note in found.notes] == [
        "audit.json was made again",
        "model was made again",
        "the model that was found there is now model.damaged-2",
        "baselines/rtn.json was made again",
    ]
    assert Checkpoint(out / "model.damaged-2").fingerprint != whole.scores.quantized.fingerprint
    assert_same(whole.directory, out)
    assert json.loads((out / "run.json").read_text())["notes"] == list(found.notes)
    assert "audit.json was made again" in (out / "report.json").read_text()


def test_scores_of_something_else_are_measured_again_and_the_model_stays(whole, model, tmp_path) -> None:
    out = copied(whole, tmp_path)
    shutil.copy(out / "baselines" / "gptq-mix-english.json", out / "scores.json")
    shutil.copy(out / "widths" / "3.json", out / "baselines" / "rtn.json")
    english = json.loads((out / "baselines" / "gptq-mix-english.json").read_text())
    english["quantized"]["fingerprint"] = "0" * 64  # a plan with other settings and the same name
    (out / "baselines" / "gptq-mix-english.json").write_text(json.dumps(english))
    shards = {each: each.stat().st_ino for each in (out / "model").iterdir()}
    found = run(model, out=out, **SMALL)
    assert [(note.split()[0], note.split("scores of ")[1]) for note in found.notes] == [
        ("scores.json", f"{model}, gptq:mix=english, 4 bits, not of what it is for"),
        ("baselines/rtn.json", f"{model}, gptq, 3 bits, not of what it is for"),
        ("baselines/gptq-mix-english.json", f"{model}, gptq:mix=english, 4 bits, not of what it is for"),
    ]
    assert {each: each.stat().st_ino for each in (out / "model").iterdir()} == shards
    assert_same(whole.directory, out)


def test_what_was_measured_goes_with_the_model(whole, model, tmp_path) -> None:
    out = copied(whole, tmp_path)
    damage(out / "model")

    def stop(what: str, seconds: float | None) -> None:
        if (what, seconds is not None) == ("model", True):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(model, out=out, **SMALL, finished=stop)
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
def test_a_sweep_of_something_else_is_made_again(whole, model, tmp_path, changes) -> None:
    out = copied(whole, tmp_path)
    swept = json.loads((out / "sweep.json").read_text())
    (out / "sweep.json").write_text(json.dumps(swept | changes))
    found = run(model, out=out, **SMALL)
    assert [note.split(": ")[0] for note in found.notes] == ["sweep.json was made again"]
    assert (out / "sweep.json").read_bytes() == (whole.directory / "sweep.json").read_bytes()


def test_one_run_at_a_time(whole, model, tmp_path) -> None:
    out = copied(whole, tmp_path)
    left = out / "baselines" / f".{'0' * 32}.part"
    left.write_bytes(b"{")
    with (out / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as another process does
        with pytest.raises(InputError, match=r"another run is using .*run; wait until it ends"):
            run(model, out=out, **SMALL)
        assert left.exists()  # it may be what the other one is writing
    assert run(model, out=out, **SMALL).notes == ()
    assert not left.exists()


def test_where_no_locks_are_kept_it_is_said(whole, model, tmp_path, monkeypatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    (note,) = run(model, out=copied(whole, tmp_path), **SMALL).notes
    assert note.startswith("this file system has no locks")


def test_a_link_to_a_model_is_refused_and_links_to_reports_are_not_followed(whole, model, tmp_path) -> None:
    out, mine = copied(whole, tmp_path), tmp_path / "mine"
    mine.write_text("mine")
    for name in ("report.html", "sweep.json", "baselines/rtn.json"):
        (out / name).unlink()
        (out / name).symlink_to(mine)
    run(model, out=out, **SMALL)
    assert mine.read_text() == "mine"
    assert_same(whole.directory, out)
    assert not (out / "report.html").is_symlink()
    (out / "model").rename(tmp_path / "elsewhere")
    (out / "model").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="model is a link"):
        run(model, out=out, **SMALL)
    assert (tmp_path / "elsewhere" / "plan.json").is_file()


def test_other_versions_are_noted(whole, model, tmp_path) -> None:
    out = copied(whole, tmp_path)
    said = json.loads((out / "run.json").read_text())
    said["versions"] |= {"torch": "1.0", "torch threads": "999"}
    (out / "run.json").write_text(json.dumps(said))
    (note,) = run(model, out=out, **SMALL).notes
    threads = torch.get_num_threads()
    assert note == (
        f"continued with torch {torch.__version__} (started with 1.0), torch threads {threads} (started with 999)"
    )
    shown = json.loads((out / "report.json").read_text())
    assert shown["provenance"]["versions"]["torch"] == torch.__version__
    assert shown["provenance"]["versions"]["measured with"] == "torch 1.0, torch threads 999"
    assert "torch 1.0" in (out / "report.html").read_text()


def test_a_full_disk_is_told_as_a_run_goes_on(whole, model, tmp_path, monkeypatch) -> None:
    out = copied(whole, tmp_path)
    shutil.rmtree(out / "model")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(
            InputError, match=r"No space left on device\); free some space and run the same command again$"
        ):
            run(model, out=out, **SMALL)
    run(model, out=out, **SMALL)
    assert_same(whole.directory, out)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "seed 0 there, 1 now. Give the same"),
        ({"policy": "mse"}, "policy gptq there, mse now"),
        ({"widths": ()}, "widths 3 there, none now"),
        ({"baselines": ["rtn"]}, "baselines rtn,gptq:mix=english there, rtn now"),
        ({"languages": ["heb", "eng"]}, "languages eng_Latn,heb_Hebr there, heb_Hebr,eng_Latn now"),
    ],
)
def test_another_run_needs_another_directory(whole, model, changes, message) -> None:
    before = (whole.directory / "run.json").read_bytes()
    with pytest.raises(InputError, match=message):
        run(model, out=whole.directory, **SMALL | changes)
    assert (whole.directory / "run.json").read_bytes() == before


def test_another_model_and_other_text_need_another_directory(whole, model, reading_model, tmp_path) -> None:
    with pytest.raises(InputError, match=r"model .*five.* there, .*qwen2"):
        run(reading_model("qwen2"), out=whole.directory, **SMALL)
    said = json.loads((whole.directory / "run.json").read_text())
    said["hashes"]["evaluation"]["heb_Hebr"] = "0"
    (tmp_path / "run.json").write_text(json.dumps(said))
    with pytest.raises(InputError, match="has a run with other settings: other text"):
        run(model, out=tmp_path, **SMALL)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InputError, match=r"run\.json is not valid JSON .*fairbits run in a new directory"):
        run(model, out=tmp_path, **SMALL)


def test_a_directory_of_others_is_left_alone(model, tmp_path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(InputError, match="is not empty and has no run in it"):
        run(model, out=tmp_path, **SMALL)
    with pytest.raises(InputError, match="is not a directory"):
        run(model, out=tmp_path / "mine", **SMALL)
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": "best"}, "policy"),
        ({"policy": "rtn:mix=english"}, "must have the form name:option=value"),
        ({"policy": "rtn", "baselines": ["mse", "rtn"]}, "rtn is the policy"),
        ({"baselines": ["gateway"], "bits": 8, "widths": ()}, "gateway at 8 bits"),
        ({"bits": 9}, "bits"),
        ({"widths": (1,)}, "width"),
        ({"group": 100}, "groups of 100 do not divide"),
        ({"embeddings": 5}, "embeddings"),
        ({"device": "foo"}, "device is 'foo'"),
        ({"languages": ["eng"]}, "name two or more"),
        ({"languages": ["eng", "nowhere"]}, "nowhere"),
        ({"tokens": 3}, "tokens"),
        ({"evaluation_tokens": 3}, "tokens"),
        ({"sequence": 1}, "sequence"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(model, tmp_path, changes, message) -> None:
    def nothing(what: str, *_: int) -> None:
        raise AssertionError(f"{what}: nothing may be done")

    with pytest.raises(InputError, match=message):
        run(model, out=tmp_path / "run", **SMALL | changes, progress=nothing)
    assert not list(tmp_path.iterdir())


def test_a_width_that_a_policy_cannot_have_is_left_out_with_a_note(model, tmp_path) -> None:
    options = SMALL | {"languages": ["fra", "heb"], "widths": (3, 8), "group": "tensor"}
    found = run(model, out=tmp_path / "run", policy="mixed:rounding=nearest", baselines=[], **options)
    width, audited = found.notes
    assert width.startswith("not measured: mixed:rounding=nearest at 8 bits: ")
    assert "per channel" in audited
    assert json.loads((tmp_path / "run" / "audit.json").read_text())["scheme"]["group"] is None
    assert list(json.loads((tmp_path / "run" / "sweep.json").read_text())["sizes"]) == ["3", "4"]
    assert "gptq" not in shown(run_table(found))  # there is nothing to compare with


@pytest.mark.parametrize(
    ("policy", "languages", "own_text", "expected"),
    [
        ("gptq", ("eng", "heb"), True, ["gptq:mix=english", "rtn"]),
        ("gptq", ("eng", "heb"), False, ["rtn", "gptq:mix=english"]),  # the declaration has little English
        ("gptq", ("fra", "heb"), True, ["rtn"]),  # there is no English
        ("rtn", ("eng", "heb"), False, ["gptq:mix=english"]),
        ("gptq:mix=english", ("eng", "heb"), True, ["rtn"]),
    ],
)
def test_the_usual_baselines(policy, languages, own_text, expected) -> None:
    found = usual_baselines(variant(policy), udhr(languages), enough_english=own_text)
    assert [each.name for each in found] == expected


def test_names_of_files_are_safe_and_short() -> None:
    assert file_name("gptq:mix=eng=2+fra=1") == "gptq-mix-eng-2+fra-1"
    assert "/" not in file_name("gptq:mix=../x")
    long = [f"gptq:mix={'+'.join(f'{code}={weight}' for code in ('eng', 'fra') * 40)}" for weight in (1, 2)]
    assert len({file_name(each) for each in long}) == 2
    assert all(len(file_name(each)) < 100 for each in long)


@pytest.mark.parametrize(
    ("policy", "options", "loaded"),
    [
        ("gptq", {"widths": (), "baselines": ["rtn"]}, 4),  # for the audit, reference, quantized model, and baseline
        ("allocate:rounding=nearest", {"baselines": []}, 6),  # and to plan, for the model and the other width
        ("rtn", {"baselines": ["protect:k=1:sets=1:rounding=nearest"]}, 5),  # and to plan the baseline
    ],
)
def test_two_copies_of_a_model_are_never_in_memory(model, alive, tmp_path, policy, options, loaded) -> None:
    alive.clear()
    run(model, out=tmp_path / "run", policy=policy, **SMALL | options)
    assert (tmp_path / "run" / "sweep.json").exists() == ("widths" not in options)
    assert alive == [0] * loaded


def shown(*parts: object) -> str:
    console = Console(file=io.StringIO(), width=80)
    for part in parts:
        console.print(part)
    return console.file.getvalue()


def test_the_table_has_the_worst_language_first_and_fits(whole) -> None:
    printed = shown(run_table(whole))
    assert max(map(cell_len, printed.splitlines())) <= 80
    added = whole.scores.frame().by_language()
    first, last = sorted(added, key=lambda code: -added[code].value)
    assert printed.index(first) < printed.index(last)
    assert "rtn" in printed
    assert f"{whole.scores.quantized.size_bytes / 1e6:,.2f} MB" in printed


def test_the_mark_follows_the_paired_contrast(whole) -> None:
    found = whole.scores.contrast(whole.baselines["rtn"])
    other = FinishedRun(
        whole.directory, "gptq", whole.scores, {"rtn": whole.baselines["rtn"]}, whole.report, whole.notes
    )
    printed = shown(run_table(other)).split("better, worse:")[0]  # the legend
    for code, difference in found.differences.items():
        (line,) = (line for line in printed.splitlines() if code in line)
        mark = ("better" if difference.value < 0 else "worse") if found.p_holm[code] < 0.05 else code
        assert mark in line
    sure = [code for code, p in found.p_holm.items() if p < 0.05]
    assert sum(line.rstrip().endswith(("better", "worse")) for line in printed.splitlines()) == len(sure)


def test_what_comes_next(whole) -> None:
    page, command, remark = (line.plain for line in next_steps(whole))
    assert "use it for the next release" in remark
    assert page == f"report: {whole.directory / 'report.html'}"
    assert f"fairbits gate {whole.directory / 'scores.json'} --max-worst " in command
    assert float(command.split()[-1]) >= whole.scores.frame().worst()[1].high
    data = json.loads(json.dumps(as_data(whole)))
    assert data["report"] == str(whole.page)
    assert data["headline"]["worst"]["after"]["language"] in SMALL["languages"]
