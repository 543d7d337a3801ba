"""Experiments as tasks: results that are there, and what travels."""

import shutil
from pathlib import Path

import pytest

from fairbits.core.errors import InputError
from fairbits.core.task_pool import Cluster, TaskPool
from fairbits.text.corpus import Corpus
from fairbits_research.experiments import all_experiments as module
from fairbits_research.experiments.all_experiments import ExperimentWork, finished_before, run_experiments
from fairbits_research.experiments.result import Result

STORED = Path(module.__file__).parents[1] / "assets/declaration/bounds.json"
SETTING = {"model": "embedded:tiny", "group": "channel", "sequence": 512, "calibration": 2048, "device": "cpu"}


def test_a_result_with_the_same_settings_is_finished(tmp_path: Path) -> None:
    file = tmp_path / "bounds.json"
    assert finished_before("bounds", file, SETTING) is None
    shutil.copy(STORED, file)
    result = finished_before("bounds", file, SETTING)
    assert result is not None
    assert result.name == "bounds"


@pytest.mark.parametrize(
    ("name", "change"),
    [("outliers", {}), ("bounds", {"sequence": 256}), ("bounds", {"model": "embedded:tiny?outliers=3:50"})],
)
def test_a_result_with_other_settings_is_not_taken_for_this_one(tmp_path: Path, name: str, change: dict) -> None:
    shutil.copy(STORED, tmp_path / "result.json")
    with pytest.raises(InputError, match=r"has the result of another experiment, model or setting \(bounds"):
        finished_before(name, tmp_path / "result.json", {**SETTING, **change})


def test_the_laboratory_is_kept_between_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    stored, used, finished = Result.load(STORED), [], []
    monkeypatch.setattr(module, "run_experiment", lambda name, lab, **_: used.append((name, lab)) or stored)
    work = ExperimentWork(SETTING)
    for name in ("bounds", "outliers"):
        run_experiments([name], work, pool=TaskPool(), on_result=lambda name, _: finished.append(name))
    assert finished == ["bounds", "outliers"]
    assert used[0][1] is used[1][1]


def test_text_of_a_path_travels(tmp_path: Path) -> None:
    for code in ("eng", "heb"):
        (tmp_path / f"{code}.txt").write_text("\n".join(f"{code} sentence number {i}." for i in range(40)))
    sent: list[ExperimentWork] = []

    class Lent(TaskPool):
        def run(self, _, work, **__) -> None:
            sent.append(work)

    run_experiments(
        ["bounds"], ExperimentWork({**SETTING, "text": str(tmp_path)}), pool=Lent(Cluster()), on_result=print
    )
    assert isinstance(sent[0].setting["text"], Corpus)
    run_experiments(["bounds"], ExperimentWork({**SETTING, "text": "help"}), pool=Lent(Cluster()), on_result=print)
    assert sent[1].setting["text"] == "help"
