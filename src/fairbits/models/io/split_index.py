"""Tensors that only one of two loaders may read, transformers or vLLM: the files that hold them, and both indices.

**Shapes.** vLLM takes every tensor of query_key_value for rows of attention heads and rearranges them, also the two
numbers of X.weight_shape, and stops there: 0.32 in BLOOM, 0.26 also in GPT-NeoX. It needs no shapes;
compressed-tensors, and so transformers, does.

**Joined tensors.** Files of Kimi Linear, OLMo hybrid and Bailing hybrid have convolutions of q, k and v, which vLLM
reads, and transformers 5.22 joins them into one. With packed weights in the file it does not: it then looks for
packed convolutions. It reads the joined tensor under the name that it has in the model.

So a checkpoint of such a model has

    shapes.safetensors                   X.weight_shape of these weights
    joined.safetensors                   tensors as transformers joins them
    parts.safetensors                    the same as they are in the original file
    model.safetensors.index.json         everything without shapes and joined tensors: what vLLM reads
    transformers.safetensors.index.json  everything without parts: `transformers_weights` in config.json names it
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fairbits.core.errors import InputError
from fairbits.core.files import write_whole
from fairbits.models.architecture.tensor_names import Conversions, joined_groups
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.safetensors_files import (
    EXPLICIT,
    INDEX,
    INDEX_SUFFIX,
    StoredTensor,
    in_memory,
    read_header,
    write_tensors,
)
from fairbits.models.scales.scheme import Scheme

SHAPES, JOINED, PARTS = "shapes.safetensors", "joined.safetensors", "parts.safetensors"
COMPLETE = f"transformers{INDEX_SUFFIX}"
REARRANGED = {"bloom": ".query_key_value", "gpt_neox": ".query_key_value"}  # modules that vLLM rearranges blindly


@dataclass(frozen=True, eq=False)
class SplitIndex:
    """What is stored apart: tensors that only transformers reads, and `parts`, which only others read."""

    shapes: Mapping[str, Tensor] = field(default_factory=dict)
    joined: Mapping[str, Tensor] = field(default_factory=dict)
    parts: Mapping[str, Tensor] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._files)

    def write(self, directory: Path) -> None:
        for file, tensors in self._files.items():
            write_tensors(directory / file, in_memory(tensors))

    def write_indices(self, directory: Path, shards: Iterable[str], *, size_bytes: int) -> None:
        files = {shard: read_header(directory / shard) for shard in (*shards, *self._files)}
        complete = {shard: tensors for shard, tensors in files.items() if shard != PARTS}
        usual = {shard: tensors for shard, tensors in files.items() if shard not in (SHAPES, JOINED)}
        if (size := _size(complete)) != size_bytes:
            raise InputError(f"the tensors take {size:,} bytes and {size_bytes:,} were planned; report this")
        if self:
            _write_index(directory / COMPLETE, complete)
        _write_index(directory / INDEX, usual)

    @property
    def config_entries(self) -> dict[str, str]:
        return {EXPLICIT: COMPLETE} if self else {}

    @cached_property
    def _files(self) -> dict[str, Mapping[str, Tensor]]:
        files = {SHAPES: self.shapes, JOINED: self.joined, PARTS: self.parts}
        return {file: tensors for file, tensors in files.items() if tensors}


def split_index(checkpoint: Checkpoint, schemes: Mapping[str, Scheme]) -> SplitIndex:
    """Returns the shapes that vLLM cannot load, and what transformers joins, of a checkpoint that is quantized."""
    architecture = checkpoint.architecture
    end = REARRANGED.get(architecture.family)
    packed = [architecture.weights[name] for name in schemes if not architecture.weights[name].in_whole_bytes]
    unread = [weight for weight in packed if end is not None and weight.module.endswith(end)]
    model = checkpoint.meta_model()
    groups, conversions = joined_groups(model, architecture), Conversions(model)
    return SplitIndex(
        {f"{weight.name}_shape": torch.tensor(weight.shape) for weight in unread},
        {
            parameter: next(iter(conversions.convert(parameter, parts, checkpoint.read).values())).contiguous()
            for parameter, parts in groups.items()
        },
        {name: checkpoint.read(name) for parts in groups.values() for name in parts},
    )


def _size(shards: Mapping[str, Mapping[str, StoredTensor]]) -> int:
    return sum(info.nbytes for tensors in shards.values() for info in tensors.values())


def _write_index(path: Path, shards: Mapping[str, Mapping[str, StoredTensor]]) -> None:
    weight_map = {name: shard for shard, tensors in shards.items() for name in tensors}
    content = {"metadata": {"total_size": _size(shards)}, "weight_map": dict(sorted(weight_map.items()))}
    write_whole({path: [json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"]})
