"""Trials as tasks: what travels to another process, and what is kept in a directory."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fairbits.api.compare import compare
from fairbits.api.sweep import sweep
from fairbits.api.trial_tasks import Trial, TrialWork, run_trials, task_device, task_resources
from fairbits.comparison.plan_trial import PlanTrial
from fairbits.core.errors import InputError
from fairbits.core.locks import lock_directory
from fairbits.core.task_pool import Cluster, TaskPool
from fairbits.models.checkpoint import Checkpoint
from fairbits.quantization.policies.variants import variant
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.included_texts import udhr

CODES = ["eng", "heb"]
SMALL = {"languages": CODES, "tokens": 64, "evaluation_tokens": 64, "sequence": 64}


def test_a_checkpoint_and_a_corpus_can_be_pickled() -> None:
    checkpoint, corpus = Checkpoint("embedded:tiny"), udhr(CODES)
    again = pickle.loads(pickle.dumps((checkpoint, corpus)))
    assert (again[0].target, again[0].fingerprint) == (checkpoint.target, checkpoint.fingerprint)
    assert again[1] == corpus
    assert again[1].hashes == corpus.hashes
    with pytest.raises(TypeError):
        again[1].calibration["eng_Latn"] = ()  # still frozen


def test_a_model_that_another_machine_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(Checkpoint("embedded:tiny").directory, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(Checkpoint("model"))
    monkeypatch.chdir("/")
    assert pickle.loads(data).target == "model"  # found by its absolute path
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(InputError, match=rf"{tmp_path}/model cannot be opened on .*the same path on every machine"):
        pickle.loads(data)


@pytest.mark.parametrize("changed", ["tokenizer", "parallel"])
def test_a_trial_with_other_tokens_is_another_one(
    reading_model: Callable[[str], Checkpoint], tmp_path: Path, changed: str
) -> None:
    shutil.copytree(reading_model("llama").directory, tmp_path / "model")
    corpus = udhr(CODES)
    options = {"policies": ["rtn"], "bits": [4], "group": 16, "evaluation_tokens": 64, "sequence": 32}
    kept = compare(tmp_path / "model", results=tmp_path / "results", text=corpus, **options)
    if changed == "tokenizer":
        file = tmp_path / "model" / "tokenizer.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"normalizer": {"type": "Lowercase"}}))
    else:
        corpus = Corpus(corpus.name, corpus.calibration, corpus.evaluation, parallel=False)
    again, fresh = (
        compare(tmp_path / "model", results=results, text=corpus, **options).entries[0].scores[0].documents
        for results in (tmp_path / "results", None)
    )
    assert again.kl.tolist() == fresh.kl.tolist()
    assert again.kl.tolist() != kept.entries[0].scores[0].documents.kl.tolist()


def test_finished_trials_are_kept_and_not_done_again(
    reading_model: Callable[[str], Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = reading_model("llama")
    options = {"policies": ["rtn", "gptq"], "bits": [4], "seeds": [0, 1], "group": 16, **SMALL}
    first = compare(model, results=tmp_path, **options)
    kept = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert [name.rpartition("-")[0] for name in kept] == [
        "gptq-4-bits-seed-0",
        "gptq-4-bits-seed-1",
        "rtn-4-bits-seed-0",
    ]

    shutil.rmtree(tmp_path / kept[1])  # as if the command had been interrupted
    done, whole = [], PlanTrial.run
    monkeypatch.setattr(PlanTrial, "run", lambda self, plan, **rest: done.append(plan) or whole(self, plan, **rest))
    second = compare(model, results=tmp_path, **options)
    assert [(plan.policy, plan.calibration.seed) for plan in done] == [("gptq", 1)]
    before, after = (json.loads(json.dumps(comparison.as_data())) for comparison in (first, second))
    for entry in (*before["entries"], *after["entries"]):
        entry.pop("seconds")
    assert before == after

    swept = sweep(model, policy="rtn", bits=[3, 4], group=16, results=tmp_path, **SMALL)
    assert [plan.policy for plan in done[1:]] == ["rtn", "rtn"]  # a comparison has other options: embeddings
    assert sweep(model, policy="rtn", bits=[3, 4], group=16, results=tmp_path, **SMALL).as_data() == swept.as_data()
    assert len(done) == 3


def test_a_directory_is_used_by_one_command_at_a_time(tmp_path: Path) -> None:
    with (
        lock_directory(tmp_path),
        pytest.raises(InputError, match=r"another run .* is using .*another directory with --results"),
    ):
        compare("embedded:tiny", policies=["rtn"], results=tmp_path, **SMALL)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be written .* another directory with --results"):
        compare("embedded:tiny", policies=["rtn"], results=tmp_path / "file", **SMALL)


def test_another_model_at_the_same_path_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    here, corpus = Checkpoint("embedded:tiny"), udhr(CODES)
    request = TextRequest("evaluation", 64, 64)
    work = TrialWork(here, corpus, request, {"group": 16}, "cpu")
    trial = Trial(variant("rtn"), 4, TextRequest("calibration", 64, 64), "rtn, 4 bits")
    there = TrialWork(Checkpoint("embedded:tiny?outliers=3:50"), corpus, request, {"group": 16}, "cpu")
    monkeypatch.setattr(work.__class__, "open", lambda _, progress=None, whole=TrialWork.open: whole(there, progress))
    with pytest.raises(InputError, match="embedded:tiny is another model on a machine of the cluster"):
        run_trials([trial], work, pool=TaskPool())


@pytest.mark.parametrize(
    ("device", "gpus", "expected"), [("auto", True, "cuda"), ("auto", False, "cpu"), ("cuda", False, "cuda")]
)
def test_the_device_of_tasks_is_that_of_the_cluster(device: str, gpus: bool, expected: str) -> None:
    assert task_device(device, TaskPool(Cluster(), gpus)) == expected
    with pytest.raises(InputError, match="Ray picks the GPU"):
        task_device("cuda:1", TaskPool(Cluster(), gpus))


def test_what_a_task_needs() -> None:
    model = Checkpoint("embedded:tiny")
    weights = sum(info.numel for info in model.tensors.values())
    resources = task_resources([model], "cuda", TaskPool(Cluster(cpus=4, gpus=0.5)))
    assert (resources.cpus, resources.gpus) == (4, 0.5)
    assert resources.memory == 10**9 + 6 * weights
    assert task_resources([model], "cpu", TaskPool(Cluster(gpus=0.5))).gpus == 0


def test_no_document_is_lost_on_the_way() -> None:
    corpus = Corpus("two", {"fra": ["a", "b"]}, {"fra": ["c"], "heb": ["d"]}, notes=("a note",), source="there")
    again = pickle.loads(pickle.dumps(corpus))
    assert (again, again.source, again.notes) == (corpus, "there", ("a note",))
