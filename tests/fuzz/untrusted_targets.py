"""The readers of files of models that others write: weights, configurations, GGUF, imatrix."""

import json
import math
import random
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Files, Target
from mutations import broken, mutated_json
from record_targets import ROOT, refused
from safetensors.torch import save
from truth import check_codes, rule

from fairbits.core.errors import InputError
from fairbits.core.records import read_object
from fairbits.models.io.gguf_file import read_gguf_header
from fairbits.models.io.imatrix_file import Imatrix, Importance, read_imatrix
from fairbits.models.io.safetensors_files import read_header
from fairbits.models.io.weight_files import Directory, read_weights

LM_EVAL = ROOT / "tests/data/lm_eval"


def target(
    name: str,
    make: Callable[[random.Random], Files],
    read: Callable[[Path], None],
    *,
    files: tuple[str, ...],
    share: float = 1.0,
) -> Target:
    """Returns a target whose `read` raises InputError that names one of the files, or checks what it has read."""

    def try_read(place: Path) -> str:
        try:
            read(place)
        except InputError as problem:
            raise refused(problem, *(place / file for file in files)) from None
        return "accepted"

    return Target(name, make, try_read, share)


def header_and_data(content: bytes) -> tuple[bytes, bytes]:
    """Returns the header of a safetensors file and its data."""
    (length,) = struct.unpack("<Q", content[:8])
    return content[8 : 8 + length], content[8 + length :]


def joined(header: bytes, data: bytes) -> bytes:
    """Returns a safetensors file."""
    return struct.pack("<Q", len(header)) + header + data


@cache
def shards() -> tuple[bytes, bytes]:
    """Returns two small files of weights."""
    one = {"a.weight": torch.ones(4, 8), "b.weight": torch.zeros(2, 3, dtype=torch.bfloat16)}
    return save(one, metadata={"format": "pt"}), save({"c.bias": torch.ones(5), "d": torch.zeros(0, 4)})


def mutated_weights(rng: random.Random, content: bytes) -> bytes:
    """Returns a file of weights with a changed header, or with changed bytes."""
    if rng.random() < 0.3:
        return broken(rng, content)
    header, data = header_and_data(content)
    return joined(mutated_json(rng, header), data)


def check_tensors(tensors: dict[str, Any], size: int) -> None:
    """Checks that tensors lie side by side in the file and fill it, each with its elements."""
    end = None
    for info in tensors.values():
        rule(info.nbytes == math.prod(info.shape) * info.dtype.itemsize, f"{info.name!r:.60} has another size")
        rule(all(type(length) is int and length >= 0 for length in info.shape), f"a shape is {info.shape}")
        rule(end is None or info.start == end, "tensors overlap, or leave a gap")
        end = info.start + info.nbytes
    rule(end is None or end == size, "tensors do not fill the file")


def weights_target() -> Target:
    """Returns the target of the header of a safetensors file."""

    def make(rng: random.Random) -> Files:
        return {"model.safetensors": mutated_weights(rng, rng.choice(shards()))}

    def read(place: Path) -> None:
        file = place / "model.safetensors"
        check_tensors(read_header(file), file.stat().st_size)

    return target("safetensors header", make, read, files=("model.safetensors",))


def index_target() -> Target:
    """Returns the target of an index of shards, and of the shards beside it."""
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    owner = {"a.weight": names[0], "b.weight": names[0], "c.bias": names[1], "d": names[1]}
    index = json.dumps({"metadata": {"total_size": 160}, "weight_map": owner}).encode()

    def make(rng: random.Random) -> Files:
        files = {"model.safetensors.index.json": index, **dict(zip(names, shards(), strict=True))}
        if rng.random() < 0.8:
            return files | {"model.safetensors.index.json": mutated_json(rng, index)}
        name = rng.choice(names)
        return files | {name: mutated_weights(rng, files[name])}

    def read(place: Path) -> None:
        tensors, _ = read_weights(Directory(place))
        rule(
            bool(tensors)
            and tensors.keys() <= owner.keys()
            and all(tensor.file.parent == place for tensor in tensors.values()),
            "other tensors",
        )

    return target("shard index", make, read, files=("model.safetensors.index.json", *names))


