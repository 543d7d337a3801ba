"""Exact clipping against enumeration of all code vectors."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fairbits.models.scales.exact_clip import clip_blocks
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.sample_clip import clip_sample
from fairbits_research.theory.noise import sample_error

SIZES = {2: 5, 3: 4, 4: 3}
SPECIAL = ["random", "ties", "zeros", "outlier", "faint", "constant", "single", "dead"]


def enumerated(w, h, grid, *, signed):
    """min over all code vectors k and all steps of Σ h (w − k·s)²: s = Σhwk / Σhk², if its sign is allowed."""
    levels = np.arange(grid.lowest, grid.highest + 1) + grid.offset
    k = np.array(list(itertools.product(levels, repeat=len(w))))
    b, c = k @ (h * w), (k * k) @ h
    allowed = (c > 0) & ((b > 0) | signed)
    step = np.where(allowed, b / np.where(c > 0, c, 1), 0.0)
    return ((w - k * step[:, None]) ** 2 @ h).min()


def draw(kind, rng, size):
    w, h = rng.standard_normal(size), np.ones(size)
    if kind == "ties":
        w = rng.choice([-1.0, -0.5, 0.5, 1.0, 1.5], size)
    elif kind == "zeros":
        w[rng.random(size) < 0.5] = 0.0
    elif kind == "outlier":
        w[rng.integers(size)] = 1e6
    elif kind == "faint":
        h = np.where(rng.random(size) < 0.5, 1e-12, rng.lognormal(0, 1, size))
    elif kind == "constant":
        w[:] = rng.standard_normal()
    elif kind == "single":
        w, h = w[:1], h[:1]
    elif kind == "dead":
        h = np.where(rng.random(size) < 0.5, 0.0, 1.0)
    else:
        h = rng.lognormal(0, 1.5, size)
    return w, h


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("kind", ["symmetric", "twos"])
def test_exact_solvers_equal_enumeration(kind, signed) -> None:
    if signed and kind != "twos":
        signed = False  # the other grids are symmetric: a sign changes nothing
    rng = np.random.default_rng(17)
    cases = 0
    for bits, case, _ in itertools.product((2, 3, 4), SPECIAL, range(25)):
        w, h = draw(case, rng, SIZES[bits])
        grid = Grid(bits, kind)
        truth = enumerated(w, h, grid, signed=signed)
        slack = 1e-9 * truth + 1e-15 * float(h @ w**2)
        block = clip_blocks(w[None], grid, importance=h, signed=signed)
        assert abs(block.error[0, 0] - truth) <= slack, (bits, case, w, h)
        if h.any() and w.any():
            sample = clip_sample(w, grid, importance=h, signed=signed)
            # suffix sums cancel where one weight is a million times the rest: allow the floor of float64
            assert abs(sample.value - truth) <= slack + 1e-14 * float(h @ w**2), (bits, case, w, h)
            assert sample.bound <= truth + slack
            direct = sample_error(w, grid, sample.step, importance=h)
            assert direct == pytest.approx(sample.value, rel=1e-12, abs=slack)
        assert sample_error(w, grid, float(block.step[0, 0]), importance=h) == pytest.approx(
            block.error[0, 0], rel=1e-9, abs=slack
        )
        cases += 1
    assert cases >= 500


def numpy_prefix_sweep(W, n):
    """The plain sweep: all n·g breakpoints sorted, prefix sums, best B²/C."""
    x = np.abs(W).astype(np.float64)
    k = np.arange(1, n + 1)
    order = np.argsort(-(x[:, :, None] / (k - 0.5)).reshape(len(x), -1), axis=1)
    b = np.cumsum(np.take_along_axis(np.repeat(x, n, axis=1), order, axis=1), axis=1)
    c = np.cumsum(np.tile(2 * k - 1, x.shape[1])[order], axis=1)
    return (x**2).sum(axis=1) - (b * b / c).max(axis=1)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
def test_blocks_equal_the_prefix_sweep(bits) -> None:
    rng = np.random.default_rng(bits)
    for W in (rng.standard_normal((60, 128)), rng.standard_t(3, (60, 64)), rng.laplace(size=(40, 32))):
        W = W.astype(np.float32)
        error = clip_blocks(W, Grid(bits)).error[:, 0]
        np.testing.assert_allclose(error, numpy_prefix_sweep(W, 2 ** (bits - 1) - 1), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ["symmetric", "twos"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_sorted_search_equals_the_block_search_on_long_rows(bits, kind) -> None:
    rng = np.random.default_rng(5)
    for w in (rng.standard_normal(20_000), rng.standard_t(3, 20_000).astype(np.float32)):
        h = rng.lognormal(0, 1, w.size)
        grid, signed = Grid(bits, kind), kind == "twos"
        for importance in (None, h):
            row = clip_blocks(w[None], grid, importance=importance, signed=signed).error[0, 0]
            whole = clip_sample(w, grid, importance=importance, signed=signed)
            assert whole.value == pytest.approx(row, rel=3e-9)
            assert whole.bound <= row * (1 + 1e-12)
            assert whole.gap < 5e-9


finite = st.floats(-100, 100, allow_nan=False, allow_subnormal=False).map(lambda x: x if abs(x) > 1e-6 else 0.0)
rows = arrays(np.float64, st.integers(1, 24), elements=finite).filter(lambda w: w.any())


@given(w=rows, scale=st.sampled_from([0.25, 3.0, 1e-8, 1e8]), bits=st.integers(2, 6))
def test_scaling_the_weights_scales_the_error(w, scale, bits) -> None:
    base, scaled = (clip_blocks(x[None], Grid(bits)).error[0, 0] for x in (w, scale * w))
    assert scaled == pytest.approx(base * scale**2, rel=1e-8, abs=1e-13 * scale**2 * float(w @ w))


@given(w=rows, seed=st.integers(0, 100), bits=st.integers(2, 6))
def test_order_sign_and_common_importance_do_not_matter(w, seed, bits) -> None:
    rng, grid = np.random.default_rng(seed), Grid(bits)
    base = clip_blocks(w[None], grid).error[0, 0]
    shuffled = rng.permutation(w) * rng.choice([-1, 1], w.size)
    floor = 1e-13 * float(w @ w)
    assert clip_blocks(shuffled[None], grid).error[0, 0] == pytest.approx(base, rel=1e-8, abs=floor)
    weighted = clip_blocks(w[None], grid, importance=np.full(w.size, 4.0)).error[0, 0]
    assert weighted == pytest.approx(4 * base, rel=1e-8, abs=4 * floor)


@given(w=rows, bits=st.integers(2, 7))
def test_more_bits_absmax_and_signs_never_win_against_the_optimum(w, bits) -> None:
    floor = 1e-12 * float(w @ w)
    error = clip_blocks(w[None], Grid(bits)).error[0, 0]
    assert clip_blocks(w[None], Grid(bits + 1)).error[0, 0] <= error + floor
    assert error <= sample_error(w, Grid(bits), float(np.abs(w).max()) / Grid(bits).highest) + floor
    twos = clip_blocks(w[None], Grid(bits, "twos")).error[0, 0]
    assert clip_blocks(w[None], Grid(bits, "twos"), signed=True).error[0, 0] <= twos + floor <= error + 2 * floor


def test_a_step_far_below_a_faint_giant_is_found() -> None:
    clipped = clip_blocks([[1e40, 1.0, 0.3, 0.7]], Grid(2), importance=[1e-200, 1, 1, 1])
    assert clipped.step[0, 0] == pytest.approx(0.85)
    assert clipped.error[0, 0] == pytest.approx(0.135)


def test_exact_fits_close_at_once_though_rounding_puts_the_error_below_zero() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        w, h = rng.choice([-1, 1], 4) * 2.0 ** rng.integers(-3, 4, 4), rng.lognormal(0, 2, 4)
        clipped = clip_sample(w, Grid(8, "twos"), importance=h)
        assert clipped.value <= 1e-14 * float(h @ w**2)
        assert clipped.evaluations < 5000
