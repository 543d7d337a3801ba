"""Runs of several models: a directory for each, errors of one that do not stop the others, and what travels."""

import pickle
import shutil
from pathlib import Path

import pytest

from fairbits.api.run import many_models as module
from fairbits.api.run import run
from fairbits.api.run.many_models import RunTask, RunWork, run_directories, run_many
from fairbits.cli.run_command import runs_data
from fairbits.core.errors import InputError
from fairbits.core.task_pool import Cluster, TaskPool
from fairbits.text.corpus import Corpus

OPTIONS = {"languages": ["eng", "heb"], "group": 16, "tokens": 64, "evaluation_tokens": 128, "sequence": 64}
QUICK = {**OPTIONS, "baselines": ["rtn"], "policy": "mse"}


@pytest.fixture(scope="module")
def models(reading_model, tmp_path_factory) -> list[Path]:
    """Two small models."""
    there = tmp_path_factory.mktemp("models")
    shutil.copytree(reading_model("llama").directory, there / "one")
    shutil.copytree(reading_model("qwen2").directory, there / "two")
    return [there / "one", there / "two"]


@pytest.mark.long
def test_each_model_has_its_directory_and_the_scores_of_a_run_of_its_own(models, tmp_path) -> None:
    done: list[str] = []
    results = run_many(models, out=tmp_path / "runs", **QUICK, finished=lambda what, _: done.append(what))
    assert results.failed == {}
    assert list(results.runs) == ["one", "two"]
    assert sorted(directory.name for directory in (tmp_path / "runs").iterdir()) == ["one", "two"]
    assert (tmp_path / "runs" / "two" / "report.html").is_file()
    assert "one: model" in done
    assert "two: report.html" in done
    alone = run(models[0], out=tmp_path / "alone", **QUICK)
    scores = results.runs["one"].scores
    assert scores.quantized.fingerprint == alone.scores.quantized.fingerprint
    assert scores.documents.kl.tolist() == alone.scores.documents.kl.tolist()

    travelled = pickle.loads(pickle.dumps(results.runs["one"]))
    assert travelled.scores.as_bytes() == scores.as_bytes()
    assert travelled.report.content == results.runs["one"].report.content

    done.clear()
    again = run_many(
        models, out=tmp_path / "runs", **QUICK, finished=lambda what, seconds: done.append((what, seconds))
    )
    assert ("two: scores.json", None) in done  # nothing is done twice
    assert again.runs["two"].scores.as_bytes() == results.runs["two"].scores.as_bytes()


def test_one_that_fails_does_not_stop_the_others(models, tmp_path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "letter.txt").write_text("of someone else")
    results = run_many(models, out=tmp_path, **QUICK)
    assert list(results.runs) == ["two"]
    assert "is not empty and has no run.json" in str(results.failed["one"])
    assert runs_data(results)["failed"] == {"one": str(results.failed["one"])}


def test_one_model_is_run_in_the_directory_itself_and_its_error_is_raised(tmp_path) -> None:
    assert run_directories(["embedded:tiny"], tmp_path) == {"embedded-tiny": tmp_path}
    (tmp_path / "letter.txt").write_text("of someone else")
    with pytest.raises(InputError, match=r"is not empty and has no run\.json"):
        run_many(["embedded:tiny"], out=tmp_path, **QUICK)


def test_directories_that_cannot_be(tmp_path) -> None:
    with pytest.raises(InputError, match="models is empty"):
        run_directories([], tmp_path)
    same = [tmp_path / parent / "model" for parent in "ab"]
    for directory in same:
        directory.mkdir(parents=True)
    with pytest.raises(InputError, match=r"a/model and .*b/model would both be written to .*model"):
        run_directories(list(map(str, same)), tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match="has the run of one model"):
        run_directories(["org/a", "org/b"], tmp_path)


def test_a_machine_that_does_not_see_the_directory_says_so(tmp_path) -> None:
    work = RunWork({}, mark=tmp_path / "none")
    with pytest.raises(InputError, match=r"does not see the files of .*must be in a directory that all machines"):
        work.open().__enter__()


def test_on_a_cluster_text_travels_and_the_device_is_that_of_the_cluster(tmp_path, monkeypatch) -> None:
    for code in ("eng", "heb"):
        (tmp_path / f"{code}.txt").write_text("\n".join(f"{code} sentence number {i}." for i in range(40)))
    sent: list[tuple[RunTask, RunWork, bool]] = []

    class Lent(TaskPool):
        def run(self, tasks, work, **_) -> None:
            sent.extend((pickle.loads(pickle.dumps(task)), work, work.mark.is_file()) for task in tasks.values())

    class Opened:
        def __enter__(self) -> Lent:
            return Lent(Cluster(), has_gpus=True)

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(module, "open_pool", lambda _: Opened())
    monkeypatch.chdir(tmp_path)
    run_many(["embedded:tiny", None], out="runs", text=str(tmp_path), ray="local", finished=print)
    (first, work, seen), (second, _, _) = sent
    assert (first.out, second.out) == (tmp_path / "runs" / "embedded-tiny", tmp_path / "runs" / "demo")
    assert (first.device, first.model.target, second.model) == ("cuda", "embedded:tiny", None)
    assert isinstance(work.options["text"], Corpus)
    assert (seen, work.finished) == (True, None)
    assert not list(tmp_path.glob(".*.part"))
