"""The reference models of benchmarks/imatrix.py."""

import numpy as np
from gguf import GGMLQuantizationType, dequantize
from gguf.quants import quantize

import imatrix_models
from fairbits.models.checkpoint import Checkpoint


def test_dither_moves_weights_by_up_to_half_a_step_of_their_grid() -> None:
    rng = np.random.default_rng(0)
    kind = GGMLQuantizationType.Q4_0
    weights = dequantize(quantize(rng.standard_normal((64, 64)).astype(np.float32), kind), kind)
    moved = imatrix_models.dithered(weights, rng)
    blocks = weights.reshape(-1, 32)
    step = np.abs(blocks).max(1, keepdims=True) / 8  # the extreme is at −8
    shift = np.abs(moved - weights).reshape(-1, 32) / step
    # where no two neighbouring levels occur in half a block, the distance found is a multiple of the step
    assert np.median(shift.max(1)) < 0.51
    assert 0.2 < np.median(shift) < 0.3
    assert not np.isin(moved, weights).any()


def test_a_block_of_equal_weights_stays() -> None:
    weights = np.full((2, 32), 0.25, np.float32)
    assert np.array_equal(imatrix_models.dithered(weights, np.random.default_rng(0)), weights)


def test_a_bloom_in_gguf_is_the_same_model(two_block_embedded, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    imatrix_models.write_bloom(two_block_embedded, tmp_path / "tiny.gguf")
    found = Checkpoint(tmp_path / "tiny.gguf")
    assert found.tensors.keys() == two_block_embedded.tensors.keys()
    for name in found.tensors:
        assert found.read(name).equal(two_block_embedded.read(name).float()), name
