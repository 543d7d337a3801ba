"""Records: how fairbits reads, checks and writes its own JSON files, and reads JSON that nobody vouches for.

A kind of file is one `Kind`: its schema, the command that writes it, and the dataclass of its content. pydantic checks
the content against the types of the dataclass: no key is unknown, none is missing, and nothing is converted. Ranges are
part of the types (`fairbits.fields`). Checks that involve several fields belong in `__post_init__`.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np

from fairbits.errors import InputError, printable
from fairbits.memory import JSON_BYTES, JSON_CONTAINERS, JSON_LEVELS
from fairbits.version import __version__

if TYPE_CHECKING:  # pydantic takes a tenth of a second, and most commands read no record
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string of JSON, also one that does not end: so that looking for strings takes no longer than the file is long."""
NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
"""The escape of half of a surrogate pair; where there are two, they may be a character."""
LONGEST_NUMBER = 400
"""Characters of a number; no float needs as many."""
REMEDY = "it must be a JSON file: repair it or fetch it again"


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of file that fairbits writes and reads.

    `schema`    name and version, such as "fairbits.plan/1"
    `noun`      what messages call it, such as "a plan"
    `command`   what writes it, such as "fairbits plan"
    `record`    the dataclass of its content; every field is a key, or has its key as `metadata={"alias": …}`
    `optional`  fields that earlier versions did not write; all others must be in the file
    `stamped`   whether the file says which version of fairbits wrote it
    `earlier`   by earlier schema that is still read: the function that brings its content to the present one
    """

    schema: str
    noun: str
    command: str
    record: type[T]
    optional: tuple[str, ...] = ()
    stamped: bool = True
    earlier: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = field(default_factory=dict)

    @property
    def keys(self) -> dict[str, str]:
        """The key of every field."""
        return {each.name: each.metadata.get("alias", each.name) for each in fields(self.record)}  # type: ignore[arg-type]

    def named(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values of fields under their keys."""
        return {self.keys[name]: value for name, value in values.items()}

    def stamp(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the content of a file with its schema and, if the kind has it, the version of fairbits."""
        return {"schema": self.schema, **({"fairbits": __version__} if self.stamped else {}), **content}

    def read(self, path: str | Path) -> T:
        """Returns the record in a file."""
        data = read_object(Path(path), remedy=f"it must be {self.noun}: write one with {self.command}")
        return self.parse(data, source=str(path))

    def parse(self, data: Mapping[str, Any], *, source: str) -> T:
        """Returns the record that the content of a file describes; `source` is the file that errors name."""
        found = data.get("schema")
        try:
            if isinstance(found, str) and found in self.earlier:
                data = self.earlier[found](dict(data)) | {"schema": self.schema}
        except (KeyError, TypeError, AttributeError) as problem:
            raise InputError(f"{source} is damaged: {problem!r:.60}; write it again with {self.command}") from None
        self._check_schema(data.get("schema"), source)
        try:
            self._check_keys(data)
            envelope = {"schema", "fairbits"} - set(self.keys.values())
            return check_record(self.record, {key: each for key, each in data.items() if key not in envelope})
        except InputError as problem:
            raise InputError(f"{source} is damaged: {problem}; write it again with {self.command}") from None

    def _check_schema(self, found: Any, source: str) -> None:
        if found == self.schema:
            return
        name, _, version = self.schema.rpartition("/")
        newer = isinstance(found, str) and found.rpartition("/")[0] == name and found.rpartition("/")[2] > version
        remedy = "update fairbits, or write" if newer else "write"
        raise InputError(
            f"{source} has the schema {found!r:.60}; it must be {self.schema}: {remedy} it with {self.command}"
        )

    def _check_keys(self, data: Mapping[str, Any]) -> None:
        expected = [key for name, key in self.keys.items() if name not in self.optional]
        for key in [*(["fairbits"] if self.stamped else []), *expected]:
            if key not in data:
                raise InputError(f"{key} is missing")


def read_object(path: Path, *, finite: bool = True, remedy: str = REMEDY) -> dict[str, Any]:
    """Returns the JSON object in a file.

    Numbers must be finite, unless `finite` is False: some published configurations hold Infinity. `remedy` ends errors.
    """
    try:
        with path.open("rb") as file:
            data = file.read(JSON_BYTES + 1)
    except (OSError, ValueError) as problem:  # a name that holds NUL is a ValueError
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise InputError(f"{path} cannot be read ({reason}); {remedy}") from None
    if len(data) > JSON_BYTES:
        raise InputError(f"{path} is larger than {JSON_BYTES:,} bytes; {remedy}")
    return parse_object(data, str(path), finite=finite, remedy=remedy)


def parse_object(data: bytes, source: str, *, finite: bool = True, remedy: str = REMEDY) -> dict[str, Any]:
    """Returns the JSON object in `data`; a key given twice is refused, since readers differ in which one they take."""
    numbers: dict[str, Any] = dict.fromkeys(("parse_float", "parse_constant", "parse_int"), _finite) if finite else {}
    try:
        _check_size(data)
        value = json.loads(data.decode("utf-8"), object_pairs_hook=distinct, **numbers)
    except (ValueError, RecursionError) as problem:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise InputError(f"{source} is not valid JSON ({problem}); {remedy}") from None
    if not isinstance(value, dict):
        raise InputError(f"{source} holds a JSON {type(value).__name__}, not an object {{…}}; {remedy}")
    if finite and HALF_PAIR.search(data):
        place = _half_pair(value)
        if place is not None:
            raise InputError(f"{source}: {place} holds half of a surrogate pair, which is no text; {remedy}")
    return value


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the members of a JSON object; for `json.loads`, which would take the last of two with one key."""
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise ValueError(f"the key {key!r:.80} is there twice")
        members[key] = value
    return members


def check_record(kind: type[T], data: Any, *, source: str = "") -> T:
    """Returns JSON data as an object of the type `kind`, mostly a dataclass.

    The error names the key that is wrong, and `source`, if given.

    >>> check_record(tuple[int, ...], [1, "2"])
    Traceback (most recent call last):
    ...
    fairbits.errors.InputError: 1 is '2'; it must be a valid integer
    """
    from pydantic import ValidationError

    try:
        # from JSON text, as only this makes tuples of lists without any other conversion
        found: T = _adapter(cast(Any, kind)).validate_json(json.dumps([data]))[0]
    except ValidationError as problem:
        raise InputError(f"{source}{': ' if source else ''}{_told(problem.errors(include_url=False), data)}") from None
    return found


def to_json(data: Mapping[str, Any]) -> bytes:
    r"""Returns the content of a JSON file, without characters that would steer a terminal.

    >>> to_json({"name": "\x9b2J"})
    b'{\n "name": "\\u009b2J"\n}\n'
    """
    return as_lines(json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False).split("\n"))


