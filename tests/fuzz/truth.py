"""What must hold of every file that a reader accepts, said a second time and without the readers' code.

Here is what holds of all files; `record_truth` has what holds of each kind.
"""

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from harness import BrokenRuleError

CODE = re.compile(r"[^\W\d_]([\w-]{0,62}\w)?")
HASH = re.compile(r"[0-9a-f]{64}")
LEVELS = 50
FREE = ("settings", "record", "history")
"""What may hold anything."""


def rule(holds: bool, message: str) -> None:
    """Raises unless a rule holds."""
    if not holds:
        raise BrokenRuleError(f"accepted, although {message}")


def read_json(data: bytes) -> Any:
    """Returns a document after a check of what holds of all: keys once, finite numbers, whole text, few levels."""
    document = json.loads(data.decode("utf-8"), object_pairs_hook=_once)
    _check_values(document)
    return document


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    rule(len(dict(pairs)) == len(pairs), f"a key is there twice: {[key for key, _ in pairs]!r:.100}")
    return dict(pairs)


def _check_values(document: Any) -> None:
    waiting = [(document, 0)]
    while waiting:
        value, level = waiting.pop()
        rule(level <= LEVELS, f"it has more than {LEVELS} levels")
        if isinstance(value, float):
            rule(math.isfinite(value), f"{value} is there")
        elif isinstance(value, int):
            rule(abs(value) < 10**309, "a number is beyond floats")
        elif isinstance(value, str):
            rule(not any("\ud800" <= character <= "\udfff" for character in value), "half of a surrogate pair is there")
        elif isinstance(value, dict):
            waiting += [(part, level + 1) for pair in value.items() for part in pair]
        elif isinstance(value, list):
            waiting += [(item, level + 1) for item in value]


def check_codes(codes: Iterable[str], *, once: bool = True) -> None:
    """Checks codes of languages: safe in a path, and each once."""
    all_codes = list(codes)
    rule(all(isinstance(code, str) and CODE.fullmatch(code) for code in all_codes), f"a language is {all_codes!r:.80}")
    rule(not once or len(set(all_codes)) == len(all_codes), f"a language is there twice: {all_codes!r:.80}")


def check_hashes(*hashes: Any) -> None:
    """Checks that these are SHA-256 in hexadecimal digits."""
    rule(
        all(isinstance(digest, str) and HASH.fullmatch(digest) is not None for digest in hashes),
        f"a hash is {hashes!r:.100}",
    )


def count(value: Any, *, least: int = 0, most: int = 2**63 - 1) -> None:
    """Checks a whole number."""
    rule(type(value) is int and least <= value <= most, f"a count is {value!r:.40}, not {least} … {most}")


def plain(name: Any) -> None:
    """Checks the name of a file beside another."""
    rule(
        isinstance(name, str) and bool(name) and name not in (".", "..") and not set(name) & set("/\\\0:"),
        f"a file is {name!r:.60}",
    )


def check_estimates(document: Any) -> None:
    """Checks every estimate in a document: an interval that is one, of at least one unit."""
    for value in _objects(document):
        if {"value", "low", "high", "n"} <= value.keys():
            count(value["n"], least=1)
            low, high = value["low"], value["high"]
            rule((low is None) == (high is None) and (low is None or low <= high), f"an interval is {low} … {high}")
            rule(0 < value.get("confidence", 0.95) < 1, "a confidence is not within 0 and 1")


def _objects(document: Any) -> Iterable[dict[str, Any]]:
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting += [item for key, item in value.items() if key not in FREE]
        elif isinstance(value, list):
            waiting += value
