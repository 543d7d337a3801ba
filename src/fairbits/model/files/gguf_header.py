"""What a GGUF file says about itself, without its weights.

The file: magic, version, number of tensors, number of key-value pairs, the pairs, then the tensors. A pair is a string
(the key), a type, a value; a string is its length and its bytes; an array is a type, a length, its elements.
"""

import mmap
import struct
from pathlib import Path

from fairbits.errors import InputError

Value = str | int | float | bool
FORMATS = dict(enumerate(["<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"])) | {10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
VERSIONS = (2, 3)


def read_gguf_metadata(path: Path) -> dict[str, Value]:
    """Returns the key-value pairs of the header, arrays (such as the vocabulary) left out.

    Every count is only believed as far as the file goes, so that no length in it can make this allocate or run on.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            magic, version, _, n_pairs = struct.unpack_from("<4sIQQ", data, 0)
            if magic != b"GGUF" or version not in VERSIONS:
                raise InputError(f"{path} starts with {magic!r}, version {version}; it must be GGUF, version 2 or 3")
            return _read_pairs(data, 24, n_pairs)
    except (struct.error, ValueError) as problem:  # an InputError is a ValueError
        if isinstance(problem, InputError):
            raise
        raise InputError(f"{path} is truncated or no GGUF file ({problem}); fetch it again") from None
    except OSError as problem:
        raise InputError(f"{path} cannot be read ({problem.strerror}); it must be a GGUF file") from None


def _read_pairs(data: mmap.mmap, position: int, count: int) -> dict[str, Value]:
    pairs: dict[str, Value] = {}
    for _ in range(count):
        key, position = _read_string(data, position)
        (kind,) = struct.unpack_from("<I", data, position)
        if kind == ARRAY:
            position = _skip_array(data, position + 4)
        else:
            pairs[key], position = _read_scalar(data, position + 4, kind)
    return pairs


def _read_scalar(data: mmap.mmap, position: int, kind: int) -> tuple[Value, int]:
    if kind == STRING:
        return _read_string(data, position)
    if kind not in FORMATS:
        raise ValueError(f"it holds a value of the unknown type {kind}")
    (value,) = struct.unpack_from(FORMATS[kind], data, position)
    return value, position + struct.calcsize(FORMATS[kind])


def _read_string(data: mmap.mmap, position: int) -> tuple[str, int]:
    end = _string_end(data, position)
    return data[position + 8 : end].decode("utf-8"), end


def _skip_array(data: mmap.mmap, position: int) -> int:
    kind, count = struct.unpack_from("<IQ", data, position)
    position += 12
    if kind != STRING:
        if kind not in FORMATS:
            raise ValueError(f"it holds an array of the unknown type {kind}")
        end = position + int(count) * struct.calcsize(FORMATS[kind])
        if end > len(data):
            raise ValueError(f"an array of {count:,} elements goes beyond its end")
        return end
    for _ in range(count):
        position = _string_end(data, position)
    return position


def _string_end(data: mmap.mmap, position: int) -> int:
    (length,) = struct.unpack_from("<Q", data, position)
    if position + 8 + length > len(data):
        raise ValueError(f"a string of {length:,} bytes goes beyond its end")
    return position + 8 + int(length)
