"""Safetensors files: their headers, which are checked before they are believed, and their tensors.

The file: 8 bytes that give the header's length N (little endian), N bytes of JSON
`{name: {"dtype": …, "shape": […], "data_offsets": [begin, end]}, "__metadata__": {…}}`, then the data.
The tensors must cover the data exactly: nothing outside, no overlap, no gap. The library does the same, but does not
say where a tensor begins, which reading a part of one, or one from the Hub, needs.

Files are written whole or not at all, tensor by tensor, so that no model must fit in memory.
"""

import json
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairbits.core.errors import InputError
from fairbits.core.files import Chunk, write_whole
from fairbits.core.memory import JSON_BYTES, PART_BYTES, WRITTEN_BYTES
from fairbits.core.progress import WEIGHTS, Progress
from fairbits.core.records import parse_object

EXPLICIT = "transformers_weights"  # in config.json: another file, or index of files, for transformers to read
LENGTH_BYTES = 8
ALIGNMENT = 8  # of the data within the file
PARTS_AHEAD = 3  # of a file, which are read while the one before is used
MOST_DIMENSIONS = 64  # of torch's element-wise kernels
_IRREGULAR = {"BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "BF16": "bfloat16", "C64": "complex64"}
_KINDS = {"U": "uint", "I": "int", "F": "float"}
_STORED = (
    *("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2"),
    *("F8_E5M2FNUZ", "F16", "BF16", "F32", "F64", "C64"),
)
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, _IRREGULAR.get(name, _KINDS.get(name[0], "") + name[1:].lower())) for name in _STORED
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's name, shape and type, and its size in bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    nbytes: int

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class StoredTensor(TensorInfo):
    """A tensor of a file: its bytes begin at `start` of `file`."""

    file: Path
    start: int


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Returns the tensors of a safetensors file by name, in the order of their bytes; no weight is read."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            return parse_header(path, size, lambda _start, count: file.read(count))
    except OSError as problem:
        raise InputError(f"{path} cannot be read ({problem.strerror}); it must be a safetensors file") from None


def parse_header(path: Path, size: int, read: Callable[[int, int], bytes]) -> dict[str, StoredTensor]:
    """Returns the same of a file with `size` bytes, of which `read(start, count)` gives some, the first ones first."""
    length = int.from_bytes(read(0, min(LENGTH_BYTES, size)), "little")
    if size < LENGTH_BYTES or length > min(size - LENGTH_BYTES, JSON_BYTES):
        raise InputError(
            f"{path} says that its header is {length:,} bytes long, and the file has {size:,}; it is truncated "
            f"or not a safetensors file (a header has at most {JSON_BYTES:,} bytes): fetch it again"
        )
    header, data_start = read(LENGTH_BYTES, length), LENGTH_BYTES + length
    entries = parse_object(header, f"the header of {path}")
    entries.pop("__metadata__", None)
    infos = sorted(
        (_tensor_info(path, name, entry, data_start=data_start) for name, entry in entries.items()),
        key=lambda info: (info.start, info.nbytes),
    )
    _check_coverage(infos, path, data_start=data_start, size=size)
    return {info.name: info for info in infos}


def _tensor_info(path: Path, name: str, entry: Any, *, data_start: int) -> StoredTensor:
    where = f"tensor {name!r} of {path}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise InputError(f"{where} is described by {entry!r:.80}; dtype, shape and data_offsets must be given")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise InputError(f"{where} has the dtype {dtype!r:.80}; it must be one of {', '.join(DTYPES)}")
    if not _sizes(shape) or len(shape) > MOST_DIMENSIONS or math.prod(filter(None, shape)) >= 2**63:
        raise InputError(f"{where} has the shape {shape!r:.80}; it must list sizes, 0 or more, of a possible tensor")
    if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise InputError(f"{where} has the offsets {offsets!r:.80}; they must be [begin, end], 0 <= begin <= end")
    nbytes = math.prod(shape) * DTYPES[dtype].itemsize
    if offsets[1] - offsets[0] != nbytes:
        raise InputError(
            f"{where} takes {offsets[1] - offsets[0]:,} bytes; {dtype} of shape {shape} must take {nbytes:,}"
        )
    return StoredTensor(name, tuple(shape), DTYPES[dtype], nbytes, path, data_start + offsets[0])


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _check_coverage(infos: list[StoredTensor], path: Path, *, data_start: int, size: int) -> None:
    end = data_start
    for info in infos:
        if info.start != end:
            trouble = "overlaps the one before" if info.start < end else "leaves a gap before it"
            raise InputError(f"tensor {info.name!r} of {path} {trouble}; each must begin where the one before ends")
        end = info.start + info.nbytes
    if end != size:
        raise InputError(
            f"{path} has {size:,} bytes and its header describes {end:,}; the file is "
            f"{'truncated' if size < end else 'longer than it must be'}: fetch it again"
        )


