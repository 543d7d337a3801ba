"""The exact clip of groups: what a GPU leaves to the CPU, extreme weights and importance, and threads."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from fairbits.core.errors import InputError
from fairbits.models.scales import exact_clip
from fairbits.models.scales.exact_clip import clip_blocks, clip_groups, device_steps, minimax_blocks, triton_search
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.sample_clip import clip_sample, minimax_sample

W = np.random.default_rng(0).standard_normal((3, 32))
H = np.random.default_rng(1).gamma(1.0, size=(2, 32))

SOLVERS = {
    "clip_blocks": lambda w, grid: clip_blocks(w, grid, group=8).step,
    "clip_blocks, importance": lambda w, grid: clip_blocks(w, grid, importance=H[0]).step,
    "clip_sample": lambda w, grid: clip_sample(w, grid).step,
    "clip_sample, importance": lambda w, grid: clip_sample(w[0], grid, importance=H[0]).step,
    "minimax_blocks": lambda w, grid: minimax_blocks(w, grid, importance=H),
    "minimax_sample": lambda w, grid: minimax_sample(w[0], grid, importance=H).step,
    "minimax_sample, relative": lambda w, grid: minimax_sample(w[0], grid, importance=H, relative=True).step,
}


@pytest.fixture(params=("symmetric", "twos"))
def grid(request):
    return Grid(3, request.param)


def kernel(W, h, *, caps):
    """Stands for Triton's: some groups are left undone."""
    kinds = {(3, 3): "symmetric", (3, 4): "twos"}
    clipped = clip_blocks(W.numpy(), Grid(3, kinds[caps]), importance=None if h is None else np.resize(h, W.shape))
    undone = torch.arange(len(W)) % 5 == 1
    assert h is None or float(h.max()) <= 1
    steps, errors = (torch.from_numpy(values[:, 0]) for values in (clipped.step, clipped.error))
    return torch.where(undone, 0.0, steps), torch.where(undone, 0.0, errors), undone


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("signed", [False, True])
def test_what_a_gpu_leaves_undone_is_searched_on_the_cpu(weighted, signed, monkeypatch):
    monkeypatch.setattr(exact_clip, "triton_search", lambda: kernel)
    rng = np.random.default_rng(5)
    w, h = rng.standard_t(4, (6, 32)).astype(np.float32), 8 * np.exp(rng.standard_normal(32)) if weighted else None
    grid = Grid(3, "twos")
    blocks, columns = torch.from_numpy(w).reshape(6, 4, 8), None if h is None else torch.from_numpy(h).reshape(4, 8)
    steps, errors = device_steps(blocks, columns, grid=grid, signed=signed)
    expected = clip_blocks(w, grid, group=8, importance=h, signed=signed)
    np.testing.assert_allclose(steps.abs(), np.abs(expected.step), rtol=1e-12)  # both signs may be equally good
    np.testing.assert_allclose(errors, expected.error, rtol=1e-10)
    np.testing.assert_allclose(clip_groups(blocks, grid, importance=h, signed=signed), expected.step)


def test_weights_that_are_not_finite_are_refused(monkeypatch):
    w = np.ones((2, 12), np.float32)
    w[1, 8] = np.nan
    for solve in (
        lambda: clip_blocks(w, Grid(3), group=4),
        lambda: minimax_blocks(w, Grid(3), group=4, importance=np.ones((2, 12)), objective="regret"),
    ):
        with pytest.raises(InputError, match=r"1 block.*row 1, block 2"):
            solve()
    monkeypatch.setattr(exact_clip, "LONG", 2)
    with pytest.raises(InputError, match="row 1, block 2"):
        clip_blocks(w, Grid(3), group=4)
    with pytest.raises(InputError, match="1 NaN or infinite"):
        clip_sample(w, Grid(3))


def test_weights_are_not_rounded_to_a_grid_without_zero():
    with pytest.raises(InputError, match="midrise grid has no level at 0"):
        clip_blocks(W, Grid(3, "midrise"))


def test_triton_without_a_compiler_counts_as_missing(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _name: None)
    assert triton_search.__wrapped__() is None


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("exponent", [-1020, -300, 300])
def test_the_step_scales_with_the_weights(solver, exponent, grid):
    find = SOLVERS[solver]
    w = np.float64(np.float16(W))  # few digits, so that small numbers hold them too
    np.testing.assert_allclose(find(np.ldexp(w, exponent), grid), np.ldexp(find(w, grid), exponent), rtol=1e-9)


@pytest.mark.parametrize("value", [1e-200, 1.0, 1e150])
def test_equal_weights_are_met_to_the_last_digit(value, grid):
    w = np.full((2, 4), value)
    for clipped in (clip_blocks(w, grid), clip_blocks(w, grid, importance=H[0, :4])):
        assert clipped.error.max() <= 1e-29 * value * value
        assert (clipped.step > 0).all()
    assert clip_sample(w, grid).value <= 1e-29 * value * value


