"""The samples of one task: what every item scored, and the hashes of its document, prompt and target.

A line holds a document and its prompts, often several kB; the scores and hashes are 400 bytes. lm-eval writes them
last, so that only the end of a line is read, and an end that differs from an earlier one in nothing but its hashes is
not parsed again: most items are right or wrong. A line in another order is parsed as a whole.
"""

import codecs
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbits.errors import InputError
from fairbits.memory import LINE_BYTES

HASHES = ("doc_hash", "prompt_hash", "target_hash")
KINDS = (("doc_id", int), ("filter", str), ("metrics", list), *((name, str) for name in HASHES))
"""What every line must have."""
FIRST = re.compile(rb'\{"doc_id": (\d{1,18}),')
END = b', "filter": '
"""Begins the end of a line. In text of a document its quotation marks would be escaped."""
METRICS = b', "metrics": '
HASHED = re.compile(b", ".join(rb'"%b": "([0-9a-f]{64})"' % name.encode() for name in HASHES))
BUFFER = 2**20
KNOWN = 1000
"""Ends of lines that are remembered for each file."""
DECODED = 20
"""Lines of a file that are decoded as a whole, to refuse files in other encodings; of the others, only the end."""
ADVICE = "it must be a file of samples as lm-eval writes it: run lm-eval again"

Value = float | tuple[float, float]
"""What an item scored; a pair is a log-likelihood and the number of bytes or words that it is of."""
Hashes = tuple[str, str, str]
"""In the order of HASHES."""
Items = dict[int, tuple[Hashes, dict[str, Any]]]
"""By document id: the hashes, and the scores by metric."""
Ends = dict[tuple[bytes, bytes], tuple[str, dict[str, Any]]]
"""By what the end of a line says before and after its hashes: the filter, and the scores by metric."""


@dataclass(frozen=True)
class TaskSamples:
    """The items of a task by filter and document id, with their scores by metric."""

    task: str
    path: Path
    filters: dict[str, Items]

    @property
    def metrics(self) -> dict[str, list[str]]:
        """The metrics of each filter, in the order of lm-eval: those that all items have."""
        found = {}
        for name, items in self.filters.items():
            (_, first), *others = items.values()
            found[name] = [metric for metric in first if all(metric in scores for _, scores in others)]
        return found

    def values(self, filter_name: str, metric: str) -> dict[int, Value]:
        """Returns what every item scored."""
        items = self.filters[filter_name]
        return {i: self._value(i, metric, scores.get(metric)) for i, (_, scores) in items.items()}

    def _value(self, document: int, metric: str, given: Any) -> Value:
        pair = given if isinstance(given, list) and len(given) == 2 else [given]
        if not all(isinstance(each, int | float) and math.isfinite(each) for each in pair):
            raise InputError(
                f"{metric} of document {document} in {self.path} is {given!r:.60}; it must be a finite number: choose "
                "another --metric, or run lm-eval again"
            )
        return (float(pair[0]), float(pair[1])) if len(pair) == 2 else float(given)


def read_samples(task: str, path: Path) -> TaskSamples:
    """Returns the samples of a task; refuses lines that cannot be read, and an item that occurs twice."""
    filters: dict[str, Items] = {}
    known: Ends = {}
    for number, line in _lines(path):
        document, name, hashes, scores = _item(line, known, path=path, number=number)
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
    """Yields the lines of a file that are not blank, with their numbers."""
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


def _item(line: bytes, known: Ends, *, path: Path, number: int) -> tuple[int, str, Hashes, dict[str, Any]]:
    """Returns the document of a line, its filter, hashes and scores; `known` has the ends of the lines before it."""
    first, at = FIRST.match(line), line.rfind(END)
    hashed = HASHED.search(line, at) if at >= 0 else None
    if first is None or hashed is None:
        return _parts(_record(line, path, number))
    end = line[at : hashed.start()], line[hashed.end() :]
    if end in known and number > DECODED:
        name, scores = known[end]
        document, prompt, target = hashed.groups()
        return int(first[1]), name, (document.decode(), prompt.decode(), target.decode()), scores
    found = _parts(_record(line, path, number))
    if METRICS in end[0] and len(known) < KNOWN:  # without it, the end alone does not say what the line is
        known[end] = found[1], found[3]
    return found


def _parts(record: dict[str, Any]) -> tuple[int, str, Hashes, dict[str, Any]]:
    """Returns what `_item` returns, of a record that has no fault."""
    hashes = record["doc_hash"], record["prompt_hash"], record["target_hash"]
    return record["doc_id"], record["filter"], hashes, {metric: record[metric] for metric in record["metrics"]}


def _record(line: bytes, path: Path, number: int) -> Any:
    """Returns what a line says of its item, without its text."""
    try:
        if number <= DECODED:
            codecs.utf_8_decode(line)  # raises if it is in another encoding
        record = _end_of(line)
        if record is None:
            record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as problem:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        cut = " (the file ends in the middle of it)" if not line.endswith(b"\n") else ""
        raise InputError(f"{path}, line {number}{cut} is not valid JSON ({problem}); {ADVICE}") from None
    fault = _fault(record)
    if fault:
        raise InputError(f"{path}, line {number}: {fault}; {ADVICE}")
    return record


def _end_of(line: bytes) -> Any:
    """Returns the end of a line as a record; None if it is not in the order that lm-eval writes."""
    first, at = FIRST.match(line), line.rfind(END)
    if first is None or at < 0:
        return None
    record: dict[str, Any] = json.loads("{" + line[at + 2 :].decode("utf-8"))
    record["doc_id"] = int(first[1])
    return record if "metrics" in record and "target_hash" in record else None


def _fault(record: Any) -> str:
    """Returns what is wrong with a record; "" if nothing is."""
    if not isinstance(record, dict):
        return f"it holds a JSON {type(record).__name__}, not an object {{…}}"
    for name, kind in KINDS:
        if type(record.get(name)) is not kind:
            return f"{name} is {record[name]!r:.40}" if name in record else f"{name} is missing"
    for name in record["metrics"]:
        if not isinstance(name, str) or name not in record:
            return f"metrics names {name!r:.40}, which is missing"
    return ""
