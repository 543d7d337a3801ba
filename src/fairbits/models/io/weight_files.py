"""The weights of a model: one safetensors file, or shards with an index, in a directory or on the Hub."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbits.core.errors import InputError
from fairbits.core.records import read_object
from fairbits.models.io.hub_files import HubFiles
from fairbits.models.io.safetensors_files import EXPLICIT, INDEX, INDEX_SUFFIX, SINGLE, StoredTensor, read_header

FILE_NAME = r"[^/\\:\0]+"  # leads nowhere else


@dataclass(frozen=True)
class Directory:
    """The files of a model in a local directory."""

    path: Path

    def has(self, name: str) -> bool:
        """Returns whether there is a file, or a link to one, as in the cache of the Hub."""
        return (self.path / name).is_file()

    def read_object(self, name: str) -> dict[str, Any]:
        return read_object(self.path / name)

    def read_header(self, name: str) -> dict[str, StoredTensor]:
        return read_header(self.path / name)


Folder = Directory | HubFiles


def read_weights(folder: Folder, explicit: object = None) -> tuple[dict[str, StoredTensor], tuple[str, ...]]:
    """Returns every tensor in file order, and notes on odd files; `explicit` is the entry EXPLICIT of config.json."""
    if explicit is not None:
        return _read_explicit(folder, explicit)
    if folder.has(SINGLE) and folder.has(INDEX):
        raise InputError(f"{folder.path} holds both {SINGLE} and {INDEX}; keep the one that belongs to the model")
    if folder.has(INDEX):
        return _read_shards(folder, INDEX)
    if folder.has(SINGLE):
        return folder.read_header(SINGLE), ()
    raise no_weights(folder.path)


def no_weights(directory: Path) -> InputError:
    """Returns the error for a directory without weights."""
    return InputError(f"{directory} holds neither {SINGLE} nor {INDEX}; found: {_listing(directory)}")


def _read_explicit(folder: Folder, name: object) -> tuple[dict[str, StoredTensor], tuple[str, ...]]:
    if not isinstance(name, str) or not re.fullmatch(rf"{FILE_NAME}({re.escape(INDEX_SUFFIX)}|\.safetensors)", name):
        raise InputError(
            f"{folder.path / 'config.json'} names the weights {name!r:.80} ({EXPLICIT}); it must be a .safetensors "
            "file or its index next to it"
        )
    if not folder.has(name):
        raise InputError(f"{folder.path / 'config.json'} names the weights {name}, which are missing; fetch them")
    return _read_shards(folder, name) if name.endswith(INDEX_SUFFIX) else (folder.read_header(name), ())


def _read_shards(folder: Folder, name: str) -> tuple[dict[str, StoredTensor], tuple[str, ...]]:
    index, path = folder.read_object(name), folder.path / name
    weight_map = index.get("weight_map")
    named = isinstance(weight_map, dict) and all(isinstance(shard, str) for shard in weight_map.values())
    if not weight_map or not named:
        raise InputError(f"{path} has no weight_map from tensor names to file names; fetch it again")
    expected: dict[str, set[str]] = defaultdict(set)
    for tensor, shard in weight_map.items():
        expected[shard].add(tensor)
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(expected):
        _check_shard(folder, path, shard)
        stored = folder.read_header(shard)
        _check_agreement(path, shard, expected=expected[shard], stored=stored.keys())
        tensors |= stored
    return tensors, _size_note(index, sum(info.nbytes for info in tensors.values()))


def _check_shard(folder: Folder, index: Path, shard: str) -> None:
    """Raises unless the shard is a file next to its index: the name must not lead elsewhere."""
    if not re.fullmatch(rf"{FILE_NAME}\.safetensors", shard):
        raise InputError(f"{index} names the shard {shard!r:.80}; it must be a .safetensors file next to the index")
    if not folder.has(shard):
        raise InputError(f"{index} names the shard {shard}, which is missing; fetch it into {index.parent}")


def _check_agreement(index: Path, shard: str, *, expected: set[str], stored: Iterable[str]) -> None:
    missing, extra = sorted(expected - set(stored)), sorted(set(stored) - expected)
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
