"""Runs of many models with the same settings: one directory for each, in this process or on a Ray cluster."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from socket import gethostname
from typing import Any

from fairbits.api.fit import existing_directory
from fairbits.api.run import Finished, FinishedRun, run
from fairbits.api.run.run_settings import EMBEDDED, recorded_device
from fairbits.api.trial_tasks import task_device, task_resources
from fairbits.core.errors import FairbitsError, InputError
from fairbits.core.files import RUN_FILE, temporary_name
from fairbits.core.progress import Progress, within
from fairbits.core.task_pool import Cluster, TaskPool, open_pool
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import AUTO
from fairbits.text.corpus import Corpus
from fairbits.text.reading import EMBEDDED as EMBEDDED_TEXTS
from fairbits.text.reading import open_corpus

DEMO_NAME = "demo"


@dataclass(frozen=True, eq=False)
class RunTask:
    """One model, None for the demonstration, with the directory and the device of its run."""

    model: Checkpoint | None
    out: Path
    device: str


@dataclass(frozen=True, eq=False)
class RunWork:
    """What the runs share: the options of `run`. A cluster must see `mark`, a file in the directory to write."""

    options: Mapping[str, Any]
    finished: Finished | None = None
    several: bool = False
    mark: Path | None = None

    @contextmanager
    def open(self, progress: Progress | None = None) -> Iterator[Callable[[RunTask, Progress | None], FinishedRun]]:
        """Yields the function that does one run; raises if this machine does not see the directory."""
        del progress  # nothing is done yet
        if self.mark is not None and not self.mark.is_file():
            raise InputError(
                f"{gethostname()} does not see the files of {self.mark.parent}; a run writes its model where it is "
                "made, so --out must be in a directory that all machines of the cluster share"
            )

        def do(task: RunTask, progress: Progress | None) -> FinishedRun:
            name = task.out.name
            return run(
                task.model,
                out=task.out,
                device=task.device,
                progress=within(progress, name) if self.several else progress,
                finished=_within(self.finished, name) if self.several else self.finished,
                **self.options,
            )

        yield do


@dataclass(frozen=True, eq=False)
class FinishedRuns:
    """The results of many runs by the name of their directory, and why others failed."""

    runs: Mapping[str, FinishedRun]
    failed: Mapping[str, FairbitsError] = field(default_factory=dict)


def run_many(
    models: Sequence[str | Path | Checkpoint | None],
    *,
    out: str | Path = "fairbits-run",
    device: str = AUTO,
    ray: str | Cluster | None = None,
    progress: Progress | None = None,
    finished: Finished | None = None,
    **options: Any,
) -> FinishedRuns:
    """Returns the runs of several models, each in its directory within `out`; one model is run in `out`.

    `options` are those of `run`, the same for all. A run that fails does not stop the others. The same call continues
    runs that were interrupted. On a Ray cluster, each model is a task. Then `out` must be in a directory that all
    machines share, because the quantized models are written there; a model must be at the same path on all of them.
    """
    directory = Path(out) if ray is None else Path(os.path.abspath(out))
    opened = [Checkpoint(model) if isinstance(model, str | Path) else model for model in models]
    places = run_directories([None if model is None else model.target for model in opened], directory)
    if ray is not None:
        options |= _text_to_send(options.get("text"), options.get("languages"))
    runs: dict[str, FinishedRun] = {}
    failed: dict[str, FairbitsError] = {}
    with open_pool(ray) as pool:
        tasks = {
            name: RunTask(model, place, _device(device, place, pool))
            for (name, place), model in zip(places.items(), opened, strict=True)
        }
        needs = {
            name: task_resources([task.model or Checkpoint(EMBEDDED)], task.device, pool)
            for name, task in tasks.items()
        }
        with _shared(directory, pool) as mark:
            # a function that prints does not travel; a cluster shows its tasks in its own way
            work = RunWork(options, finished if pool.cluster is None else None, len(tasks) > 1, mark)
            pool.run(
                tasks,
                work,
                resources=needs,
                on_result=runs.__setitem__,
                on_error=failed.__setitem__ if len(tasks) > 1 else None,
                progress=progress,
            )
    return FinishedRuns({name: runs[name] for name in places if name in runs}, failed)


def run_directories(targets: Sequence[str | None], out: Path) -> dict[str, Path]:
    """Returns the directory of each run by its name, which is the name of the model."""
    if not targets:
        raise InputError("models is empty; give at least one")
    names = [DEMO_NAME if target is None else _name(target) for target in targets]
    if len(names) == 1:
        return {names[0]: out}
    if (out / RUN_FILE).exists():
        raise InputError(f"{out} has the run of one model; give another directory with --out for several")
    for i, name in enumerate(names):
        if name in names[:i]:
            first = targets[names.index(name)]
            raise InputError(
                f"{first} and {targets[i]} would both be written to {out / name}; give each model once, and run models "
                "of the same name separately"
            )
    return {name: out / name for name in names}


def _name(target: str) -> str:
    """Returns the name of the directory for a model: the last part of its path, or its id on the Hub."""
    path = os.path.abspath(os.path.expanduser(target))
    name = os.path.basename(path).removesuffix(".gguf") if os.path.exists(path) else target
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.") or "model"


def _text_to_send(text: str | Path | Corpus | None, languages: Any) -> dict[str, Any]:
    """Returns the text of a path as a corpus, which travels to machines that do not have the path."""
    if text is None or isinstance(text, Corpus) or (isinstance(text, str) and text in EMBEDDED_TEXTS):
        return {}
    return {"text": open_corpus(text, languages), "languages": None}


def _within(finished: Finished | None, name: str) -> Finished | None:
    return None if finished is None else lambda what, seconds: finished(f"{name}: {what}", seconds)


def _device(device: str, place: Path, pool: TaskPool) -> str:
    """Returns the device of a run; on a cluster, that of the run which the directory has, unless one is requested."""
    if pool.cluster is None:
        return device
    earlier = recorded_device(place) if device == AUTO else None
    return task_device(device, pool) if earlier is None else earlier.partition(":")[0]


@contextmanager
def _shared(directory: Path, pool: TaskPool) -> Iterator[Path | None]:
    """Yields a file in the directory by which the machines of a cluster recognize it; None without a cluster."""
    if pool.cluster is None:
        yield None
        return
    place = existing_directory(directory)
    mark = temporary_name(place / "shared")  # as files are called that the next run in the directory removes
    try:
        mark.touch()
    except OSError as problem:
        reason = f"{place} cannot be written ({problem.strerror})"
        raise InputError(f"{reason}; give another directory with --out") from None
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)
