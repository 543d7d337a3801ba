"""GGUF files: a real one of two blocks, damaged ones, and llama.cpp's names of tensors, written out by hand."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from fairbits.core.errors import InputError
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.gguf_file import ARCHITECTURES, gguf_names, read_gguf_header
from fairbits.text.corpus import Corpus, TextRequest


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "model.gguf"


def test_a_quantized_file_is_dequantized_once_and_said_so(path: Path, tmp_path: Path, write_gguf) -> None:
    expected = write_gguf(path, gguf.LlamaFileType.MOSTLY_Q8_0)
    checkpoint = Checkpoint(path)
    assert checkpoint.kind == "gguf"
    assert checkpoint.notes == ("the reference is itself quantized (Q8_0, from a GGUF file, dequantized to float32)",)
    assert checkpoint.directory.parent == tmp_path / "cache" / "fairbits"
    assert len(checkpoint.tensors) == len(expected)
    for name, ours in [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"),
        ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
    ]:
        assert checkpoint.read(ours).equal(torch.from_numpy(expected[name]))
    assert checkpoint.tokenizer()("a")["input_ids"][0] == 1  # the file asks for <s>
    assert not checkpoint.load().training
    moved = path.rename(tmp_path / "elsewhere.gguf")
    modified_ns = checkpoint.directory.stat().st_mtime_ns
    assert Checkpoint(moved).directory.stat().st_mtime_ns == modified_ns


def test_a_file_in_full_precision_is_not_called_quantized(path: Path, write_gguf) -> None:
    write_gguf(path, gguf.LlamaFileType.ALL_F32)
    assert Checkpoint(path).notes == ("read from a GGUF file (F32)",)


def test_a_start_token_that_the_file_does_not_add_is_not_read(path: Path, write_gguf) -> None:
    write_gguf(path, gguf.LlamaFileType.ALL_F32, add_bos=False)
    checkpoint = Checkpoint(path)
    assert checkpoint.tokenizer().bos_token_id is None
    corpus = Corpus("letters", {}, {code: [f"text number {i}" for i in range(5)] for code in ("eng", "fra")})
    windows = tokenize_corpus(checkpoint, corpus, request=TextRequest("evaluation")).windows
    assert all(window.main.text[0] for window in windows)


def test_metadata_are_read_without_the_library(path: Path, write_gguf) -> None:
    write_gguf(path, gguf.LlamaFileType.ALL_F32)
    metadata = read_gguf_header(path).metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)
    assert metadata["tokenizer.ggml.add_bos_token"] is True
    assert "tokenizer.ggml.tokens" not in metadata


def start(n_pairs: int, version: int = 3) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", version, 0, n_pairs)


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated or not a GGUF"),
        (b"GGUF", "truncated or not a GGUF"),
        (b"PK\3\4" + bytes(100), "it must be GGUF"),
        (start(0, version=1), "version 2 or 3"),
        (start(2**63), "truncated"),
        (start(1) + struct.pack("<Q", 2**63), "goes beyond its end"),
        (start(1) + string(b"k") + struct.pack("<I", 77), "unknown type 77"),
        (start(1) + string(b"k") + struct.pack("<IIQ", 9, 9, 1), "array of the unknown type 9"),
        (start(2) + string(b"k") + struct.pack("<IIQ", 9, 8, 2**62), "truncated"),
        (start(2) + string(b"k") + struct.pack("<IIQ", 9, 0, 2**62), "goes beyond its end"),
        (start(2) + string(b"k") + struct.pack("<IIQ", 9, 0, 2**63) + string(b"l"), "goes beyond its end"),
        (start(1) + string(b"split.count") + struct.pack("<IH", 2, 3), "one part of several"),
        (start(1) + string(b"split.count") + struct.pack("<I", 8) + string(b"three"), "one part of several"),
        (start(1) + string(b"\xff") + struct.pack("<IB", 0, 1), "truncated or not a GGUF"),
    ],
)
def test_a_damaged_header(content: bytes, message: str, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        Checkpoint(path)


def tensor(*sides: int, stated: int | None = None, count: int = 1) -> bytes:
    """Returns a file with the description of one tensor, and nothing else."""
    description = string(b"t") + struct.pack(
        f"<I{len(sides)}QIQ", len(sides) if stated is None else stated, *sides, 0, 0
    )
    return struct.pack("<4sIQQ", b"GGUF", 3, count, 0) + description


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tensor(2**62), r"'t' of the shape \(4611686018427387904,\) goes beyond its end"),
        (tensor(2**20, 2**20, 2**20, 2**20), "goes beyond its end"),
        (tensor(1, stated=2**31), "'t' has 2,147,483,648 sides"),
        (tensor(1, stated=5), "'t' has 5 sides"),
        (tensor(1, count=2**62), "truncated"),
    ],
)
def test_tensors_that_the_file_cannot_hold(content: bytes, message: str, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_gguf_header(path)


@pytest.mark.parametrize(
    "name", ["block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size"]
)
def test_sizes_that_the_tensors_refute(name: str, path: Path, tmp_path: Path, write_gguf) -> None:
    write_gguf(path, gguf.LlamaFileType.ALL_F32)
    content, key = path.read_bytes(), f"llama.{name}".encode()
    at = content.index(key) + len(key) + 4
    path.write_bytes(content[:at] + struct.pack("<I", 4_000_000_000) + content[at + 4 :])
    with pytest.raises(InputError, match=rf"model\.gguf has llama\.{name} = 4000000000; it must be a whole number"):
        Checkpoint(path)
    assert not (tmp_path / "cache").exists()


def test_a_size_that_only_the_class_refutes(path: Path, write_gguf) -> None:
    write_gguf(path, gguf.LlamaFileType.ALL_F32)
    content, key = path.read_bytes(), b"llama.attention.head_count"
    at = content.index(key) + len(key) + 4
    path.write_bytes(content[:at] + struct.pack("<I", 3) + content[at + 4 :])  # divides nothing
    with pytest.raises(InputError, match=r"model\.gguf|LlamaForCausalLM"):
        Checkpoint(path)


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_file_cut_short_leaves_nothing_behind(share: float, path: Path, tmp_path: Path, write_gguf) -> None:
    write_gguf(path, gguf.LlamaFileType.MOSTLY_Q8_0)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match=r"model\.gguf"):
        Checkpoint(path)
    assert list((tmp_path / "cache" / "fairbits").glob("*")) == []


def test_a_type_that_cannot_be_dequantized_is_named(path: Path, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    kind = gguf.GGMLQuantizationType.Q8_K
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        InputError, match=r"holds 1 tensor of the type Q8_K \(blk\.0\.attn_q\.weight\), which gguf .* F32"
    ):
        Checkpoint(path)
    assert list((tmp_path / "cache" / "fairbits").glob("*")) == []


def test_an_imatrix_is_no_model(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "")
    writer.add_type("imatrix")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(InputError, match="is an imatrix, not a model"):
        Checkpoint(path)


LLAMA = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
BLOOM = {
    "self_attention.query_key_value": "attn_qkv",
    "self_attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}
PHI3 = {
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def expected(family: str) -> dict[str, str]:
    """Returns the names of the second block's linear layers."""
    table = {"bloom": BLOOM, "phi3": PHI3}.get(family, LLAMA)
    before = "transformer.h.1" if family == "bloom" else "model.layers.1"
    return {f"{before}.{ours}.weight": f"blk.1.{theirs}.weight" for ours, theirs in table.items()}


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_names(family: str) -> None:
    wanted = expected(family)
    assert gguf_names(family, wanted, blocks=2) == wanted


def test_a_model_that_also_sees_and_a_tensor_that_is_unknown() -> None:
    names = ["model.language_model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.sideways.weight"]
    assert gguf_names("gemma3", names, blocks=1) == {names[0]: "blk.0.ffn_up.weight"}


def test_an_unknown_family() -> None:
    with pytest.raises(InputError, match=r"family 'gpt2'.*known for bloom, .*llama-imatrix"):
        gguf_names("gpt2", [], blocks=1)
