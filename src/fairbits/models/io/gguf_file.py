"""GGUF files: their header, read without the weights, and the weights, dequantized once into safetensors.

The file: magic, version, number of tensors, number of key-value pairs, the pairs, then the tensors. A pair is a string
(the key), a type, a value; a string is its length and its bytes; an array is a type, a length, its elements. A tensor
is described by a string (its name), the number of its sides, the sides, a type, and where its values begin.

The package gguf believes every length in a file, so that a header is checked here before it reads one.
"""

import importlib.metadata
import math
import mmap
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

from fairbits.core.errors import InputError, count_of
from fairbits.core.files import file_sha256, kept_directory
from fairbits.models.architecture.meta_model import check_values, meta_model
from fairbits.models.io.file_names import check_transformers
from fairbits.models.loading import no_progress_bars
from fairbits.models.untrusted.config_check import MOST_EXPERTS, MOST_POSITIONS

# Families, by model_type, that llama.cpp converts without moving an input channel; it permutes rows of q, k and v in
# some. A family whose columns it permutes must not be added: importance would end up at another channel.
_FAMILIES = ["bloom", "gemma", "gemma2", "gemma3", "gemma3_text", "llama", "mistral", "phi3", "qwen2", "qwen3"]
ARCHITECTURES = {name: {"gemma3_text": "GEMMA3", "mistral": "LLAMA"}.get(name, name.upper()) for name in _FAMILIES}


def gguf_names(family: str, names: Iterable[str], *, blocks: int) -> dict[str, str]:
    """Returns llama.cpp's name of each tensor; a tensor that its map does not know is left out."""
    if family not in ARCHITECTURES:
        raise InputError(
            f"the model is of the family {family!r:.40}; the names of its tensors in llama.cpp are known for "
            f"{', '.join(ARCHITECTURES)}: use llama-imatrix for this one, with text from fairbits mix"
        )
    import gguf

    tensors = gguf.get_tensor_name_map(gguf.MODEL_ARCH[ARCHITECTURES[family]], blocks)
    gguf_names = {
        # as its converter does, for the text part of a model that also reads images
        name: tensors.get_name(name.replace("language_model.", ""), try_suffixes=(".weight", ".bias"))
        for name in names
    }
    return {name: gguf_name for name, gguf_name in gguf_names.items() if gguf_name is not None}