def test_errors_beyond_float64_are_refused_with_a_reason(grid):
    for solve in (clip_blocks, clip_sample):
        with pytest.raises(InputError, match="beyond the range of float64; scale the input"):
            solve(1e300 * W, grid)


def test_one_scale_of_importance_is_as_good_as_another(grid):
    for huge in (1e-300, 1e300):
        plain, scaled = (clip_blocks(W, grid, importance=scale * H[0] / H.max()) for scale in (1.0, huge))
        np.testing.assert_allclose(scaled.step, plain.step, rtol=1e-9)
        np.testing.assert_allclose(scaled.error / huge, plain.error, rtol=1e-9)
        sample, rescaled = (clip_sample(W[0], grid, importance=scale * H[0] / H.max()) for scale in (1.0, huge))
        assert rescaled.step == pytest.approx(sample.step, rel=1e-9)


def test_weights_without_importance_do_not_matter(grid):
    w, h = W[:1].copy(), H[0].copy()
    h[[3, 7]] = 0.0
    expected = clip_blocks(w, grid, importance=h)
    for value in (0.0, 1e300, -1.7e308, 1e-310):
        w[0, [3, 7]] = value
        clipped = clip_blocks(w, grid, importance=h)
        assert clipped.step == pytest.approx(expected.step)
        assert clipped.error == pytest.approx(expected.error)
        assert clip_sample(w[0], grid, importance=h).step == pytest.approx(expected.step.item())
        assert minimax_blocks(w, grid, importance=[h, h]) == pytest.approx(expected.step)


def test_nothing_that_matters_differs_from_zero(grid):
    w, h = np.array([[0.0, 0.0, 2.0, 1.7e308]]), np.array([1.0, 2.0, 0.0, 0.0])
    clipped = clip_blocks(w, grid, importance=h)
    assert np.isfinite(clipped.step).all()
    assert not clipped.error.any()
    assert np.isfinite(minimax_blocks(w, grid, importance=[h, h])).all()
    assert clip_sample(w, grid, importance=h).value == 0.0
    assert not clip_blocks(0 * W, grid).step.any()
    assert not minimax_blocks(0 * W, grid, importance=H).any()


@pytest.mark.parametrize("dtype", [np.float16, np.int8, ">f8"])
def test_type_and_layout_do_not_matter(dtype, grid):
    w = (10 * W).astype(np.int8).astype(dtype)
    same = w.astype(np.float64)
    frozen = np.asfortranarray(same)
    frozen.flags.writeable = False
    for values in (w, frozen, same.tolist()):
        np.testing.assert_array_equal(clip_blocks(values, grid).step, clip_blocks(same, grid).step)
        assert clip_sample(values, grid).step == clip_sample(same, grid).step


def test_long_blocks_are_sorted_with_the_same_result(monkeypatch, grid):
    expected = [clip_blocks(scale * W, grid, importance=H[0]) for scale in (1e-200, 1.0, 1e100)]
    monkeypatch.setattr(exact_clip, "LONG", 16)
    for scale, short in zip((1e-200, 1.0, 1e100), expected, strict=True):
        clipped = clip_blocks(scale * W, grid, importance=H[0])
        np.testing.assert_allclose(clipped.step, short.step, rtol=1e-6)
        np.testing.assert_allclose(clipped.error, short.error, rtol=1e-6)
    assert not clip_blocks(W, grid, importance=0 * H[0]).error.any()


DIGEST = """
import hashlib, numpy as np
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.exact_clip import clip_blocks, minimax_blocks
from fairbits.models.scales.sample_clip import clip_sample
rng = np.random.default_rng(0)
W, H = rng.standard_normal((64, 256)).astype(np.float32), rng.lognormal(0, 1, (3, 256))
parts = [
    clip_blocks(W, Grid(4), group=64).step,
    clip_blocks(W, Grid(4, "twos"), group=64, importance=H[0], signed=True).step,
    minimax_blocks(W, Grid(3), group=64, importance=H),
    np.array([clip_sample(W, Grid(8)).step]),
]
print(hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest())
"""


def digest(threads: int) -> str:
    command = [sys.executable, "-c", DIGEST]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"NUMBA_NUM_THREADS": str(threads)})
    return done.stdout


@pytest.mark.long
def test_same_bytes_with_one_and_two_threads() -> None:
    assert digest(1) == digest(2)


def test_concurrent_callers_do_not_disturb_each_other() -> None:
    w = np.random.default_rng(1).standard_normal((64, 128)).astype(np.float32)
    alone = clip_blocks(w, Grid(4)).step
    with ThreadPoolExecutor(4) as pool:
        for step in pool.map(lambda _: clip_blocks(w, Grid(4)).step, range(16)):
            assert np.array_equal(step, alone)
