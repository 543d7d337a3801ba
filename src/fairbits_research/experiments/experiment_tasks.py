"""Experiments as tasks: done in this process, which keeps the model between them, or by a Ray cluster."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fairbits.api.trial_tasks import task_resources
from fairbits.comparison.plan_trial import corpus_for
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.core.task_pool import TaskPool
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.reading import EMBEDDED
from fairbits_research.experiments import run_experiment
from fairbits_research.experiments.laboratory import Laboratory, Setting
from fairbits_research.experiments.result import Result

RECORDED = ("group", "sequence", "calibration")
"""Settings that every result records."""


@dataclass(frozen=True, eq=False)
class ExperimentWork:
    """What experiments share: the values of a `Setting`, and the directory of the models of training-choices."""

    setting: Mapping[str, Any]
    models: Path | None = None

    @cached_property
    def laboratory(self) -> Laboratory:
        """The laboratory of this process."""
        return Laboratory(Setting(**self.setting))

    @contextmanager
    def open(self, progress: Progress | None = None) -> Iterator[Callable[[str, Progress | None], Result]]:
        """Yields the function from the name of an experiment to its result."""
        self.laboratory.progress = progress

        def do(name: str, progress: Progress | None) -> Result:
            self.laboratory.progress = progress
            return run_experiment(name, self.laboratory, models=self.models)

        yield do


def run_experiments(
    names: list[str],
    work: ExperimentWork,
    *,
    pool: TaskPool,
    on_result: Callable[[str, Result], object],
    progress: Progress | None = None,
) -> None:
    """Runs experiments, each a task, and calls `on_result` with each result."""
    if pool.cluster is not None:
        work = ExperimentWork(_to_send(work.setting), work.models)
    needs = task_resources([Checkpoint(work.setting["model"])], work.setting["device"], pool)
    pool.run(
        {name: name for name in names},
        work,
        resources=dict.fromkeys(names, needs),
        on_result=on_result,
        progress=progress,
    )


def finished_before(name: str, file: Path, setting: Mapping[str, Any]) -> Result | None:
    """Returns the result of an experiment in a file, None if there is none; raises if it has other settings."""
    if not file.exists():
        return None
    found, own = Result.load(file), Setting(**setting)
    now = {key: getattr(own, key) for key in RECORDED}
    there = {key: found.subject.settings.get(key) for key in RECORDED}
    fingerprint = Checkpoint(own.model).fingerprint
    if (found.name, found.subject.fingerprint, there) != (name, fingerprint, now):
        raise InputError(
            f"{file} has the result of another experiment, model or setting ({found.name}, {found.subject.model}, "
            f"{there}); give another --out, or leave out --resume to write it again"
        )
    return found


def _to_send(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a setting with the text of a path as a corpus, which travels to machines that do not have the path."""
    text = setting.get("text")
    if text is None or text in EMBEDDED:
        return dict(setting)
    corpus = corpus_for(Checkpoint(setting["model"]), languages=setting.get("languages"), text=text)
    return {**setting, "text": corpus, "languages": None}
