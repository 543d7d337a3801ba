"""The embedded model in GGUF, as llama.cpp's converter would write it, for `imatrix.py`."""

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.gguf_file import gguf_names


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
