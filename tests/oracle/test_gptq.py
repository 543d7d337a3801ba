"""GPTQ against a second implementation: one column at a time, with the inverse of H updated as the paper writes it."""

import numpy as np
import pytest
import torch

from fairbits.models.scales.grid import Grid
from fairbits.models.scales.groups import round_to_nearest
from fairbits.quantization.gptq.columns import gptq

DAMP = 0.01


def textbook(W, H, scales, *, grid, act_order):
    """Returns codes by optimal brain quantization in a fixed order: ΔW = −(w_k − ŵ_k) H⁻¹_k,: / H⁻¹_kk."""
    size = W.shape[1] // scales.shape[1]
    W = W.copy()
    inverse = np.linalg.inv(H + DAMP * np.diag(H).mean() * np.eye(len(H)))
    codes = np.zeros(W.shape, dtype=int)
    for k in np.argsort(-np.diag(H), kind="stable") if act_order else range(len(H)):
        scale = scales[:, k // size]
        codes[:, k] = np.clip(np.rint(W[:, k] / scale), grid.lowest, grid.highest)
        missing = (W[:, k] - codes[:, k] * scale) / inverse[k, k]
        W -= np.outer(missing, inverse[k])
        inverse -= np.outer(inverse[:, k], inverse[k]) / inverse[k, k]  # the inverse without column k
        inverse[k, :] = inverse[:, k] = 0
    return codes


def problem(seed, *, out=24, columns=60, group=None, tokens=300):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((tokens, columns)) @ rng.standard_normal((columns, columns)) * rng.lognormal(0, 1, columns)
    W = rng.standard_normal((out, columns)).astype(np.float32).astype(float)
    blocks = np.abs(W).reshape(out, -1, group or columns)
    scales = (blocks.max(2) / 3).astype(np.float32).astype(float)
    return W, X.T @ X / tokens, scales


def tensors(*arrays):
    return (torch.from_numpy(array) for array in arrays)


def h_error(codes, W, H):
    e = codes.dequantized.double().numpy() - W
    return np.einsum("ri,ij,rj->r", e, H, e)


@pytest.mark.parametrize("group", [None, 12], ids=["channel", "group"])
@pytest.mark.parametrize("act_order", [True, False])
@pytest.mark.parametrize("columns_at_once", [1, 7, 128])
def test_the_codes_are_those_of_the_textbook(group, act_order, columns_at_once):
    grid = Grid(3, "twos")
    for seed in range(4):
        W, H, scales = problem(seed, group=group)
        expected = textbook(W, H, scales, grid=grid, act_order=act_order)
        w, h, s = tensors(W, H, scales.astype(np.float32))
        quantized = gptq(w, h, s, grid=grid, damp=DAMP, act_order=act_order, columns_at_once=columns_at_once)
        rounded = round_to_nearest(w, s, grid=grid)
        kept = (quantized.codes.codes == rounded.codes).all(1)
        np.testing.assert_array_equal(quantized.codes.codes[~kept].numpy(), expected[~kept.numpy()])
        assert (~kept).sum() >= 20
        assert quantized.kept_nearest <= kept.sum()


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("kind", ["twos", "symmetric"])
def test_no_row_is_worse_than_nearest_and_most_are_better(bits, kind):
    grid = Grid(bits, kind)
    for seed in range(5):
        W, H, scales = problem(seed, group=15, tokens=40)  # fewer tokens than columns: H is singular
        w, h, s = tensors(W, H, (scales * 3 / grid.highest).astype(np.float32))
        quantized = gptq(w, h, s, grid=grid)
        ours, theirs = h_error(quantized.codes, W, H), h_error(round_to_nearest(w, s, grid=grid), W, H)
        assert (ours <= theirs * (1 + 1e-9)).all()
        assert ours.mean() < 0.75 * theirs.mean()


def test_rows_that_end_worse_keep_the_nearest_codes():
    W, H, scales = problem(0, out=500, columns=8)
    grid = Grid(3, "twos")
    w, h, s = tensors(W, H, scales.astype(np.float32))
    quantized, rounded = gptq(w, h, s, grid=grid), round_to_nearest(w, s, grid=grid)
    alone = h_error(type(rounded)(torch.from_numpy(textbook(W, H, scales, grid=grid, act_order=True)), s, 3), W, H)
    theirs = h_error(rounded, W, H)
    assert quantized.kept_nearest == (alone > theirs * (1 + 1e-12)).sum() > 0
    np.testing.assert_allclose(h_error(quantized.codes, W, H), np.minimum(alone, theirs), rtol=1e-9)


def test_float32_serves_for_wide_maps():
    W, H, scales = problem(0, out=16, columns=640, tokens=900)
    w, h, s = tensors(W, H, scales.astype(np.float32))
    quantized = gptq(w, h.float(), s, grid=Grid(4, "twos"))
    expected = textbook(W, H, scales, grid=Grid(4, "twos"), act_order=True)
    assert (quantized.codes.codes.numpy() == expected).mean() > 0.9
    exact = h_error(quantized.codes, W, H).sum()
    other = np.einsum("ri,ij,rj->", (e := expected * scales - W), H, e)
    assert exact == pytest.approx(other, rel=0.02)
