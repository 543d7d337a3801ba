"""The file of Scores: JSON, one column of the documents per line, read back with every key and number checked."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbits.checks import as_array, finite_array, nonnegative_array, one_of, sequence, whole
from fairbits.errors import InputError, printable
from fairbits.version import __version__

if TYPE_CHECKING:
    from fairbits.measure.scores.scores import Scores

SCHEMA = "fairbits.scores/1"
KEYS = ("schema", "fairbits", "quantized", "reference", "question", "languages", "kl_p99", "notes", "documents")
MODEL = {"target": str, "fingerprint": str, "size_bytes": int}
QUESTION = {
    "task": str,
    "corpus": str,
    "split": str,
    "parallel": bool,
    "hashes": dict,
    "tokens": int,
    "sequence": int,
    "seed": int,
}
NUMBERS = ("tokens", "bytes", "nll_reference", "nll_quantized", "kl", "flips")
COLUMNS = ("lang", "document", *NUMBERS)
TASKS = ("causal", "masked", "completion")


def as_bytes(scores: "Scores") -> bytes:
    """Returns the content of the file of some scores."""
    data = {
        "schema": SCHEMA,
        "fairbits": __version__,
        **{name: asdict(getattr(scores, name)) for name in ("quantized", "reference", "question")},
        "languages": list(scores.languages),
        "kl_p99": dict(scores.kl_p99),
        "notes": list(scores.notes),
        "documents": {name: getattr(scores.documents, name).tolist() for name in COLUMNS},
    }
    return "\n".join(map(printable, _lines(data, nested=True))).encode() + b"\n"


def parsed(path: str | Path) -> dict[str, Any]:
    """Returns the checked content of a file of scores; arrays where Scores has arrays."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise InputError(f"{path} is no file of scores ({problem}); write one with fairbits evaluate --out") from None
    found = data.get("schema") if isinstance(data, dict) else type(data).__name__
    if found != SCHEMA:
        raise InputError(
            f"{path} has the schema {found!r:.60}; it must be {SCHEMA}: write it with fairbits evaluate --out"
        )
    try:
        return _checked(data)
    except (InputError, TypeError) as problem:
        raise InputError(f"{path} is damaged: {problem}; write it again with fairbits evaluate --out") from None


def _lines(data: dict[str, Any], *, nested: bool) -> list[str]:
    """Returns an object line by line: what it holds is one line each, an object within it one line per entry."""
    lines, last = ["{"], len(data) - 1
    for i, (key, value) in enumerate(data.items()):
        own = _lines(value, nested=False) if nested and isinstance(value, dict) and value else [_compact(value)]
        first, *rest = own
        lines += [f" {_compact(key)}: {first}", *(f" {line}" for line in rest)]
        lines[-1] += "" if i == last else ","
    return [*lines, "}"]


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _checked(data: dict[str, Any]) -> dict[str, Any]:
    _same_keys("the file", data, KEYS)
    for name, kinds in (("quantized", MODEL), ("reference", MODEL), ("question", QUESTION)):
        _same_kinds(name, data[name], kinds)
    one_of("task", data["question"]["task"], TASKS)
    languages = tuple(map(_text, sequence("languages", data["languages"])))
    documents = _documents(data["documents"], languages)
    _same_keys("kl_p99", data["kl_p99"], languages)
    finite_array("kl_p99", list(data["kl_p99"].values()))
    return {
        **{name: data[name] for name in ("quantized", "reference", "question", "kl_p99")},
        "languages": languages,
        "notes": tuple(map(_text, sequence("notes", data["notes"]))),
        "documents": documents,
    }


def _documents(columns: Any, languages: tuple[str, ...]) -> dict[str, Any]:
    _same_keys("documents", columns, COLUMNS)
    lang = [_text(code) for code in sequence("lang", columns["lang"])]
    if set(lang) != set(languages):
        raise InputError("the documents are not those of the languages")
    numbers = [whole("document", number, least=0) for number in sequence("document", columns["document"])]
    table = {"lang": as_array("lang", lang), "document": np.array(numbers, dtype=np.int64)}
    table |= {name: nonnegative_array(name, columns[name], ndim=1) for name in NUMBERS}
    for name, column in table.items():
        if len(column) != len(lang):
            raise InputError(f"{name} has {len(column)} entries and lang has {len(lang)}")
    return table


def _same_keys(name: str, found: Any, expected: tuple[str, ...]) -> None:
    if not isinstance(found, dict):
        raise InputError(f"{name} is a {type(found).__name__}, not an object")
    odd = sorted(set(found) ^ set(expected))
    if odd:
        what = "unknown" if odd[0] in found else "missing"
        raise InputError(f"{name} has keys that are not those of {SCHEMA}: {odd[0]!r:.60} is {what}")


def _same_kinds(name: str, found: Any, kinds: dict[str, type]) -> None:
    _same_keys(name, found, tuple(kinds))
    for key, kind in kinds.items():
        if type(found[key]) is not kind:  # a bool is an int
            raise InputError(f"{key} of {name} is {found[key]!r:.60}, no {kind.__name__}")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InputError(f"{value!r:.60} is no text")
    return value
