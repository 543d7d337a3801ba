"""The files of a run of lm-eval: `samples_TASK_DATE.jsonl` of every task, and `results_DATE.json` of all."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbits.errors import InputError, count_of
from fairbits.records import read_object

SAMPLES = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")
HOW = "lm_eval --log_samples --output_path DIR writes them"
NAMED = 5
"""Names that an error lists."""


@dataclass(frozen=True)
class RunFiles:
    """The files of one run: where it is, the samples of each task, and what `results_*.json` says of each task."""

    directory: Path
    samples: dict[str, Path]
    results: dict[str, dict[str, Any]]
    notes: tuple[str, ...] = ()

    def of(self, task: str, part: str) -> Any:
        """Returns what the results say of a task in one of their parts, such as "versions"; None if nothing."""
        found = self.results.get(task, {}).get(part)
        return found.get(task) if isinstance(found, dict) else None

    def object_of(self, task: str, part: str) -> dict[str, Any]:
        """Returns the same of a part that holds an object for each task; empty if it says nothing."""
        found = self.of(task, part)
        if found is not None and not isinstance(found, dict):
            raise InputError(
                f"results_*.json in {self.directory} has {part}.{task} = {found!r:.60}; it must be an object: run "
                "lm-eval again"
            )
        return found or {}


def find_run(directory: str | Path) -> RunFiles:
    """Returns the newest samples of every task in a directory, or in its one subdirectory that has some.

    lm-eval writes into a subdirectory named after the model, and adds files when it runs again.
    """
    root = Path(directory)
    if not root.is_dir():
        raise InputError(f"{root} is not a directory; it must hold the samples of a run: {HOW}")
    found = [(path, match) for path in sorted(root.rglob("samples_*.jsonl")) if (match := SAMPLES.fullmatch(path.name))]
    homes = sorted({path.parent for path, _ in found})
    if not homes:
        raise InputError(f"{root} holds no file samples_TASK_DATE.jsonl; {HOW}")
    if len(homes) > 1:
        shown = ", ".join(str(home.relative_to(root)) for home in homes[:NAMED])
        raise InputError(f"{root} holds samples of {len(homes)} runs ({shown}); give the directory of one of them")
    newest: dict[str, tuple[str, Path]] = {}
    for path, match in found:
        newest[match["task"]] = max(newest.get(match["task"], ("", path)), (match["date"], path))
    older = len(found) - len(newest)
    notes = [f"{root}: {count_of(older, 'older file')} of samples left aside, the newest of each task is used"]
    dates = {date for date, _ in newest.values()}
    results = {date: _results(homes[0] / f"results_{date}.json") for date in dates}
    missing = sorted(task for task, (date, _) in newest.items() if not results[date])
    unknown = f"{root}: no results_*.json for {', '.join(missing[:NAMED])}; versions of tasks are not compared"
    return RunFiles(
        homes[0],
        {task: path for task, (_, path) in sorted(newest.items())},
        {task: results[date] for task, (date, _) in newest.items()},
        (*(notes if older else ()), *([unknown] if missing else ())),
    )


def _results(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    return read_object(path, finite=False, remedy="it must be the results file of lm-eval: run lm-eval again")