def as_lines(lines: Iterable[str]) -> bytes:
    """Returns lines of JSON as the content of a file; control characters become escapes that JSON reads back."""
    return "\n".join(map(printable, lines)).encode() + b"\n"


@cache
def _adapter(kind: Any) -> "TypeAdapter[tuple[Any]]":
    """Returns what checks a list of one `kind`: the settings of a list hold for all in it, those of a dataclass not."""
    from pydantic import ConfigDict, TypeAdapter

    one: Any = tuple[kind]
    return TypeAdapter(one, config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))


def _told(problems: "list[ErrorDetails]", data: Any) -> str:
    """Returns what is wrong first: where, what is there and what must hold; all choices, where a type has several."""
    first = problems[0]
    if first["type"] == "json_invalid":  # the only text that Python writes and pydantic cannot read
        return f"{_half_pair(data) or 'the content'} holds half of a surrogate pair, which is no text"
    place, found = _followed(data, first["loc"][1:])
    name = ".".join(f"{key!s:.60}" for key in place)
    if first["loc"][-1] == "[key]":
        return f"the key {name} must be {first['msg'].removeprefix('Input should be ')}"
    if first["type"] == "missing":
        return f"{name}{'.' if name else ''}{first['loc'][-1]} is missing"
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"the key {name} is unknown"
    if first["type"] == "value_error":  # of __post_init__
        return f"{name}{': ' if name else ''}{first['ctx']['error']}"
    same = [each["msg"] for each in problems if _followed(data, each["loc"][1:])[0] == place]
    rules = dict.fromkeys(each.removeprefix("Input should be ") for each in same)
    return f"{name or 'the content'} is {found!r:.60}; it must be {' or '.join(rules)}"


def _followed(data: Any, loc: Iterable[str | int]) -> tuple[list[str | int], Any]:
    """Returns the keys of a location that lie in the data, without names of types, and what lies there."""
    place: list[str | int] = []
    for key in loc:
        members = data if isinstance(data, dict) else dict(enumerate(data)) if isinstance(data, list) else {}
        if key not in members:
            break
        data = members[key]
        place.append(key)
    return place, data


def _check_size(data: bytes) -> None:
    """Raises if JSON has so many levels or parts that parsing it would fill the stack or the memory."""
    brackets = np.frombuffer(STRING.sub(b"", data).translate(None, NO_BRACKETS), dtype=np.uint8)
    opening = (brackets == ord("[")) | (brackets == ord("{"))
    if opening.sum() > JSON_CONTAINERS:
        raise ValueError(f"it holds more than {JSON_CONTAINERS:,} lists and objects")
    levels = np.where(opening, 1, -1).cumsum(dtype=np.int64)
    if levels.size and levels.max() > JSON_LEVELS:
        raise ValueError(f"it is nested more than {JSON_LEVELS} levels deep")


def _half_pair(value: Any, place: str = "") -> str | None:
    """Returns where half of a surrogate pair is; None if there is none."""
    if isinstance(value, str):
        return (place or "a key") if any("\ud800" <= each <= "\udfff" for each in value) else None
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in members:
        if isinstance(key, str) and _half_pair(key) is not None:
            return f"a key of {place}" if place else "a key"
        found = _half_pair(each, f"{place}.{key!s:.60}".lstrip("."))
        if found is not None:
            return found
    return None


def _finite(text: str) -> int | float:
    """Returns a number of a file; a whole number that no float can be is refused as well."""
    if len(text) > LONGEST_NUMBER or not math.isfinite(float(text)):
        raise ValueError(f"{text:.40} is not a finite number")
    return int(text) if text.lstrip("-").isdecimal() else float(text)