def config_target() -> Target:
    """Returns the target of what is read of config.json before transformers sees it, and of the weights it names."""
    config = {
        "model_type": "llama",
        "transformers_weights": "model.safetensors",
        "hidden_size": 32,
        "eos_token_id": [1, 2],
    }
    config |= {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "quantization_config": None, "dtype": "bfloat16"}
    seed = json.dumps(config).encode()

    def make(rng: random.Random) -> Files:
        return {"config.json": mutated_json(rng, seed), "model.safetensors": shards()[0]}

    def read(place: Path) -> None:
        contents = read_object(place / "config.json", finite=False)
        weights, _ = read_weights(Directory(place), contents.get("transformers_weights"))
        rule(set(weights) == {"a.weight", "b.weight"}, "other weights are read")

    return target("config.json", make, read, files=("config.json", "model.safetensors"))


def gguf_value(rng: random.Random) -> tuple[int, bytes]:
    """Returns a value of a GGUF header with its type."""
    kind = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 255, 2**32 - 1))
    if kind == 8:
        text = rng.choice((b"llama", b"\xff\xfe", b"", b"x" * 300))
        return kind, struct.pack("<Q", rng.choice((len(text), len(text), 2**63, 2**64 - 1))) + text
    if kind == 9:
        inner, count = rng.choice((0, 4, 8, 9, 77)), rng.choice((0, 1, 3, 2**40, 2**64 - 1))
        return kind, struct.pack("<IQ", inner, count) + b"\0" * 24
    return kind, rng.randbytes(8)[: rng.choice((1, 2, 4, 8))]


@cache
def gguf_seed() -> bytes:
    """Returns a small GGUF file: an imatrix, which has strings, numbers, arrays and tensors."""
    entries = {
        "blk.0.attn_q.weight": Importance(np.ones((1, 8)), np.array([64])),
        "blk.0.ffn_up_exps.weight": Importance(np.ones((2, 8)), np.array([64, 3])),
    }
    return Imatrix(entries, ("text",), 64, {"eng_Latn": 0.5, "heb_Hebr": 0.5}, "0" * 64).to_bytes()


def mutated_gguf(rng: random.Random) -> bytes:
    """Returns a GGUF file with changed bytes, or with pairs that are made up."""
    if rng.random() < 0.6:
        return broken(rng, gguf_seed())
    pairs = b""
    number = rng.randrange(5)
    for _ in range(number):
        key = rng.choice((b"general.type", b"general.architecture", b"split.count", b"\xff", b"a" * 70))
        kind, value = gguf_value(rng)
        pairs += struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value
    declared = rng.choice((number, number, number + 1, 2**40, 2**64 - 1))
    version = rng.choice((2, 3, 3, 3, 1, 0, 2**32 - 1))
    return (
        struct.pack("<4sIQQ", b"GGUF", version, rng.choice((0, 1, 2**50)), declared)
        + pairs
        + b"\0" * rng.choice((0, 64))
    )


def gguf_target() -> Target:
    """Returns the target of the header of a GGUF file."""

    def read(place: Path) -> None:
        metadata = read_gguf_header(place / "model.gguf").metadata
        rule(all(isinstance(key, str) for key in metadata), "a key is no text")
        rule(all(isinstance(value, str | int | float) for value in metadata.values()), "a value is of no known type")

    return target("GGUF header", lambda rng: {"model.gguf": mutated_gguf(rng)}, read, files=("model.gguf",))


def imatrix_target() -> Target:
    """Returns the target of imatrix files."""

    def read(place: Path) -> None:
        imatrix = read_imatrix(place / "imatrix.gguf")
        rule(bool(imatrix.entries), "no layer is there")
        for entry in imatrix.entries.values():
            rule(bool(np.isfinite(entry.mean).all() and (entry.mean >= 0).all()), "an importance is none")
            rule(bool((entry.counts >= 0).all()) and entry.mean.ndim == 2, "a count is negative")
        rule(1 <= imatrix.chunk_size < 2**63, f"a window has {imatrix.chunk_size} tokens")
        check_codes(imatrix.languages)
        rule(all(0 <= share <= 1 for share in imatrix.languages.values()), f"shares are {imatrix.languages}")
        rule(
            imatrix.fingerprint is None or isinstance(imatrix.fingerprint, str),
            f"a fingerprint is {imatrix.fingerprint!r:.40}",
        )
        rule(imatrix.tokens >= 0, "tokens are negative")

    return target("imatrix", lambda rng: {"imatrix.gguf": mutated_gguf(rng)}, read, files=("imatrix.gguf",))


def untrusted_targets() -> list[Target]:
    """Returns the targets of files of models."""
    return [
        weights_target(),
        index_target(),
        config_target(),
        gguf_target(),
        imatrix_target(),
    ]
