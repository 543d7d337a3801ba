"""Records: how fairbits reads, checks and writes its own JSON files, and reads JSON that strangers wrote.

A kind of file is one `Kind`: its schema, the command that writes it, and the dataclass of its content. pydantic checks
the content against the types of the dataclass: no key is unknown, none is missing, and nothing is converted. Ranges are
part of the types: `tokens: Count` refuses −1, `sha256: Digest` anything but 64 hexadecimal digits. Nothing that a file
names can lead out of its directory: codes of languages, names of files. Checks that involve several fields belong in
`__post_init__`.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, cast

import numpy as np
from annotated_types import Ge, Gt, Le, MaxLen, MinLen
from pydantic import ConfigDict, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from fairbits.core.errors import InputError, printable
from fairbits.core.memory import JSON_BYTES, JSON_CONTAINERS, JSON_LEVELS
from fairbits.core.version import __version__

T = TypeVar("T")
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)  # it may not end: one pass finds all
NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")  # of a surrogate pair; two of them may be a character
LONGEST_NUMBER = 400  # characters of a number; no float needs as many
REMEDY = "it must be a JSON file: repair it or fetch it again"


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of file that fairbits writes and reads."""

    schema: str  # name and version, such as "fairbits.plan/1"
    noun: str  # what messages call it, such as "a plan"
    command: str  # what writes it, such as "fairbits plan"
    record: type[T]  # the dataclass of its content; a field is a key, or has its key as `metadata={"alias": …}`
    optional: tuple[str, ...] = ()  # fields that a file may lack
    stamped: bool = True  # whether the file says which version of fairbits wrote it

    @property
    def keys(self) -> dict[str, str]:
        return {field.name: field.metadata.get("alias", field.name) for field in fields(self.record)}  # type: ignore[arg-type]

    def stamp(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the content of a file with its schema and, if the kind has it, the version of fairbits."""
        return {"schema": self.schema, **({"fairbits": __version__} if self.stamped else {}), **content}

    def read(self, path: str | Path) -> T:
        data = read_object(Path(path), remedy=f"it must be {self.noun}: write one with {self.command}")
        return self.parse(data, source=str(path))

    def parse(self, data: Mapping[str, Any], *, source: str) -> T:
        """Returns the record that the content of a file describes; `source` is the file that errors name."""
        schema = data.get("schema")
        if schema != self.schema:
            name, _, version = self.schema.rpartition("/")
            newer = (
                isinstance(schema, str) and schema.rpartition("/")[0] == name and schema.rpartition("/")[2] > version
            )
            remedy = "update fairbits, or write" if newer else "write"
            raise InputError(
                f"{source} has the schema {schema!r:.60}; it must be {self.schema}: {remedy} it with {self.command}"
            )
        try:
            expected = [key for name, key in self.keys.items() if name not in self.optional]
            for key in [*(["fairbits"] if self.stamped else []), *expected]:
                if key not in data:
                    raise InputError(f"{key} is missing")
            envelope = {"schema", "fairbits"} - set(self.keys.values())
            return check_record(self.record, {key: value for key, value in data.items() if key not in envelope})
        except InputError as problem:
            raise InputError(f"{source} is damaged: {problem}; write it again with {self.command}") from None


def read_object(path: Path, *, finite: bool = True, remedy: str = REMEDY) -> dict[str, Any]:
    """Returns the JSON object in a file; some configurations hold numbers that are not `finite`."""
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
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as problem:
            before = problem.object[max(0, problem.start - 40) : problem.start]
            raise InputError(f"{source} holds half of a surrogate pair, after {before!r}; {remedy}") from None
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
    """Returns JSON data as an object of the type `kind`; the error names `source` and the key that is wrong."""
    try:
        # from JSON text, as only this makes tuples of lists without any other conversion
        record: T = _adapter(cast(Any, kind)).validate_json(json.dumps([data]))[0]
    except ValidationError as problem:
        reason = _reason(problem.errors(include_url=False), data)
        raise InputError(f"{source}{': ' if source else ''}{reason}") from None
    return record


def to_json(data: Mapping[str, Any]) -> bytes:
    """Returns the content of a JSON file, without characters that would steer a terminal."""
    return as_lines(json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False).split("\n"))


def as_lines(lines: Iterable[str]) -> bytes:
    """Returns lines of JSON as the content of a file; control characters become escapes that JSON reads back."""
    return "\n".join(map(printable, lines)).encode() + b"\n"


def to_json_lines(data: Mapping[str, Any]) -> bytes:
    """Returns JSON with an entry per line, and an entry of the nested objects: columns are long lines."""
    return as_lines(_lines(data, nested=True))


def _lines(data: Mapping[str, Any], *, nested: bool) -> list[str]:
    lines, last = ["{"], len(data) - 1
    for i, (key, value) in enumerate(data.items()):
        nests = nested and isinstance(value, dict) and value
        first, *rest = _lines(value, nested=False) if nests else [_compact(value)]
        lines += [f" {_compact(key)}: {first}", *(f" {line}" for line in rest)]
        lines[-1] += "" if i == last else ","
    return [*lines, "}"]


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


@cache
def _adapter(kind: Any) -> TypeAdapter[tuple[Any]]:
    """Returns the checker of a list of one `kind`: its settings hold for all in the list."""
    one: Any = tuple[kind]
    return TypeAdapter(one, config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))


def _reason(problems: list[ErrorDetails], data: Any) -> str:
    first = problems[0]
    if first["type"] == "json_invalid":  # the only text that Python writes and pydantic cannot read
        return "the content holds half of a surrogate pair, which is not text"
    place, value = _followed(data, first["loc"][1:])
    name = ".".join(f"{key!s:.60}" for key in place)
    if first["loc"][-1] == "[key]":
        return f"the key {name} must be {first['msg'].removeprefix('Input should be ')}"
    if first["type"] == "missing":
        return f"{name}{'.' if name else ''}{first['loc'][-1]} is missing"
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"the key {name} is unknown"
    if first["type"] == "value_error":  # of __post_init__
        return f"{name}{': ' if name else ''}{first['ctx']['error']}"
    same = [problem["msg"] for problem in problems if _followed(data, problem["loc"][1:])[0] == place]
    rules = dict.fromkeys(message.removeprefix("Input should be ") for message in same)
    return f"{name or 'the content'} is {value!r:.60}; it must be {' or '.join(rules)}"


def _followed(data: Any, loc: Iterable[str | int]) -> tuple[list[str | int], Any]:
    """Returns the keys of a location that are in the data, without names of types, and the value there."""
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


def _finite(text: str) -> int | float:
    """Returns a number of a file; a whole number that no float can be is refused as well."""
    if len(text) > LONGEST_NUMBER or not math.isfinite(float(text)):
        raise ValueError(f"{text:.40} is not a finite number")
    return int(text) if text.lstrip("-").isdecimal() else float(text)


MOST = 2**63 - 1  # the largest whole number: what NumPy and torch can hold
LARGEST = 1e30  # the largest sum or loss: 10^8 times as many nats as a model could lose on all text there is


@dataclass(frozen=True)
class Column:
    """Says, as part of a type, that an array is a list in the file: `Annotated[Floats, Column(NonNegative)]`."""

    item: Any

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        items = handler.generate_schema(list.__class_getitem__(self.item))
        return core_schema.no_info_after_validator_function(np.array, items)


@dataclass(frozen=True)
class Matching:
    """Says, as part of a type, that all of a text matches a pattern; `meaning` completes "it must be …"."""

    pattern: str
    meaning: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        whole = re.compile(self.pattern).fullmatch

        def check(text: str) -> str:
            if whole(text) is None:
                raise PydanticCustomError("matching", "Input should be {meaning}", {"meaning": self.meaning})
            return text

        return core_schema.no_info_after_validator_function(check, handler(source))


Number = Annotated[int, Ge(-MOST), Le(MOST)] | float  # as in the file: 1 stays 1, so that a record keeps its bytes
Count = Annotated[int, Ge(0), Le(MOST)]
Positive = Annotated[int, Ge(1), Le(MOST)]
NonNegative = Annotated[float, Ge(0)]
Amount = Annotated[float, Ge(0), Le(LARGEST)]  # others are computed from it within the range of floats
Share = Annotated[Number, Ge(0), Le(1)]
Weight = Annotated[Number, Gt(0), Le(1)]
Seconds = Annotated[Number, Ge(0), Le(LARGEST)]
StoredBits = Annotated[int, Ge(2), Le(8)]  # bits of a code that is written
TriedBits = Annotated[int, Ge(2), Le(16)]  # bits of a code whose damage is predicted or measured in memory
BlockIndex = Annotated[int, Ge(0), Le(999_999)]
Split = Annotated[str, Matching("calibration|evaluation", "calibration or evaluation")]
Name = Annotated[str, MinLen(1)]
ShortName = Annotated[str, MaxLen(100)]  # a name that errors and tables quote as it is
Digest = Annotated[str, Matching("[0-9a-f]{64}", "a SHA-256, 64 hexadecimal digits")]
Code = Annotated[
    str,
    Matching(r"[^\W\d_]([\w-]{0,62}\w)?", "the code of a language: up to 64 letters, digits, - and _, a letter first"),
]
FileName = Annotated[
    str, Matching(r"(?!\.{1,2}\Z)[^/\\:\x00-\x1f\x7f]{1,255}", "the name of a file in the same directory")
]


def check_same_keys(name: str, keys: Iterable[str], second_name: str, second: Iterable[str]) -> None:
    """Raises unless two parts of a record name the same: the error names the first that is only in one."""
    odd = sorted(set(keys) ^ set(second))
    if odd:
        raise InputError(f"{name} and {second_name} differ in {odd[0]!r:.60}; both must name the same")


def check_once(name: str, keys: Sequence[str]) -> None:
    """Raises if something is named twice."""
    if len(set(keys)) < len(keys):
        twice = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise InputError(f"{name} names {twice!r:.60} twice; it must name each once")


def check_within(name: str, keys: Iterable[str], whole_name: str, whole: Iterable[str]) -> None:
    """Raises if a part of a record names something that another part lacks."""
    odd = sorted(set(keys) - set(whole))
    if odd:
        raise InputError(f"{name} names {odd[0]!r:.60}, which is not in {whole_name}; it must name only what is there")


def check_ordered(name: str, numbers: Sequence[float | None]) -> None:
    """Raises unless numbers rise; None is skipped."""
    for low, high in pairwise(number for number in numbers if number is not None):
        if low > high:
            raise InputError(f"{name} are {low:g} and {high:g}; they must not fall")


def check_sum(name: str, parts: Mapping[str, float]) -> None:
    """Raises unless shares sum to 1, as far as rounded numbers can."""
    total = sum(parts.values())
    if abs(total - 1) > 1e-6:
        raise InputError(f"{name} sum to {total:.6g}; they must sum to 1")


def check_square(name: str, rows: Sequence[Sequence[object]], size: int) -> None:
    """Raises unless a table has as many rows and columns as there are languages."""
    if [len(row) for row in rows] != [size] * size:
        sizes = ", ".join(str(len(row)) for row in rows[:5]) or "no"
        raise InputError(f"{name} has rows of {sizes} entries; it must have {size} rows of {size}")
