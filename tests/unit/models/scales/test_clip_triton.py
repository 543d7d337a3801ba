"""The Triton kernel of the exact clip, run by Triton's interpreter on the CPU; on a GPU see tests/gpu/test_clip.py."""

import json
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from clip_cases import MISSED, heavy_tailed, lognormal

from fairbits.models.scales.exact_clip import clip_blocks
from fairbits.models.scales.grid import Grid

pytest.importorskip("triton", reason="needs triton, which Linux builds of torch for CUDA bring along")

SCRIPT = """
import json, sys
import numpy as np
import torch
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

def fused(self, x, y, z):  # which Triton's interpreter rounds twice
    wide = x.data.astype(np.float64) * y.data + z.data
    return TensorHandle(wide.astype(z.data.dtype), z.dtype.scalar)

InterpreterBuilder.create_fma = fused
from fairbits.models.scales.clip_triton import search_groups
case = json.load(sys.stdin)
W = torch.tensor(case["W"], dtype=getattr(torch, case["dtype"]))
h = None if case["h"] is None else torch.tensor(case["h"], dtype=torch.float64)
print(json.dumps([values.tolist() for values in search_groups(W, h, caps=tuple(case["caps"]))]))
"""


def interpreted(W, h, grid, dtype="float32"):
    """Returns steps, errors and whether they are undone, as the interpreter finds them."""
    case = {"W": W.tolist(), "h": None if h is None else h.tolist(), "caps": grid.caps, "dtype": dtype}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        input=json.dumps(case),
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return (np.array(values) for values in json.loads(done.stdout))


@pytest.mark.long
@pytest.mark.parametrize(
    ("bits", "kind", "weighted"),
    [(2, "symmetric", True), (3, "twos", False), (4, "twos", True), (6, "symmetric", True)],
)
def test_the_kernel_finds_the_optimum(bits, kind, weighted):
    rng = np.random.default_rng(bits)
    W = rng.standard_t(4, (2, 8)).astype(np.float32)
    h = rng.uniform(0.05, 1.0, (2, 4)).repeat(2, axis=1) if weighted else None
    if h is not None:
        h[:, 3] = 0.0
    grid = Grid(bits, kind)
    steps, errors, undone = interpreted(W, h, grid)
    expected = clip_blocks(W, grid, importance=h)
    assert not undone.any()
    np.testing.assert_allclose(steps, expected.step[:, 0], rtol=1e-12)
    np.testing.assert_allclose(errors, expected.error[:, 0], rtol=1e-10)


@pytest.mark.long
@pytest.mark.parametrize("case", MISSED[:2] + MISSED[4:8:3] + MISSED[-2:])
def test_groups_that_were_once_missed(case):
    seed, bits, kind, weighted, row, group = case
    columns = slice(128 * group, 128 * (group + 1))
    W = heavy_tailed(3125, 4096, seed)[row : row + 1, columns]
    W = torch.from_numpy(W).bfloat16().float().numpy()
    h = lognormal(4096)[columns][None] if weighted else None
    near = None if h is None else h / 2.0 ** np.ceil(np.log2(h.max()))
    steps, _, undone = interpreted(W, near, Grid(bits, kind), dtype="bfloat16")
    assert not undone.any()
    np.testing.assert_allclose(steps, clip_blocks(W, Grid(bits, kind), importance=h).step[:, 0], rtol=1e-12)


def test_a_fused_sum_rounds_like_float64():
    """The codes of both precisions are the same, also next to a threshold."""
    rng = np.random.default_rng(0)
    t = (1 / rng.uniform(0.001, 0.1, 1000)).astype(np.float32)
    x = ((rng.integers(0, 128, 1000) + 0.5) / t).astype(np.float32)
    product = t.astype(np.float64) * x
    for a, b, c in zip(t.tolist(), x.tolist(), product.tolist(), strict=True):
        assert Fraction(a) * Fraction(b) == Fraction(c)
    magic = 6755399441055744.0
    np.testing.assert_array_equal((product + magic) - magic, np.rint(product))
    assert (np.abs(product - np.floor(product) - 0.5) < 1e-5).all()


@pytest.mark.long
def test_groups_that_the_kernel_leaves_undone_or_needs_not_search():
    W = np.zeros((5, 4), np.float32)
    W[1] = [1e-20, -3e-20, 2e-20, 0.0]  # too small for float32
    W[2] = [np.nan, 1.0, 2.0, 3.0]
    W[3] = [0.7, -0.7, 0.1, 0.3]  # exactly representable
    W[4] = [0.0, 0.25, 0.0, 0.0]
    steps, errors, undone = interpreted(W, None, Grid(4), dtype="float32")
    assert undone.tolist() == [False, True, True, False, False]
    assert steps[0] == errors[0] == 0
    np.testing.assert_allclose(errors[3:], 0.0, atol=1e-14)
