"""JSON objects from files that nobody vouches for."""

import json
from pathlib import Path
from typing import Any

from fairbits.errors import InputError

MOST_BYTES = 100_000_000  # what the safetensors library allows a header; real ones stay below a tenth of it


def read_object(path: Path) -> dict[str, Any]:
    """Returns the JSON object in the file `path`."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as problem:
        raise InputError(f"{path} cannot be read ({problem.strerror}); it must be a readable JSON file") from None
    if len(data) > MOST_BYTES:
        raise InputError(f"{path} is larger than {MOST_BYTES:,} bytes; no file of this kind is: fetch it again")
    return parse_object(data, str(path))


def parse_object(data: bytes, source: str) -> dict[str, Any]:
    """Returns the JSON object in `data`; a key given twice is refused, since readers differ in which one they take."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as problem:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise InputError(f"{source} is no valid JSON ({problem}); repair it or fetch it again") from None
    if not isinstance(value, dict):
        raise InputError(f"{source} holds a JSON {type(value).__name__}; it must be an object {{…}}")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise ValueError(f"the key {key!r:.80} is there twice")
        members[key] = value
    return members
