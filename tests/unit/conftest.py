"""A writer of small GGUF models."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

WIDTH, HIDDEN, VOCABULARY = 64, 96, 260
SHAPES = {
    "attn_norm": (WIDTH,),
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (WIDTH, WIDTH),
    "attn_v": (WIDTH, WIDTH),
    "attn_output": (WIDTH, WIDTH),
    "ffn_norm": (WIDTH,),
    "ffn_gate": (HIDDEN, WIDTH),
    "ffn_up": (HIDDEN, WIDTH),
    "ffn_down": (WIDTH, HIDDEN),
}


def write_tokenizer(writer: gguf.GGUFWriter, *, add_bos: bool) -> None:
    letters = [f"<0x{i:02X}>" for i in range(256)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *letters, "▁"])
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types([2, 3, 3, *[6] * 256, 1])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(add_bos)


TYPES = {
    gguf.LlamaFileType.MOSTLY_Q4_0: gguf.GGMLQuantizationType.Q4_0,
    gguf.LlamaFileType.MOSTLY_Q8_0: gguf.GGMLQuantizationType.Q8_0,
}


def write(path: Path, file_type: gguf.LlamaFileType, *, add_bos: bool = True) -> dict[str, np.ndarray]:
    """Writes a Llama of two blocks and random weights, always the same; returns what a reader must find, by name."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(file_type)
    write_tokenizer(writer, add_bos=add_bos)
    shapes = {"token_embd.weight": (VOCABULARY, WIDTH), "output_norm.weight": (WIDTH,)}
    shapes |= {f"blk.{block}.{name}.weight": shape for block in range(2) for name, shape in SHAPES.items()}
    rng, expected = np.random.default_rng(0), {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape).astype(np.float32) / len(shape) ** 3
        if file_type in TYPES and len(shape) == 2:
            packed = quantize(values, TYPES[file_type])
            writer.add_tensor(name, packed, raw_dtype=TYPES[file_type])
            values = dequantize(packed, TYPES[file_type])
        else:
            writer.add_tensor(name, values)
        expected[name] = values
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


@pytest.fixture(scope="session")
def write_gguf() -> Callable[..., dict[str, np.ndarray]]:
    """Returns the function that writes a small model as a GGUF file."""
    return write