def map_tensor(info: StoredTensor) -> Tensor:
    """Returns the tensor, memory-mapped privately; its pages go back to the system with the last reference to it."""
    if info.nbytes == 0:
        return torch.empty(info.shape, dtype=info.dtype)
    if info.start % info.dtype.itemsize:  # the format does not promise alignment, and torch needs it
        return read_tensor(info)
    try:
        if info.file.stat().st_size < info.start + info.nbytes:
            raise InputError(f"{info.file} is shorter than when it was opened; open the checkpoint again")
        pages = np.memmap(info.file, np.uint8, mode="c", offset=info.start, shape=info.nbytes)
    except OSError as problem:
        raise InputError(f"{info.file} can no longer be read ({problem.strerror}); it must stay in place") from None
    return torch.frombuffer(pages, dtype=info.dtype).reshape(info.shape)


def read_tensor(info: StoredTensor, *, pinned: bool = False) -> Tensor:
    """Returns the tensor, read into memory; from `pinned` memory a GPU copies it without waiting."""
    data = torch.empty(info.nbytes, dtype=torch.uint8, pin_memory=pinned)
    _read_into(data.numpy().data, info, 0)
    return data.view(info.dtype).reshape(info.shape)


def read_bytes(
    infos: Iterable[StoredTensor],
    read: Callable[[memoryview, StoredTensor, int], None] | None = None,
    *,
    size: int = PART_BYTES,
    ahead: int = PARTS_AHEAD,
) -> Iterator[tuple[StoredTensor, int, bytearray]]:
    """Yields the bytes of tensors in parts: the tensor, where in it the part begins, and the part.

    A few parts are read ahead by threads. A tensor without elements has one part. `read` fills memory with the bytes
    of a tensor from a place in it; by default it reads the file.
    """

    def read_part(info: StoredTensor, at: int) -> bytearray:
        data = bytearray(min(size, info.nbytes - at))
        (read or _read_into)(memoryview(data), info, at)
        return data

    parts = ((info, at) for info in infos for at in range(0, max(info.nbytes, 1), size))
    reading: deque[tuple[StoredTensor, int, Future[bytearray]]] = deque()
    with ThreadPoolExecutor(ahead) as threads:
        for info, at in parts:
            reading.append((info, at, threads.submit(read_part, info, at)))
            if len(reading) > ahead:
                first, begin, future = reading.popleft()
                yield first, begin, future.result()
        for first, begin, future in reading:
            yield first, begin, future.result()


def _read_into(view: memoryview, info: StoredTensor, at: int) -> None:
    done = 0
    try:
        with info.file.open("rb", buffering=0) as file:
            file.seek(info.start + at)
            while done < len(view):
                count = file.readinto(view[done:])
                if not count:
                    raise InputError(f"{info.file} is shorter than when it was opened; open the checkpoint again")
                done += count
    except OSError as problem:
        raise InputError(f"{info.file} can no longer be read ({problem.strerror}); it must stay in place") from None


def announce_read(info: StoredTensor) -> None:
    """Asks the system to read the tensor into its cache now, where it can (Linux), without waiting for it."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError), info.file.open("rb") as file:
            os.posix_fadvise(file.fileno(), info.start, info.nbytes, os.POSIX_FADV_WILLNEED)


@dataclass(frozen=True, eq=False)
class Piece:
    """A tensor that is to be written, and how it is read when its turn comes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def in_memory(tensors: Mapping[str, Tensor]) -> list[Piece]:
    """Returns pieces for tensors in memory, on any device."""
    return [Piece(name, x.dtype, tuple(x.shape), partial(torch.Tensor.cpu, x.detach())) for name, x in tensors.items()]


def write_tensors(
    path: Path, pieces: Iterable[Piece], *, stage: str = WEIGHTS, progress: Progress | None = None
) -> str:
    """Returns the SHA-256 of the safetensors file `path` after writing it; `progress` is given bytes."""
    return write_whole({path: tensor_chunks(pieces, stage=stage, progress=progress)})[path]


def tensor_chunks(
    pieces: Iterable[Piece], *, stage: str = WEIGHTS, progress: Progress | None = None
) -> Iterator[Chunk]:
    """Yields the content of a safetensors file."""
    # wide types first, as the safetensors library does, so that every tensor is aligned
    ordered = sorted(pieces, key=lambda piece: (-piece.dtype.itemsize, piece.name))
    yield _header(ordered)
    total, done = sum(piece.nbytes for piece in ordered), 0
    for piece in ordered:
        data = piece.read().contiguous().reshape(-1).view(torch.uint8).numpy()
        for start in range(0, len(data), WRITTEN_BYTES):
            part = data[start : start + WRITTEN_BYTES].data
            yield part
            done += len(part)
            if progress is not None:
                progress(stage, done, total)


def _header(pieces: list[Piece]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for piece in pieces:
        start, end = end, end + piece.nbytes
        entries[piece.name] = {"dtype": DTYPE_NAMES[piece.dtype], "shape": piece.shape, "data_offsets": (start, end)}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text
