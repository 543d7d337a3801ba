"""Fields: the types of what records hold, with their ranges, as pydantic checks them and as errors name them.

A range is part of a type: `tokens: Count` refuses −1, `sha256: Digest` refuses anything but 64 hexadecimal digits.
Nothing that a file names can lead out of its directory: codes of languages, names of files.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le, MaxLen, MinLen

from fairbits.errors import InputError

if TYPE_CHECKING:  # pydantic takes a tenth of a second, and most commands read no record
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

MOST = 2**63 - 1
"""The largest whole number: what NumPy and torch can hold."""
LARGEST = 1e30
"""The largest sum or loss: 10^8 times as many nats as a model of today could lose on all text that there is."""


@dataclass(frozen=True)
class Column:
    """Says, as part of a type, that an array is a list in the file: `Annotated[Floats, Column(NonNegative)]`."""

    item: Any

    def __get_pydantic_core_schema__(self, _: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        """Returns how pydantic makes the array: of a list whose items have the type `item`."""
        from pydantic_core import core_schema

        items = handler.generate_schema(list.__class_getitem__(self.item))
        return core_schema.no_info_after_validator_function(np.array, items)


@dataclass(frozen=True)
class Matching:
    """Says, as part of a type, that all of a text matches a pattern; `meaning` completes "it must be …"."""

    pattern: str
    meaning: str

    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        """Returns how pydantic reads the text."""
        from pydantic_core import PydanticCustomError, core_schema

        whole = re.compile(self.pattern).fullmatch

        def check(text: str) -> str:
            if whole(text) is None:
                raise PydanticCustomError("matching", "Input should be {meaning}", {"meaning": self.meaning})
            return text

        return core_schema.no_info_after_validator_function(check, handler(source))


Number = Annotated[int, Ge(-MOST), Le(MOST)] | float
"""A number as the file has it: 1 stays 1, so that a record that is read and written again keeps its bytes."""
Count = Annotated[int, Ge(0), Le(MOST)]
Positive = Annotated[int, Ge(1), Le(MOST)]
NonNegative = Annotated[float, Ge(0)]
Amount = Annotated[float, Ge(0), Le(LARGEST)]
"""A sum or a mean that others are computed from, without leaving the range of floats."""
Share = Annotated[Number, Ge(0), Le(1)]
Weight = Annotated[Number, Gt(0), Le(1)]
Seconds = Annotated[Number, Ge(0), Le(LARGEST)]
Width = Annotated[int, Ge(2), Le(8)]
"""Bits of a code that is written."""
TriedWidth = Annotated[int, Ge(2), Le(16)]
"""Bits of a code whose damage is predicted or measured in memory."""
BlockIndex = Annotated[int, Ge(0), Le(999_999)]
Split = Annotated[str, Matching("calibration|evaluation", "calibration or evaluation")]
Name = Annotated[str, MinLen(1)]
ShortName = Annotated[str, MaxLen(100)]
"""A name that errors and tables quote as it is."""
Digest = Annotated[str, Matching("[0-9a-f]{64}", "a SHA-256, 64 hexadecimal digits")]
Code = Annotated[
    str,
    Matching(
        r"[^\W\d_]([\w-]{0,62}\w)?",
        "the code of a language: up to 64 letters, digits, - and _, a letter first",
    ),
]
FileName = Annotated[
    str, Matching(r"(?!\.{1,2}\Z)[^/\\:\x00-\x1f\x7f]{1,255}", "the name of a file in the same directory")
]


def check_same_keys(name: str, found: Iterable[str], other_name: str, other: Iterable[str]) -> None:
    """Raises unless two parts of a record name the same: the error names the first that is only in one.

    >>> check_same_keys("shares", ["eng", "fra"], "hashes", ["eng"])
    Traceback (most recent call last):
    ...
    fairbits.errors.InputError: shares and hashes differ in 'fra'; both must name the same
    """
    odd = sorted(set(found) ^ set(other))
    if odd:
        raise InputError(f"{name} and {other_name} differ in {odd[0]!r:.60}; both must name the same")


def check_once(name: str, found: Sequence[str]) -> None:
    """Raises if something is named twice.

    >>> check_once("languages", ["eng", "eng"])
    Traceback (most recent call last):
    ...
    fairbits.errors.InputError: languages names 'eng' twice; it must name each once
    """
    if len(set(found)) < len(found):
        twice = next(each for i, each in enumerate(found) if each in found[:i])
        raise InputError(f"{name} names {twice!r:.60} twice; it must name each once")


def check_within(name: str, found: Iterable[str], other_name: str, other: Iterable[str]) -> None:
    """Raises if a part of a record names what another part does not have.

    >>> check_within("rounds", ["fra"], "shares", ["eng"])
    Traceback (most recent call last):
    ...
    fairbits.errors.InputError: rounds names 'fra', which is not in shares; it must name only what is there
    """
    odd = sorted(set(found) - set(other))
    if odd:
        raise InputError(f"{name} names {odd[0]!r:.60}, which is not in {other_name}; it must name only what is there")


def check_ordered(name: str, numbers: Sequence[float | None]) -> None:
    """Raises unless numbers rise; those that are None are left aside.

    >>> check_ordered("kl_p50, kl_p95", [2.0, 1.0])
    Traceback (most recent call last):
    ...
    fairbits.errors.InputError: kl_p50, kl_p95 are 2 and 1; they must not fall
    """
    known = [each for each in numbers if each is not None]
    for one, other in pairwise(known):
        if one > other:
            raise InputError(f"{name} are {one:g} and {other:g}; they must not fall")


def check_sum(name: str, parts: Mapping[str, float]) -> None:
    """Raises unless shares sum to 1, as far as rounded numbers can.

    >>> check_sum("shares", {"eng": 0.5, "fra": 0.4})
    Traceback (most recent call last):
    ...
    fairbits.errors.InputError: shares sum to 0.9; they must sum to 1
    """
    total = sum(parts.values())
    if abs(total - 1) > 1e-6:
        raise InputError(f"{name} sum to {total:.6g}; they must sum to 1")


def check_square(name: str, rows: Sequence[Sequence[object]], size: int) -> None:
    """Raises unless a table has as many rows and columns as there are languages.

    >>> check_square("bound", [[1, 2], [3]], 2)
    Traceback (most recent call last):
    ...
    fairbits.errors.InputError: bound has rows of 2, 1 entries; it must have 2 rows of 2
    """
    if [len(row) for row in rows] != [size] * size:
        sizes = ", ".join(str(len(row)) for row in rows[:5]) or "no"
        raise InputError(f"{name} has rows of {sizes} entries; it must have {size} rows of {size}")
