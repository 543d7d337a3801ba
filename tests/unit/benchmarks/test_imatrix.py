"""The reference models of benchmarks/imatrix.py."""

import imatrix
from fairbits.models.checkpoint import Checkpoint


def test_a_bloom_in_gguf_is_the_same_model(two_block_embedded, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    imatrix.write_bloom(two_block_embedded, tmp_path / "tiny.gguf")
    checkpoint = Checkpoint(tmp_path / "tiny.gguf")
    assert checkpoint.tensors.keys() == two_block_embedded.tensors.keys()
    for name in checkpoint.tensors:
        assert checkpoint.read(name).equal(two_block_embedded.read(name).float()), name
