"""GGUF files: dequantized once through transformers into a directory of safetensors."""

import hashlib
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

import torch

from fairbits.errors import InputError
from fairbits.model.files.cache import kept_directory
from fairbits.model.files.gguf_header import Value, read_gguf_metadata

FULL_PRECISION = {0: "F32", 1: "F16", 32: "BF16"}  # llama.cpp's numbers for general.file_type


def dequantized(path: Path) -> tuple[Path, tuple[str, ...]]:
    """Returns the directory of the model in float32, made on first use, and a note on what the file was.

    float32, because the product of a block's scales and codes does not fit 16 bits.
    """
    metadata = read_gguf_metadata(path)
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise InputError(f"{path} needs the package {package}, which is missing: pip install 'fairbits[gguf]'")
    if metadata.get("split.count", 1) not in (0, 1):
        raise InputError(f"{path} is one part of several; join them first: llama-gguf-split --merge FIRST-PART OUT")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    name = f"gguf-{digest}-transformers-{importlib.metadata.version('transformers')}"
    add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", False))
    return kept_directory(name, lambda draft: _write(path, draft, add_bos=add_bos)), (_note(metadata),)


def _write(path: Path, directory: Path, *, add_bos: bool) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    options = {"gguf_file": path.name, "local_files_only": True}
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path.parent,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
            **options,
        )
        # transformers does not read this entry of the file by itself
        tokenizer = AutoTokenizer.from_pretrained(path.parent, add_bos_token=add_bos, **options)
    except Exception as problem:  # whatever a damaged file, or one of an unknown family, sets off in there
        raise InputError(f"transformers cannot dequantize {path}: {type(problem).__name__}: {problem}") from problem
    model, report = loaded
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise InputError(f"{path} lacks weights that the model needs ({missing} …); fetch it again")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _note(metadata: dict[str, Value]) -> str:
    kind = metadata.get("general.file_type")
    if kind in FULL_PRECISION:
        return f"read from a GGUF file ({FULL_PRECISION[int(kind)]})"
    return f"the reference is itself quantized ({_file_type(kind)}, from a GGUF file, dequantized to float32)"


def _file_type(kind: Value | None) -> str:
    from gguf import LlamaFileType

    names = {member.value: member.name.removeprefix("MOSTLY_") for member in LlamaFileType}
    return names.get(kind, "type not named") if isinstance(kind, int) else "type not named"
