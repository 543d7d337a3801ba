"""What benchmarks/llama_cpp.py writes for llama.cpp."""

import gguf
import pytest
import torch

import llama_cpp
from fairbits.models.checkpoint import Checkpoint


def test_a_model_in_bfloat16_is_the_same_model(tmp_path, monkeypatch, write_gguf) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write_gguf(tmp_path / "float.gguf", gguf.LlamaFileType.ALL_F32)
    before = Checkpoint(tmp_path / "float.gguf")
    llama_cpp.write_gguf(before, tmp_path / "float.gguf", tmp_path / "half.gguf")
    after = Checkpoint(tmp_path / "half.gguf")
    assert after.notes == ("read from a GGUF file (BF16)",)
    assert after.tokenizer().get_vocab() == before.tokenizer().get_vocab()
    assert after.tensors.keys() == before.tensors.keys()
    for name, info in before.tensors.items():
        values = before.read(name)
        expected = values if len(info.shape) == 1 else values.to(torch.bfloat16).float()
        assert after.read(name).equal(expected), name


def test_a_file_of_another_model_is_refused(two_block_embedded, tmp_path, write_gguf) -> None:
    write_gguf(tmp_path / "float.gguf", gguf.LlamaFileType.ALL_F32)
    with pytest.raises(SystemExit, match="has other tensors than"):
        llama_cpp.write_gguf(two_block_embedded, tmp_path / "float.gguf", tmp_path / "half.gguf")
