"""The files of a run of lm-eval: `samples_TASK_DATE.jsonl` of every task, and `results_DATE.json` of all.

A line of samples has a document and its prompts, often several kB; the scores and hashes are 400 bytes. lm-eval writes
them last, so that only the end of a line is read. Filter and metrics come before the hashes and are the same in all
lines, so that they are checked once; scores that occurred before are not parsed again, as most items are right or
wrong. A line in another order is parsed as a whole.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fairbits.core.errors import InputError, count_of
from fairbits.core.memory import JSON_LEVELS, LINE_BYTES
from fairbits.core.records import (
    Count,
    Digest,
    Number,
    ShortName,
    check_record,
    check_within,
    distinct,
    parse_object,
    read_object,
)

SAMPLES = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")
HOW = "lm_eval --log_samples --output_path DIR writes them"
NAMED = 5  # names that an error lists


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
    """Returns names for an error, which must not become as long as a file."""
    first = list(names)
    return ", ".join(first[:most]) + (" …" if len(first) > most else "")


def find_run(directory: str | Path) -> RunFiles:
    """Returns the newest samples of every task in a directory, or in its one subdirectory (a model) that has some."""
    root = Path(directory)
    if not root.is_dir():
        raise InputError(f"{root} is not a directory; it must contain the samples of a run: {HOW}")
    files = [(path, match) for path in sorted(root.rglob("samples_*.jsonl")) if (match := SAMPLES.fullmatch(path.name))]
    homes = sorted({path.parent for path, _ in files})
    if not homes:
        raise InputError(f"{root} has no file samples_TASK_DATE.jsonl; {HOW}")
    if len(homes) > 1:
        shown = listed(str(home.relative_to(root)) for home in homes)
        raise InputError(f"{root} has samples of {len(homes)} runs ({shown}); give the directory of one of them")
    newest: dict[str, tuple[str, Path]] = {}
    for path, match in files:
        newest[match["task"]] = max(newest.get(match["task"], ("", path)), (match["date"], path))
    older = len(files) - len(newest)
    notes = [f"{root}: {count_of(older, 'older file')} of samples ignored, the newest of each task is used"]
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
    keys = {field.metadata.get("alias", field.name) for field in fields(Results)}
    try:
        return check_record(Results, {key: value for key, value in content.items() if key in keys})
    except InputError as problem:
        raise InputError(f"{path}: {problem}; {remedy}") from None


HASHES = ("doc_hash", "prompt_hash", "target_hash")
FIRST = re.compile(rb'\{"doc_id": (\d{1,18}),')
END = b', "filter": '  # begins the end of a line. In text of a document its quotation marks would be escaped.
METRICS = b', "metrics": '
HASHED = re.compile(b", ".join(rb'"%b": "([0-9a-f]{64})"' % name.encode() for name in HASHES))
BUFFER = 2**20
KNOWN = 1000  # ends of lines that are remembered for each file, before and after the hashes
WHOLE = 20
"""Lines of a file that are parsed as a whole, to refuse files in other encodings; of the others, only the end."""
ADVICE = "it must be a file of samples as lm-eval writes it: run lm-eval again"

Value = float | tuple[float, float]
"""What an item scored; a pair is a log-likelihood and the number of bytes or words that it is of."""
Written = bool | Number | tuple[Number, Number]  # the same in a file: right and wrong may be true and false
Hashes = tuple[str, str, str]  # In the order of HASHES
Items = dict[int, tuple[Hashes, dict[str, Any]]]  # by document id: the hashes, and the scores by metric
Endings = dict[bytes, tuple[str, tuple[str, ...], dict[bytes, dict[str, Any]]]]
"""By what the end of a line says before its hashes: filter, metrics, and by what follows the hashes the scores."""


@dataclass(frozen=True)
class Line:
    """What every line must say of its item; `scores` are the names of all other keys, which include the metrics."""

    doc_id: Count
    filter: ShortName
    metrics: tuple[ShortName, ...]
    doc_hash: Digest
    prompt_hash: Digest
    target_hash: Digest
    scores: tuple[str, ...]

    def __post_init__(self) -> None:
        check_within("metrics", self.metrics, "the line", self.scores)


LINE_KEYS = frozenset(item.name for item in fields(Line)) - {"scores"}


@dataclass(frozen=True)
class TaskSamples:
    """The items of a task by filter and document id, with their scores by metric."""

    task: str
    path: Path
    filters: dict[str, Items]

    @property
    def metrics(self) -> dict[str, list[str]]:
        metrics = {}
        for name, items in self.filters.items():
            (_, first), *rest = items.values()
            metrics[name] = [metric for metric in first if all(metric in scores for _, scores in rest)]
        return metrics

    def values(self, filter_name: str, metric: str) -> dict[int, Value]:
        written = {str(i): scores.get(metric) for i, (_, scores) in self.filters[filter_name].items()}
        try:
            values = check_record(dict[str, Written], written)
        except InputError as problem:
            raise InputError(
                f"{metric} in {self.path}: document {problem}; choose another --metric, or run lm-eval again"
            ) from None
        return {
            int(i): (float(value[0]), float(value[1])) if isinstance(value, tuple) else float(value)
            for i, value in values.items()
        }


def read_samples(task: str, path: Path) -> TaskSamples:
    """Returns the samples of a task; refuses lines that cannot be read, and an item that occurs twice."""
    filters: dict[str, Items] = {}
    endings: Endings = {}
    for number, line in _lines(path):
        document, name, hashes, scores = _item(line, endings, path=path, number=number)
        items = filters.setdefault(name, {})
        if document in items:
            raise InputError(
                f"{path}, line {number}: document {document} occurs twice (filter {name}); each must occur once: two "
                "runs may have written to this file, run lm-eval again"
            )
        items[document] = hashes, scores
    if not filters:
        raise InputError(f"{path} is empty; {ADVICE}")
    return TaskSamples(task, path, filters)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb", buffering=BUFFER) as file:
            number = 0
            while line := file.readline(LINE_BYTES + 1):
                number += 1
                if len(line) > LINE_BYTES:
                    raise InputError(f"{path}, line {number} is longer than {LINE_BYTES:,} bytes; {ADVICE}")
                if not line.isspace():
                    yield number, line
    except OSError as problem:
        raise InputError(f"{path} cannot be read ({problem.strerror}); {ADVICE}") from None


def _item(line: bytes, endings: Endings, *, path: Path, number: int) -> tuple[int, str, Hashes, dict[str, Any]]:
    """Returns the document of a line, its filter, hashes and scores; `endings` are the ends of earlier lines."""
    first, at = FIRST.match(line), line.rfind(END)
    hashed = HASHED.search(line, at) if at >= 0 else None
    if first is None or hashed is None:
        return _parsed(line, path, number)
    before, after = line[at : hashed.start()], line[hashed.end() :]
    if before in endings and number > WHOLE:
        name, metrics, seen = endings[before]
        scores = seen.get(after) or _scores(after, metrics)
        if scores is not None:
            if len(seen) < KNOWN:
                seen[after] = scores
            document, prompt, target = hashed.groups()
            return int(first[1]), name, (document.decode(), prompt.decode(), target.decode()), scores
    item = _parsed(line, path, number)
    if METRICS in before and len(endings) < KNOWN:  # without it, the end alone does not say what the line is
        endings.setdefault(before, (item[1], tuple(item[3]), {}))
    return item


def _scores(after: bytes, metrics: tuple[str, ...]) -> dict[str, Any] | None:
    """Returns what follows the hashes, by metric; None if the line must be parsed as a whole, to be read or refused."""
    if not after.startswith(b", ") or after.count(b"[") + after.count(b"{") > JSON_LEVELS:
        return None
    try:
        record = json.loads("{" + after[2:].decode("utf-8"), object_pairs_hook=distinct)
    except ValueError:
        return None
    if LINE_KEYS & record.keys() or not record.keys() >= set(metrics):
        return None
    return {name: record[name] for name in metrics}


def _parsed(line: bytes, path: Path, number: int) -> tuple[int, str, Hashes, dict[str, Any]]:
    cut = " (the file ends in the middle of it)" if not line.endswith(b"\n") else ""
    source = f"{path}, line {number}{cut}"
    record = _parse_end(line, source) if number > WHOLE else None
    if record is None:
        record = parse_object(line, source, finite=False, remedy=ADVICE)
    try:
        keys = {name: record[name] for name in LINE_KEYS & record.keys()}
        item = check_record(Line, keys | {"scores": [name for name in record if name not in LINE_KEYS]})
    except InputError as problem:
        raise InputError(f"{source}: {problem}; {ADVICE}") from None
    hashes = item.doc_hash, item.prompt_hash, item.target_hash
    return item.doc_id, item.filter, hashes, {metric: record[metric] for metric in item.metrics}


def _parse_end(line: bytes, source: str) -> dict[str, Any] | None:
    """Returns the end of a line as a record; None if it is not in the order that lm-eval writes."""
    first, at = FIRST.match(line), line.rfind(END)
    if first is None or at < 0:
        return None
    record = parse_object(b"{" + line[at + 2 :], source, finite=False, remedy=ADVICE)
    record["doc_id"] = int(first[1])
    return record if "metrics" in record and "target_hash" in record else None
