"""Reference models in GGUF for `imatrix.py`: float32 weights that lie on no grid.

A published GGUF file holds rounded weights. Rounding them again to the same grid would cost nothing, and to a related
one too little. So every weight is moved within the step of its own grid, at random: the model that results is the
reference. The embedded model was never rounded; it is written as it is.
"""

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.gguf_file import gguf_names
from published import MODELS, fetch

BLOCK = 32
"""Weights of a row that share a step, in all types of the published files (K-quants of 6 and 3 bits: 16)."""
EMBEDDED = "tiny"
NAMES = (EMBEDDED, *MODELS)


def write_reference(name: str, path: Path) -> None:
    """Writes the reference model of this name."""
    draft = path.with_suffix(".part")
    if name == EMBEDDED:
        write_bloom(Checkpoint("embedded:tiny"), draft)
    else:
        write_dithered(fetch(MODELS[name]), draft)
    draft.rename(path)


def dithered(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns weights, each moved by up to half the step of its block; the step is the least distance in the block."""
    blocks = values.reshape(-1, BLOCK // 2).astype(np.float32)
    gaps = np.diff(np.sort(blocks, axis=1), axis=1)
    step = np.where(gaps > 1e-6 * np.abs(blocks).max(1, keepdims=True), gaps, np.inf).min(1, keepdims=True)
    step[~np.isfinite(step)] = 0.0
    return (blocks + step * rng.uniform(-0.5, 0.5, blocks.shape)).reshape(values.shape).astype(np.float32)


def write_dithered(source: Path, path: Path) -> None:
    """Writes a GGUF file in float32 with the metadata of another and its weights, off their grid."""
    reader, rng = gguf.GGUFReader(source), np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, str(reader.fields["general.architecture"].contents()))
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in (
            "general.architecture",
            "general.file_type",
            "general.quantization_version",
        ):
            continue
        kind, *inner = field.types
        writer.add_key_value(key, field.contents(), kind, sub_type=inner[-1] if inner else None)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        rounded = tensor.tensor_type not in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
        writer.add_tensor(tensor.name, dithered(values, rng) if rounded else values)
    _finish(writer)


def write_bloom(checkpoint: Checkpoint, path: Path) -> None:
    """Writes a BLOOM as llama.cpp's converter does: q, k and v one after the other instead of head by head."""
    config = checkpoint.config
    writer = gguf.GGUFWriter(path, "bloom")
    writer.add_context_length(512)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(4 * config.hidden_size)
    writer.add_block_count(config.n_layer)
    writer.add_head_count(config.n_head)
    writer.add_head_count_kv(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_tokenizer(writer, json.loads((checkpoint.directory / "tokenizer.json").read_text("utf-8")))
    short = {name.removeprefix("transformer."): name for name in checkpoint.tensors}
    names = gguf_names("bloom", short, blocks=config.n_layer)
    assert names.keys() == short.keys()
    for ours, theirs in names.items():
        values = checkpoint.read(short[ours]).float().numpy()
        if "query_key_value" in ours:
            by_head = values.reshape(config.n_head, 3, -1, *values.shape[1:])
            values = np.concatenate([by_head[:, i].reshape(-1, *values.shape[1:]) for i in range(3)])
        writer.add_tensor(theirs, np.ascontiguousarray(values))
    _finish(writer)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    special = {each["id"] for each in tokenizer["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for i in range(len(tokens))]
    )
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    add: tuple[Callable[[int], None], ...] = (
        writer.add_unk_token_id,
        writer.add_bos_token_id,
        writer.add_eos_token_id,
        writer.add_pad_token_id,
    )
    for number, function in enumerate(add):
        function(number)
    writer.add_add_bos_token(True)


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
