"""The layout of a scores file: JSON with one column of the documents per line."""

import json
from typing import Any

from fairbits.records import as_lines


def by_line(data: dict[str, Any]) -> bytes:
    """Returns the content of a scores file: one line per key, and one per key of a nested object."""
    return as_lines(_lines(data, nested=True))


def _lines(data: dict[str, Any], *, nested: bool) -> list[str]:
    lines, last = ["{"], len(data) - 1
    for i, (key, value) in enumerate(data.items()):
        own = _lines(value, nested=False) if nested and isinstance(value, dict) and value else [_compact(value)]
        first, *rest = own
        lines += [f" {_compact(key)}: {first}", *(f" {line}" for line in rest)]
        lines[-1] += "" if i == last else ","
    return [*lines, "}"]


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
