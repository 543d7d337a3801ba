"""Seeded mutations of files: of what JSON says, and of the bytes of any file.

A mutated document is written by `dumped`, not by `json`, because many mutations are no data of Python: a key that
is there twice, NaN, a number of 400 digits, half of a surrogate pair, a list of 10,000 levels.
"""

import json
import random
import struct
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Raw:
    """JSON text that is written as it is."""

    text: str


class Pairs(list[tuple[str, Any]]):
    """The members of an object, in which a key may occur twice."""


def parsed(data: bytes) -> Any:
    """Returns a document in which objects are `Pairs`."""
    return json.loads(data, object_pairs_hook=Pairs)


def dumped(value: Any) -> str:
    """Returns a document as JSON text."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, Pairs):
        return "{" + ", ".join(f"{json.dumps(key)}: {dumped(item)}" for key, item in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dumped, value)) + "]"
    return json.dumps(value)


STRINGS = (
    *("", " ", "..", ".", "/", "../../etc/passwd", "/etc/passwd", "C:\\Windows", "a/b", "~", "-rf", "\0", "\n", "\r"),
    *("\x1b[2J", "\x9b2J", "\u202eabc", "\u2028", "e\u0301", "\ufeff", "\U0010ffff", "nan", "null", "1", "True"),
    *("eng_Latn", "xx", "base", "eng_Latn ", "ENG_LATN", "__class__", "${HOME}", "%s%n", "{0}", "<b>", "x" * 300),
)
NUMBERS = (
    *(0, 1, -1, 2, 3, 7, 8, 9, 16, 17, 64, 127, 255, 256, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64),
    *(-(2**63), -(2**63) - 1, 10**19, 10**30, 10**300, 0.0, -0.0, 0.5, 1.0, 1.5, -0.5, 1e-320, 1e-12, 1e15, 1e16),
    *(1e30, 1e300, -1e300, 1.7e308),
)
RAW = (
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" + "0" * 400, "9" * 5000, "-" + "9" * 320, "1E5", "1.0"),
    *(
        '"\\ud800"',
        '"a\\udfffb"',
        '"\\u0000"',
        "[" * 60 + "]" * 60,
        "[" * 900 + "]" * 900,
        '{"a":' * 300 + "1" + "}" * 300,
    ),
    *("[" * 10_000 + "]" * 10_000, "{}", "[]", "[[]]", '{"a": 1, "a": 2}', "01", "+1", ".5", "'a'", "nul", "tru", "//"),
    *('{"value": 1, "low": 2, "high": 0, "n": 1, "confidence": 0.95}', "[1, 2", "{", "", ",", "1 2", "-", "--1"),
)


def any_value(rng: random.Random) -> Any:
    """Returns a value that most places do not expect."""
    kind = rng.randrange(10)
    if kind < 3:
        return rng.choice(STRINGS)
    if kind < 6:
        return rng.choice(NUMBERS)
    if kind < 9:
        return Raw(rng.choice(RAW))
    return rng.choice((None, True, False, Raw('"' + "y" * rng.choice((1000, 100_000)) + '"')))


def near(rng: random.Random, value: Any) -> Any:
    """Returns a value of about the same kind: what a slip or a wrong count gives."""
    if isinstance(value, bool):
        return rng.choice((not value, int(value), None, str(value)))
    if isinstance(value, int | float):
        changed = [
            value + 1,
            value - 1,
            -value,
            value * 10,
            value * 2,
            value // 2 if value else 1,
            float(value),
            str(value),
        ]
        return rng.choice((*changed, int(value), value * 1.5, [value], None, value == 1))
    if isinstance(value, str):
        changed = [
            value + "x",
            value[:-1],
            value.upper(),
            value[::-1],
            value + "\0",
            f"../{value}",
            f"{value}/x",
            f" {value}",
        ]
        return rng.choice((*changed, value.replace("_", "-"), [value], None, value * 2, rng.choice(STRINGS)))
    return any_value(rng)


def places(value: Any) -> list[tuple[Any, int]]:
    """Returns every place of a document below its root: the container and the index in it."""
    locations: list[tuple[Any, int]] = []
    waiting = [value]
    while waiting:
        held = waiting.pop()
        for i, entry in enumerate(held):
            inner = entry[1] if isinstance(held, Pairs) else entry
            locations.append((held, i))
            if isinstance(inner, list):
                waiting.append(inner)
    return locations


def at(place: tuple[Any, int]) -> Any:
    """Returns the value at a place."""
    held, i = place
    return held[i][1] if isinstance(held, Pairs) else held[i]


def put(place: tuple[Any, int], value: Any) -> None:
    """Puts a value at a place."""
    held, i = place
    held[i] = (held[i][0], value) if isinstance(held, Pairs) else value


def change(rng: random.Random, document: Any) -> None:
    """Changes a document in one place."""
    locations = places(document)
    if not locations:
        return
    # of long lists not only the entries: every second change is in the first levels
    place = rng.choice(locations if rng.random() < 0.5 else locations[: max(24, len(locations) // 20)])
    held, i = place
    kind = rng.randrange(12)
    if kind < 3:
        put(place, any_value(rng))
    elif kind < 6:
        put(place, near(rng, at(place)))
    elif kind == 6:
        put(place, deepcopy(at(rng.choice(locations))))
    elif kind == 7:
        del held[i]
    elif kind == 8:
        held.insert(rng.randrange(len(held) + 1), deepcopy(held[i]))  # a key or an entry that is there twice
    elif kind == 9 and isinstance(held, Pairs):
        name = rng.choice((rng.choice(STRINGS), held[i][0] + "x", rng.choice(held)[0]))
        held[i] = (name, held[i][1])
    elif kind == 10 and isinstance(held, Pairs):
        held.append((rng.choice(STRINGS), any_value(rng)))
    else:
        rng.shuffle(held)


def broken(rng: random.Random, data: bytes) -> bytes:
    """Returns bytes that are damaged as a disk, a transfer or an editor damages them, or with malice."""
    size = len(data)
    cut, other = rng.randrange(size + 1), rng.randrange(size + 1)
    low, high = sorted((cut, other))
    kind = rng.randrange(15)
    if kind == 0:
        return data[:cut]
    if kind == 1:
        return b""
    if kind in (2, 3):
        flipped = bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 8)) if size else 0):
            flipped[rng.randrange(size)] ^= 1 << rng.randrange(8)
        return bytes(flipped)
    if kind == 4:
        return b"\xef\xbb\xbf" + data
    if kind == 5:
        return data[:cut] + rng.choice((b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80")) + data[cut:]
    if kind == 6:
        return data[:cut] + b"\0" * rng.choice((1, 4096)) + data[cut:]
    if kind == 7:
        return data[:low] + data[high:]
    if kind == 8:
        return data[:high] + data[low:]
    if kind == 9:
        return data.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-32", "utf-16-be", "utf-7")))
    if kind == 10:
        return rng.randbytes(rng.choice((1, 8, 100, 5000)))
    if kind == 11:
        return b"\0" * min(size, high)
    if kind == 12:
        number = struct.pack("<Q", rng.choice((0, 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1, size)))
        return data[:cut] + number[: rng.choice((4, 8))] + data[cut + 8 :]
    if kind == 13:
        return data + rng.choice((b"\n", b" {}", b"\0", b"]", b"}", data[:100]))
    return data[:cut] + rng.choice((b"[", b"{", b'"', b"\\", b",", b":", b"-", b"e", b"\n", b"\r")) + data[cut:]


def mutated_json(rng: random.Random, data: bytes, *, mend: Callable[[Any], None] | None = None) -> bytes:
    """Returns a document of JSON with one to three changes, of its content or, one time in five, of its bytes.

    `mend` brings sums and hashes up to date after a change of the content, so that it is not these that give it away.
    """
    if rng.random() < 0.2:
        return broken(rng, data)
    document = parsed(data)
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        change(rng, document)
    if mend is not None:
        mend(document)
    return dumped(document).encode("utf-8", "surrogatepass")
