"""The files of a run of lm-eval: `samples_TASK_DATE.jsonl` of every task, and `results_DATE.json` of all."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fairbits.errors import InputError, count_of
from fairbits.fields import ShortName
from fairbits.records import check_record, read_object

SAMPLES = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")
HOW = "lm_eval --log_samples --output_path DIR writes them"
NAMED = 5
"""Names that an error lists."""


@dataclass(frozen=True)
class Results:
    """What is read of `results_*.json`, by task where it is of tasks; the file has more, and old ones have less."""

    versions: dict[str, Any] = field(default_factory=dict)
    n_shot: dict[str, Any] = field(default_factory=dict, metadata={"alias": "n-shot"})
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    higher_is_better: dict[str, dict[str, bool | None]] = field(default_factory=dict)
    chat_template_sha: str | None = None
    system_instruction_sha: str | None = None
    lm_eval_version: ShortName | None = None
    transformers_version: ShortName | None = None


@dataclass(frozen=True)
class RunFiles:
    """The files of one run: where it is, and of each task the samples and the results, None without a file."""

    directory: Path
    samples: dict[str, Path]
    results: dict[str, Results | None]
    notes: tuple[str, ...] = ()


def listed(names: Iterable[str], most: int = NAMED) -> str:
    """Returns names for an error, which must not become as long as a file.

    >>> listed("abc", 2)
    'a, b …'
    """
    first = list(names)
    return ", ".join(first[:most]) + (" …" if len(first) > most else "")


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
        shown = listed(str(home.relative_to(root)) for home in homes)
        raise InputError(f"{root} holds samples of {len(homes)} runs ({shown}); give the directory of one of them")
    newest: dict[str, tuple[str, Path]] = {}
    for path, match in found:
        newest[match["task"]] = max(newest.get(match["task"], ("", path)), (match["date"], path))
    older = len(found) - len(newest)
    notes = [f"{root}: {count_of(older, 'older file')} of samples left aside, the newest of each task is used"]
    dates = {date for date, _ in newest.values()}
    results = {date: _results(homes[0] / f"results_{date}.json") for date in dates}
    missing = sorted(task for task, (date, _) in newest.items() if results[date] is None)
    unknown = f"{root}: no results_*.json for {listed(missing)}; versions of tasks are not compared"
    return RunFiles(
        homes[0],
        {task: path for task, (_, path) in sorted(newest.items())},
        {task: results[date] for task, (date, _) in newest.items()},
        (*(notes if older else ()), *([unknown] if missing else ())),
    )


def _results(path: Path) -> Results | None:
    if not path.exists():
        return None
    remedy = "it must be the results file of lm-eval: run lm-eval again"
    content = read_object(path, finite=False, remedy=remedy)
    keys = {each.metadata.get("alias", each.name) for each in fields(Results)}
    try:
        return check_record(Results, {key: each for key, each in content.items() if key in keys})
    except InputError as problem:
        raise InputError(f"{path}: {problem}; {remedy}") from None
