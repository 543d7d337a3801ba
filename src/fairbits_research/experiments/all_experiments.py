"""Every experiment by name, run in this process, which keeps the model between them, or by a Ray cluster."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fairbits.api.trial_tasks import task_resources
from fairbits.comparison.plan_trial import corpus_for
from fairbits.core.checks import one_of
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.core.task_pool import TaskPool
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.reading import EMBEDDED
from fairbits_research.experiments.alignment import alignment
from fairbits_research.experiments.bit_threshold import bit_threshold
from fairbits_research.experiments.bounds_experiment import bounds
from fairbits_research.experiments.gateway_assumptions import gateway_assumptions
from fairbits_research.experiments.gateway_layers import gateway_layers
from fairbits_research.experiments.laboratory import RECORDED, Laboratory, Setting
from fairbits_research.experiments.layer_ablation import layer_ablation
from fairbits_research.experiments.mediation_experiment import mediation
from fairbits_research.experiments.null_controls import null_controls
from fairbits_research.experiments.outliers_experiment import outliers
from fairbits_research.experiments.own_calibration import calibration_language, own_thresholds
from fairbits_research.experiments.price_of_sharing import price_of_sharing
from fairbits_research.experiments.probes import probes
from fairbits_research.experiments.resource_ratio import resource_ratio
from fairbits_research.experiments.result import EVERY, EXPERIMENTS, Result
from fairbits_research.experiments.training_choices import models_in, training_choices
from fairbits_research.experiments.trait_experiments import correlations, redundancy, training_data

TRAINED = "training-choices"
"""The experiment that needs models trained for it."""
FUNCTIONS: Mapping[str, Callable[[Laboratory], Result]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        *(outliers, correlations, bit_threshold, layer_ablation, training_data, own_thresholds, gateway_layers),
        *(gateway_assumptions, alignment, probes),
        *(redundancy, resource_ratio, mediation, bounds, calibration_language, price_of_sharing, null_controls),
    )
}


def experiments_named(name: str) -> list[str]:
    """Returns the experiment with this name; for "all" every one that needs no models trained for it."""
    if name == EVERY:
        return [experiment for experiment in EXPERIMENTS if experiment != TRAINED]
    return [one_of("the experiment", name, (*EXPERIMENTS, EVERY))]


def run_experiment(name: str, laboratory: Laboratory, *, models: str | Path | None = None) -> Result:
    """Returns the result of an experiment; `models` is the directory with the models of training-choices."""
    one_of("the experiment", name, tuple(EXPERIMENTS))
    if (name == TRAINED) != (models is not None):
        raise InputError(
            f"{TRAINED} needs models and no other experiment takes them; give the directory of training/arms.py"
        )
    return FUNCTIONS[name](laboratory) if models is None else training_choices(laboratory, models_in(models))


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
    result, wanted = Result.load(file), Setting(**setting)
    now = wanted.recorded
    there = {key: value for key in RECORDED if (value := result.subject.settings.get(key)) is not None}
    fingerprint = Checkpoint(wanted.model).fingerprint
    if (result.name, result.subject.fingerprint, there) != (name, fingerprint, now):
        raise InputError(
            f"{file} has the result of another experiment, model or setting ({result.name}, {result.subject.model}, "
            f"{there}); give another --out, or leave out --resume to write it again"
        )
    return result


def _to_send(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a setting with the text of a path as a corpus, which travels to machines that do not have the path."""
    text = setting.get("text")
    if text is None or text in EMBEDDED:
        return dict(setting)
    corpus = corpus_for(Checkpoint(setting["model"]), languages=setting.get("languages"), text=text)
    return {**setting, "text": corpus, "languages": None}
