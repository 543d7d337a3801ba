"""Safetensors files, written whole or not at all, tensor by tensor, so that no model must fit in memory."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fairbits.artifacts import Chunk, write_whole
from fairbits.memory import WRITTEN_BYTES
from fairbits.model.files.safetensors_files import DTYPES, LENGTH_BYTES, StoredTensor, map_tensor
from fairbits.progress import Progress

CODES = {dtype: code for code, dtype in DTYPES.items()}
ALIGNMENT = 8  # of the data within the file


@dataclass(frozen=True, eq=False)
class Piece:
    """A tensor that is to be written, and how it is read when its turn comes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        """How many bytes of the file it takes."""
        return math.prod(self.shape) * self.dtype.itemsize


def in_memory(tensors: Mapping[str, Tensor]) -> list[Piece]:
    """Returns pieces for tensors that are there already, on whatever device."""
    return [Piece(name, x.dtype, tuple(x.shape), partial(torch.Tensor.cpu, x.detach())) for name, x in tensors.items()]


def on_disk(infos: Iterable[StoredTensor]) -> list[Piece]:
    """Returns pieces for tensors of other files."""
    return [Piece(info.name, info.dtype, info.shape, partial(map_tensor, info)) for info in infos]


def write_tensors(path: Path, pieces: Iterable[Piece], *, progress: Progress | None = None) -> str:
    """Returns the SHA-256 of the safetensors file `path` after writing it; `progress` is given bytes."""
    return write_whole({path: tensor_chunks(pieces, progress=progress)})[path]


def tensor_chunks(pieces: Iterable[Piece], *, progress: Progress | None = None) -> Iterator[Chunk]:
    """Yields the content of a safetensors file."""
    # wide types first, as the safetensors library does, so that every tensor is aligned
    return _chunks(sorted(pieces, key=lambda piece: (-piece.dtype.itemsize, piece.name)), progress)


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _chunks(pieces: list[Piece], progress: Progress | None) -> Iterator[Chunk]:
    yield _header(pieces)
    total, done = sum(piece.nbytes for piece in pieces), 0
    for piece in pieces:
        data = piece.read().contiguous().reshape(-1).view(torch.uint8).numpy()
        for start in range(0, len(data), WRITTEN_BYTES):
            part = data[start : start + WRITTEN_BYTES].data
            yield part
            done += len(part)
            if progress is not None:
                progress("writing weights", done, total)


def _header(pieces: list[Piece]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for piece in pieces:
        start, end = end, end + piece.nbytes
        entries[piece.name] = {"dtype": CODES[piece.dtype], "shape": piece.shape, "data_offsets": (start, end)}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text
