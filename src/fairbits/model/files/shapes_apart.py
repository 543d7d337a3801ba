"""Shapes of packed weights that lie in a file of their own, as vLLM cannot load them, and the indices of both readers.

vLLM 0.32 takes every tensor of BLOOM's query_key_value for rows of attention heads and rearranges them, also the two
numbers of X.weight_shape, and stops there. It needs no shapes; compressed-tensors, and so transformers, does. So a
checkpoint of such a model has

    shapes.safetensors                   X.weight_shape of these weights
    model.safetensors.index.json         everything else: what vLLM reads
    transformers.safetensors.index.json  everything: `transformers_weights` in config.json makes transformers read it
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fairbits.artifacts import write_whole
from fairbits.errors import InputError
from fairbits.model.files.safetensors_files import EXPLICIT, INDEX, INDEX_SUFFIX, read_header
from fairbits.model.files.safetensors_writing import in_memory, write_tensors

if TYPE_CHECKING:
    from fairbits.model.architecture import Architecture

SHAPES = "shapes.safetensors"
COMPLETE = f"transformers{INDEX_SUFFIX}"
REARRANGED = {"bloom": ".query_key_value"}
"""By family, how the modules end whose tensors vLLM rearranges without looking at what they are."""


def shapes_apart(architecture: "Architecture", packed: Iterable[str]) -> dict[str, Tensor]:
    """Returns X.weight_shape of the packed weights whose shapes vLLM cannot load."""
    end = REARRANGED.get(architecture.family)
    weights = [architecture.weights[name] for name in packed]
    return {f"{w.name}_shape": torch.tensor(w.shape) for w in weights if end is not None and w.module.endswith(end)}


def write_indices(directory: Path, shards: Iterable[str], *, apart: Mapping[str, Tensor], size_bytes: int) -> None:
    """Writes which file holds which tensor, if their bytes are those that were planned; and tensors that lie apart."""
    if apart:
        write_tensors(directory / SHAPES, in_memory(apart))
    found = {shard: read_header(directory / shard) for shard in (*shards, *([SHAPES] if apart else []))}
    sizes = {shard: sum(info.nbytes for info in tensors.values()) for shard, tensors in found.items()}
    size = sum(sizes.values())
    if size != size_bytes:
        raise InputError(f"the tensors take {size:,} bytes and {size_bytes:,} were planned; report this")
    weight_map = {name: shard for shard, tensors in found.items() for name in tensors}
    if apart:
        _write_index(directory / COMPLETE, weight_map, size)
    others = {name: shard for name, shard in weight_map.items() if shard != SHAPES}
    _write_index(directory / INDEX, others, size - sizes.get(SHAPES, 0))


def index_entry(apart: Mapping[str, Tensor]) -> dict[str, str]:
    """Returns what config.json says of the index, if it is not the usual one."""
    return {EXPLICIT: COMPLETE} if apart else {}


def _write_index(path: Path, weight_map: Mapping[str, str], size: int) -> None:
    content = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
    write_whole({path: [json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"]})
