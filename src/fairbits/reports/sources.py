"""What a report is made from: scores, and what else was saved beside them."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fairbits.errors import InputError
from fairbits.measure.audit import audit as risk_audit
from fairbits.measure.scores.scores import Scores
from fairbits.quantize.plan import Plan
from fairbits.stats import Contrast

Json = Mapping[str, Any]
LARGEST = 1e300
"""A whole number in JSON may be larger than any float."""
AUDIT, SWEEP, RUN = risk_audit.SCHEMA, "fairbits.sweep/1", "fairbits.run/1"
WRITTEN_BY = {AUDIT: "fairbits audit --out", SWEEP: "fairbits sweep --out", RUN: "fairbits run"}


@dataclass(frozen=True, eq=False)
class Method:
    """One way to quantize the model: how it is called, and what it cost every language."""

    name: str
    scores: Scores


@dataclass(frozen=True, eq=False)
class Sources:
    """Everything that a report may show; what is missing is left out of it, and it says so.

    `methods` begin with the model that the report is about; the second, if there is one, is what it is held to.
    `audit` and `sweep` are the content of their files, `run` that of a run's settings. `files` are the SHA-256 of all.
    """

    methods: tuple[Method, ...]
    plan: Plan | None = None
    audit: Json | None = None
    sweep: Json | None = None
    run: Json | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks that all of it speaks of one model and one text."""
        own = self.methods[0].scores
        for each in self.methods:
            _check_sizes(each)
        for other in self.methods[1:]:
            own.check_same_text(other.scores)
            _check_same(own, other.scores.reference.fingerprint, other.name)
        if self.plan is not None:
            _check_same(own, self.plan.fingerprint, "the plan")
        if self.audit is not None:
            _check_same(own, part(self.audit, "model", "fingerprint"), "the audit")
        if self.sweep is not None:
            _check_same(own, part(self.sweep, "fingerprint"), "the sweep")

    @property
    def after(self) -> Scores:
        """The scores of the model that the report is about."""
        return self.methods[0].scores

    @property
    def before(self) -> Scores | None:
        """The scores that it is held to."""
        return self.methods[1].scores if len(self.methods) > 1 else None

    @cached_property
    def contrast(self) -> Contrast | None:
        """What every language loses more than under what the model is held to, drawn once."""
        return None if self.before is None else self.after.contrast(self.before)


def read_json(path: str | Path, schema: str) -> dict[str, Any]:
    """Returns the content of a file that must have a schema; all numbers in it are finite."""
    command = WRITTEN_BY[schema]
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"), parse_float=_finite, parse_constant=_finite)
    except (OSError, ValueError, RecursionError) as problem:
        raise InputError(f"{path} cannot be read ({problem}); write it with {command}") from None
    found = data.get("schema") if isinstance(data, dict) else type(data).__name__
    if found != schema:
        raise InputError(f"{path} has the schema {found!r:.60}; it must be {schema}: write it with {command}")
    return dict(data)


def digest(path: str | Path) -> str:
    """Returns the SHA-256 of a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def part(data: Json, *keys: str | int) -> Any:
    """Returns what lies below some keys of a file's content.

    >>> part({"model": {"target": "m"}}, "model", "target")
    'm'
    """
    found: Any = data
    try:
        for key in keys:
            found = found[key]
    except (KeyError, IndexError, TypeError):
        raise _damaged(data, keys, "is missing") from None
    return found


def entries(data: Json, *keys: str | int) -> list[Any]:
    """Returns a list of a file's content."""
    found = part(data, *keys)
    if not isinstance(found, list):
        raise _damaged(data, keys, f"is {found!r:.40}, no list")
    return found


def table(data: Json, *keys: str | int) -> Mapping[str, Any]:
    """Returns a part of a file's content that has names."""
    found = part(data, *keys)
    if not isinstance(found, dict):
        raise _damaged(data, keys, f"is {found!r:.40}, no object")
    return found


def number(data: Json, *keys: str | int) -> float:
    """Returns a number of a file's content; whatever else lies there could reach a page as text."""
    found = part(data, *keys)
    if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) < LARGEST:
        raise _damaged(data, keys, f"is {found!r:.40}, no number")
    return float(found)


def estimate(data: Json, *keys: str | int) -> dict[str, float]:
    """Returns value and limits of an estimate in a file's content."""
    return {name: number(data, *keys, name) for name in ("value", "low", "high")}


def _finite(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"{text:.40} is no finite number")
    return found


def _damaged(data: Json, keys: tuple[str | int, ...], problem: str) -> InputError:
    place = ".".join(map(str, keys))
    return InputError(f"{place} of a file of {data.get('schema')!s:.40} {problem}; it is damaged: write it again")


def _check_sizes(method: Method) -> None:
    for model in (method.scores.quantized, method.scores.reference):
        if model.size_bytes <= 0:
            raise InputError(
                f"the scores of {method.name} say that {model.target} has {model.size_bytes} bytes; "
                "they are damaged: write them again with fairbits evaluate --out"
            )


def _check_same(own: Scores, fingerprint: str, name: str) -> None:
    if fingerprint != own.reference.fingerprint:
        raise InputError(
            f"{name} is about another model than the scores, which are about {own.reference.target}; "
            "a report is about one model: give files of the same"
        )
