"""The safetensors files of a model: one file, or shards with an index; and single tensors out of them."""

import mmap
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from fairbits.errors import InputError
from fairbits.model.files.safetensors_header import TensorInfo, read_header
from fairbits.records import read_object

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def read_weights(directory: Path) -> tuple[dict[str, TensorInfo], tuple[str, ...]]:
    """Returns every tensor of the model in `directory`, in file order, and notes on what is odd about the files."""
    single, index = directory / SINGLE, directory / INDEX
    if single.is_file() and index.is_file():
        raise InputError(f"{directory} holds both {SINGLE} and {INDEX}; keep the one that belongs to the model")
    if index.is_file():
        return _read_shards(directory, read_object(index))
    if single.is_file():
        return read_header(single), ()
    raise InputError(f"{directory} holds neither {SINGLE} nor {INDEX}; found: {_listing(directory)}")


def map_tensor(info: TensorInfo) -> torch.Tensor:
    """Returns the tensor, memory-mapped; its pages go back to the system when the last reference to it goes.

    Every call makes a mapping of its own, and a private one: writing to the tensor would change neither the file nor
    another tensor.
    """
    if info.nbytes == 0:
        return torch.empty(info.shape, dtype=info.dtype)
    page_start = info.start - info.start % mmap.ALLOCATIONGRANULARITY
    length = info.start + info.nbytes - page_start
    try:
        with info.file.open("rb") as file:
            if os.fstat(file.fileno()).st_size < info.start + info.nbytes:
                raise InputError(f"{info.file} is shorter than when it was opened; open the checkpoint again")
            if info.start % info.dtype.itemsize:  # the format does not promise alignment, and torch needs it: copy
                data = bytearray(info.nbytes)
                file.seek(info.start)
                file.readinto(data)
                return torch.frombuffer(data, dtype=info.dtype).reshape(info.shape)
            pages = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY, offset=page_start)
    except OSError as problem:
        raise InputError(f"{info.file} can no longer be read ({problem.strerror}); it must stay in place") from None
    return torch.frombuffer(pages, dtype=info.dtype, offset=info.start - page_start).reshape(info.shape)


def _read_shards(directory: Path, index: Mapping[str, object]) -> tuple[dict[str, TensorInfo], tuple[str, ...]]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise InputError(f"{directory / INDEX} has no weight_map from tensor names to file names; fetch it again")
    expected: dict[str, set[str]] = defaultdict(set)
    for name, shard in weight_map.items():
        expected[shard].add(name)
    tensors: dict[str, TensorInfo] = {}
    for shard in sorted(expected):
        found = read_header(_shard_path(directory, shard))
        _check_agreement(directory / INDEX, shard, expected=expected[shard], found=found.keys())
        tensors |= found
    return tensors, _size_note(index, sum(info.nbytes for info in tensors.values()))


def _shard_path(directory: Path, shard: str) -> Path:
    """Returns where the shard lies, which must be `directory` itself.

    The file may be a link (in the cache of the Hub every file is one): whoever can place links can place files too.
    The name comes from the index, and must not lead elsewhere.
    """
    if not re.fullmatch(r"[^/\\:\0]+\.safetensors", shard):
        raise InputError(
            f"{directory / INDEX} names the shard {shard!r:.80}; a shard must be a .safetensors file beside the index"
        )
    path = directory / shard
    if not path.is_file():
        raise InputError(f"{directory / INDEX} names the shard {shard}, which is missing; fetch it into {directory}")
    return path


def _check_agreement(index: Path, shard: str, *, expected: set[str], found: Iterable[str]) -> None:
    missing, extra = sorted(expected - set(found)), sorted(set(found) - expected)
    if missing or extra:
        troubles = [f"lacks {_some(missing)}"] * bool(missing) + [f"also holds {_some(extra)}"] * bool(extra)
        raise InputError(
            f"{index} does not fit {shard}, which {' and '.join(troubles)}; "
            "index and shards must come from the same model: fetch them again"
        )


def _size_note(index: Mapping[str, object], size: int) -> tuple[str, ...]:
    # Not an error: conversions that drop tied copies leave the old total behind, and every shard has been checked.
    metadata = index.get("metadata")
    stated = metadata.get("total_size", size) if isinstance(metadata, dict) else size
    return () if stated == size else (f"the index states {stated!r:.40} bytes, the shards hold {size}",)


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _listing(directory: Path) -> str:
    names = sorted(path.name for path in directory.iterdir())
    return (", ".join(names[:8]) + (" …" if len(names) > 8 else "")) or "nothing"