Value = str | int | float | bool
FORMATS = dict(enumerate(["<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"])) | {10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
VERSIONS = (2, 3)
MOST_SIDES = 4  # as in ggml


@dataclass(frozen=True)
class GgufHeader:
    """The key-value pairs of a file, the shapes of its tensors, and where arrays (such as the vocabulary) begin."""

    metadata: Mapping[str, Value]
    shapes: tuple[tuple[int, ...], ...]
    arrays: Mapping[str, int] = field(default_factory=dict)

    @property
    def values(self) -> int:
        return sum(map(math.prod, self.shapes))


def read_gguf_header(path: Path) -> GgufHeader:
    """Returns the header of a file; a count is believed only as far as the file goes."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            magic, version, n_tensors, n_pairs = struct.unpack_from("<4sIQQ", data, 0)
            if magic != b"GGUF" or version not in VERSIONS:
                raise InputError(f"{path} starts with {magic!r}, version {version}; it must be GGUF, version 2 or 3")
            arrays: dict[str, int] = {}
            metadata, position = _read_pairs(data, 24, n_pairs, arrays)
            return GgufHeader(metadata, _read_shapes(data, position, n_tensors), arrays)
    except InputError:
        raise
    except (struct.error, ValueError) as problem:
        raise InputError(f"{path} is truncated or not a GGUF file ({problem}); fetch it again") from None
    except OSError as problem:
        raise InputError(f"{path} cannot be read ({problem.strerror}); it must be a GGUF file") from None


def check_gguf_sizes(header: GgufHeader, path: Path) -> None:
    """Raises if the metadata states sizes that the tensors of the file refute; transformers would believe them."""
    tensors, sides = len(header.shapes), {side for shape in header.shapes for side in shape}
    family = header.metadata.get("general.architecture", "")
    bounds = {
        "block_count": tensors,
        "context_length": MOST_POSITIONS,
        **dict.fromkeys(("embedding_length", "feed_forward_length", "vocab_size"), max(sides, default=0)),
        **dict.fromkeys(("expert_count", "expert_used_count"), max(tensors, MOST_EXPERTS)),
    }
    for name, most in bounds.items():
        value = header.metadata.get(f"{family}.{name}", 0)
        if not isinstance(value, int) or value > most:
            raise InputError(
                f"{path} has {family}.{name} = {value!r:.40}; it must be a whole number that fits its "
                f"{count_of(tensors, 'tensor')}, at most {most:,}: fetch it again"
            )


def _read_pairs(data: mmap.mmap, position: int, count: int, arrays: dict[str, int]) -> tuple[dict[str, Value], int]:
    """Returns the pairs but for arrays, whose positions are added to `arrays`, and the position after them."""
    pairs: dict[str, Value] = {}
    for _ in range(count):
        key, position = _read_string(data, position)
        (kind,) = struct.unpack_from("<I", data, position)
        if kind == ARRAY:
            arrays[key] = position + 4
            position = skip_array(data, position + 4)
        else:
            pairs[key], position = _read_scalar(data, position + 4, kind)
    return pairs, position


def _read_shapes(data: mmap.mmap, position: int, count: int) -> tuple[tuple[int, ...], ...]:
    """Returns the sides of every tensor; none may have more values than the file has bits."""
    shapes = []
    for _ in range(count):
        name, position = _read_string(data, position)
        (sides,) = struct.unpack_from("<I", data, position)
        if sides > MOST_SIDES:
            raise ValueError(f"its tensor {name!r:.80} has {sides:,} sides")
        shapes.append(struct.unpack_from(f"<{sides}Q", data, position + 4))
        if math.prod(shapes[-1]) > 8 * len(data):
            raise ValueError(f"its tensor {name!r:.80} of the shape {shapes[-1]} goes beyond its end")
        position += 4 + 8 * sides + 12
    return tuple(shapes)


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


def read_strings(data: mmap.mmap, position: int) -> list[str]:
    """Returns the strings of an array in a file whose header was read."""
    _, count = struct.unpack_from("<IQ", data, position)
    position, strings = position + 12, list[str]()
    for _ in range(count):
        end = _string_end(data, position)
        strings.append(data[position + 8 : end].decode("utf-8", errors="replace"))
        position = end
    return strings


def skip_array(data: mmap.mmap, position: int) -> int:
    """Returns the position after an array; it must be within the file."""
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


ITSELF_QUANTIZED = "the reference is itself quantized ("  # the note on a model from a quantized file
FULL_PRECISION = {0: "F32", 1: "F16", 32: "BF16"}  # llama.cpp's numbers for general.file_type


def open_header(path: Path) -> GgufHeader:
    """Returns the header of a file that holds a whole model, checked."""
    header = read_gguf_header(path)
    metadata = header.metadata
    check_transformers(path)
    if metadata.get("general.type") == "imatrix":
        raise InputError(f"{path} is an imatrix, not a model; llama-quantize --imatrix reads it")
    if metadata.get("split.count", 1) not in (0, 1):
        raise InputError(f"{path} is one part of several; join them first: llama-gguf-split --merge FIRST-PART OUT")
    check_gguf_sizes(header, path)
    return header


def kept_name(path: Path, header: GgufHeader) -> str:
    """Returns the name of the directory of the cache for the dequantized model."""
    versions = [f"{package}-{importlib.metadata.version(package)}" for package in ("transformers", "gguf")]
    name = "-".join(["gguf", file_sha256(path), *versions])
    return f"{name}-without-start" if header.metadata.get("tokenizer.ggml.add_bos_token") is False else name


def dequantize_gguf(path: Path) -> tuple[Path, tuple[str, ...]]:
    """Returns the directory of the model in float32 (scale · code does not fit 16 bits), and a note on the file."""
    header = open_header(path)
    directory = kept_directory(kept_name(path, header), lambda draft: _write(path, draft, header))
    return directory, (_note(header.metadata),)


def _write(path: Path, directory: Path, header: GgufHeader) -> None:
    add_bos = header.metadata.get("tokenizer.ggml.add_bos_token")
    options = {"gguf_file": path.name, "local_files_only": True}
    try:
        _check_types(path)
        config = AutoConfig.from_pretrained(path.parent, **options)
        check_values(meta_model(config), header.values)
        with no_progress_bars():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                path.parent,
                config=config,
                dtype=torch.float32,
                quantization_config=GgufConfig(dequantize=True),
                output_loading_info=True,
                **options,
            )
        # transformers does not read this entry of the file by itself
        tokenizer = AutoTokenizer.from_pretrained(path.parent, add_bos_token=bool(add_bos), **options)
    except InputError:
        raise
    except Exception as problem:  # whatever a damaged file, or one of an unknown family, sets off in there
        raise InputError(f"transformers cannot dequantize {path}: {type(problem).__name__}: {problem}") from problem
    model, report = loaded
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise InputError(f"{path} lacks weights that the model needs ({missing} …); fetch it again")
    if add_bos is False:
        # A file may name a start token that its model does not expect: <|endoftext|> before a text costs
        # Qwen2.5-Coder-0.5B about 1 nat per token.
        tokenizer.bos_token = None
    with no_progress_bars():
        model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _check_types(path: Path) -> None:
    import gguf

    by_kind: dict[gguf.GGMLQuantizationType, list[str]] = {}
    for tensor in gguf.GGUFReader(path).tensors:
        by_kind.setdefault(tensor.tensor_type, []).append(tensor.name)
    for kind, tensors in by_kind.items():
        try:
            gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
        except NotImplementedError:
            raise InputError(
                f"{path} holds {count_of(len(tensors), 'tensor')} of the type {kind.name} ({tensors[0]}), which gguf "
                f"{importlib.metadata.version('gguf')} cannot dequantize; install a newer one, or convert the file: "
                "llama-quantize --allow-requantize FILE.gguf NEW.gguf F32"
            ) from None


def _note(metadata: Mapping[str, Value]) -> str:
    kind = metadata.get("general.file_type")
    if kind in FULL_PRECISION:
        return f"read from a GGUF file ({FULL_PRECISION[int(kind)]})"
    from gguf import LlamaFileType

    names: dict[Any, str] = {member.value: member.name.removeprefix("MOSTLY_") for member in LlamaFileType}
    return f"{ITSELF_QUANTIZED}{names.get(kind, 'type not named')}, from a GGUF file, dequantized to float32)"
