"""Extreme but valid input: the smallest and largest floats, odd layouts and types, importance over 600 decades."""

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.models.moments import Moments
from fairbits.models.scales.exact_clip import clip_blocks, minimax_blocks
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.sample_clip import clip_sample, minimax_sample
from fairbits_research.theory.clip_distribution import clip_distribution
from fairbits_research.theory.distributions import Gaussian, GeneralisedGaussian, Mixture, StudentT, Uniform
from fairbits_research.theory.effective_kurtosis import sample_moments
from fairbits_research.theory.noise import mse, sample_error
from fairbits_research.theory.thresholds import alpha_by_importance

pytestmark = pytest.mark.usefixtures("watchdog")

KINDS = ("symmetric", "twos", "midrise")
W = np.random.default_rng(0).standard_normal((3, 32))
H = np.random.default_rng(1).gamma(1.0, size=(2, 32))


@pytest.fixture(params=KINDS)
def grid(request):
    return Grid(3, request.param)


def scan(w, h, grid):
    """The least error over a fine scan of steps."""
    largest = np.abs(w).max()
    steps = largest * np.geomspace(0.01, 2.0, 4000)
    return float(np.sum(h * (w - grid.quantize(w, steps[:, None])) ** 2, axis=1).min())


SOLVERS = {
    "clip_blocks": lambda w, grid: clip_blocks(w, grid, group=8).step,
    "clip_blocks, importance": lambda w, grid: clip_blocks(w, grid, importance=H[0]).step,
    "clip_sample": lambda w, grid: clip_sample(w, grid).step,
    "clip_sample, importance": lambda w, grid: clip_sample(w[0], grid, importance=H[0]).step,
    "minimax_blocks": lambda w, grid: minimax_blocks(w, grid, importance=H).step,
    "minimax_blocks, regret": lambda w, grid: minimax_blocks(w, grid, importance=H, objective="regret").step,
    "minimax_sample": lambda w, grid: minimax_sample(w[0], grid, importance=H).step,
    "minimax_sample, relative": lambda w, grid: minimax_sample(w[0], grid, importance=H, relative=True).step,
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("exponent", [-1040, -1020, -700, -300, 300, 500])
def test_the_step_scales_with_the_weights(solver, exponent, grid):
    find = SOLVERS[solver]
    w = np.ldexp(np.float64(np.float16(W)), exponent)  # few digits, so that denormal numbers hold them too
    expected = np.ldexp(find(np.float64(np.float16(W)), grid), exponent)
    np.testing.assert_allclose(find(w, grid), expected, rtol=1e-3 if exponent == -1040 else 1e-9)


@pytest.mark.parametrize("value", [1e-310, 1e-200, 1.0, 1e150])
def test_equal_weights_are_met_to_the_last_digit(value, grid):
    w = np.full((2, 4), value)
    rounding = 1e-29 * value * value
    for found in (clip_blocks(w, grid), clip_blocks(w, grid, importance=H[0, :4])):
        assert found.error.max() <= rounding
        assert (found.step > 0).all()
    assert clip_sample(w, grid).value <= rounding
    assert minimax_blocks(w, grid, importance=H[:, :4]).error.max() <= rounding


def test_ratios_of_errors_know_no_scale(grid):
    plain, huge = (minimax_sample(scale * W[0], grid, importance=H, relative=True) for scale in (1.0, 2.0**1000))
    assert huge.step == np.ldexp(plain.step, 1000)
    assert huge.values == plain.values


def test_errors_beyond_float64_are_refused_with_a_reason(grid):
    for solve in (lambda w: clip_blocks(w, grid), lambda w: clip_sample(w, grid)):
        with pytest.raises(InputError, match="beyond the range of float64; scale the input"):
            solve(1e300 * W)
    with pytest.raises(InputError, match="beyond the range"):
        minimax_blocks(1e300 * W, grid, importance=H)


@pytest.mark.parametrize("huge", [1e-300, 1e300])
def test_one_scale_of_importance_is_as_good_as_another(huge, grid):
    plain, scaled = (clip_blocks(W, grid, importance=scale * H[0] / H.max()) for scale in (1.0, huge))
    np.testing.assert_allclose(scaled.step, plain.step, rtol=1e-9)
    np.testing.assert_allclose(scaled.error / huge, plain.error, rtol=1e-9)
    plain, scaled = (minimax_blocks(W, grid, importance=scale * H / H.max()) for scale in (1.0, huge))
    np.testing.assert_allclose(scaled.step, plain.step, rtol=1e-9)
    plain, scaled = (clip_sample(W[0], grid, importance=scale * H[0] / H.max()) for scale in (1.0, huge))
    assert scaled.step == pytest.approx(plain.step, rel=1e-9)
    assert scaled.value / huge == pytest.approx(plain.value, rel=1e-9)


@pytest.mark.parametrize("objective", ["worst", "regret"])
def test_importance_over_600_decades(objective, grid):
    h = 10.0 ** np.random.default_rng(2).uniform(-300, 300, size=(3, 32))
    for row in h:
        # the heaviest weight must be met, by one of the codes: the best of these steps, but for float64's last digits
        steps = np.abs(W[:, row.argmax()])[:, None] / (np.arange(1, grid.caps[0] + 1) + grid.offset)
        errors = [[sample_error(w, grid, s, importance=row) for s in each] for w, each in zip(W, steps, strict=True)]
        limit = np.min(errors, axis=1) + 1e-17 * (W**2 @ row)
        assert (clip_blocks(W, grid, importance=row).error.ravel() <= limit).all()
        sample = clip_sample(W[0], grid, importance=row)
        assert 0 <= sample.bound <= sample.value <= limit[0] * (1 + 1e-9)
    shared = minimax_blocks(W, grid, importance=h, objective=objective)
    assert np.isfinite(shared.step).all()
    assert np.isfinite(shared.error).all()
    np.testing.assert_allclose(shared.multipliers.sum(axis=2), 1.0)
    assert np.isfinite(minimax_sample(W[0], grid, importance=h).values).all()


def test_weights_without_importance_do_not_matter(grid):
    w, h = W[:1].copy(), H[0].copy()
    h[[3, 7]] = 0.0
    expected = clip_blocks(w, grid, importance=h)
    for other in (0.0, 1e300, -1.7e308, 1e-310):
        w[0, [3, 7]] = other
        found = clip_blocks(w, grid, importance=h)
        assert found.step == pytest.approx(expected.step)
        assert found.error == pytest.approx(expected.error)
        assert clip_sample(w[0], grid, importance=h).step == pytest.approx(expected.step.item())
        assert minimax_blocks(w, grid, importance=[h, h]).step == pytest.approx(expected.step)


def test_nothing_that_matters_differs_from_zero(grid):
    w = np.array([[0.0, 0.0, 2.0, 1.7e308]])
    h = np.array([1.0, 2.0, 0.0, 0.0])
    for found in (clip_blocks(w, grid, importance=h), minimax_blocks(w, grid, importance=[h, h])):
        assert np.isfinite(found.step).all()
        assert not found.error.any()
    assert clip_sample(w, grid, importance=h).value == 0.0
    assert alpha_by_importance(w, h, grid=grid) == 0.0
    for found in (clip_blocks(0 * W, grid), minimax_blocks(0 * W, grid, importance=H)):
        assert not found.step.any()
        assert not found.error.any()
    mixed = clip_blocks(np.vstack([W[:1], 0 * W[:1]]), grid, importance=[*H])
    assert mixed.step[1] == 0.0
    assert mixed.error[0] > 0.0


def test_importance_of_a_language_that_only_sees_zeros(grid):
    w, h = np.array([0.0, 0.3, -1.0]), np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    shared = minimax_sample(w, grid, importance=h)
    assert shared.worst == pytest.approx(clip_sample(w, grid, importance=h.max(axis=0)).value, abs=0.02)
    assert np.isfinite(minimax_blocks(w[None], grid, importance=h).error).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ">f8", np.longdouble, np.int8, np.uint16, np.int64])
def test_every_type_of_real_number_is_taken(dtype, grid):
    w = (10 * W).astype(np.int8).astype(dtype) if np.dtype(dtype).kind == "i" else np.abs(10 * W).astype(dtype)
    same = w.astype(np.float64)
    np.testing.assert_allclose(clip_blocks(w, grid).step, clip_blocks(same, grid).step, rtol=1e-9)
    np.testing.assert_allclose(
        minimax_blocks(w, grid, importance=H).step, minimax_blocks(same, grid, importance=H).step, rtol=1e-9
    )
    assert clip_sample(w, grid).step == pytest.approx(clip_sample(same, grid).step, rel=1e-9)
    assert sample_moments(w).kappa == pytest.approx(sample_moments(same).kappa)


def test_layout_does_not_matter(grid):
    wide = np.zeros((6, 64))
    wide[::2, ::-2] = W
    frozen = W.copy()
    frozen.flags.writeable = False
    importance = np.asfortranarray(np.vstack([H, H]))[::2]
    expected, shared = clip_blocks(W, grid), minimax_blocks(W, grid, importance=np.vstack([H, H])[::2].copy())
    for w in (np.asfortranarray(W), wide[::2, ::-2], frozen, W.tolist()):
        np.testing.assert_array_equal(clip_blocks(w, grid).step, expected.step)
        np.testing.assert_array_equal(minimax_blocks(w, grid, importance=importance).step, shared.step)
        assert clip_sample(w, grid) == clip_sample(W, grid)
        assert sample_error(w, grid, 0.3) == sample_error(W, grid, 0.3)


@pytest.mark.parametrize("shape", [(1, 1), (1, 32), (32, 1)])
def test_single_rows_and_columns(shape, grid):
    w = W[0, : np.prod(shape)].reshape(shape)
    h = H[0, : shape[1]]
    found = clip_blocks(w, grid, importance=h)
    assert found.step.shape == (shape[0], 1)
    for row, error in zip(w, found.error.ravel(), strict=True):
        assert error <= scan(row, h, grid) + 1e-30
    shared = minimax_blocks(w, grid, importance=h[None]).error[..., 0] * h.mean()
    np.testing.assert_allclose(shared, found.error, rtol=1e-12, atol=1e-25)


def test_groups_of_one_are_exact(grid):
    found = clip_blocks(W, grid, group=1)
    assert found.step.shape == W.shape
    assert found.error.max() <= 1e-30
    assert minimax_blocks(W, grid, importance=H, group=1).error.max() <= 1e-25


def test_scalars_pass_where_arrays_do(grid):
    assert clip_sample(0.5, grid).value < 1e-30
    assert clip_sample(np.float16(0.5), grid, importance=2.0).value < 1e-30
    assert grid.quantize(0.3, 0.2).shape == ()
    assert sample_error(np.array(0.3), grid, 0.2, importance=2.0) == pytest.approx(
        2 * (0.3 - float(grid.quantize(0.3, 0.2))) ** 2
    )
    assert mse(Gaussian(), grid, 0.3).shape == ()
    assert sample_moments(2.0) == Moments(1.0, 2.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("step", [5e-324, 1e-310, 1e-100, 1e100, 1e300])
def test_any_step_quantizes(step):
    grid, x = Grid(4), np.array([0.0, -1e-310, 0.3, 1e200, -1.7e308])
    codes = grid.codes(x, step)
    expected = [min(max(round(v / step) if abs(v / step) < 99 else np.copysign(99, v), -7), 7) for v in x.tolist()]
    assert codes.tolist() == expected
    assert float(mse(Gaussian(), grid, step)) == pytest.approx(1.0)


@pytest.mark.parametrize("scale", [1e-300, 1e-170, 1e-80, 1e80, 1e150])
def test_moments_of_any_scale(scale):
    plain, scaled = sample_moments(W), sample_moments(scale * W)
    assert scaled.kappa == pytest.approx(plain.kappa)
    assert scaled.skewness == pytest.approx(plain.skewness)
    assert scaled.variance == pytest.approx(plain.variance * scale * scale)
    merged = sample_moments(scale * W[:1]) + sample_moments(scale * W[1:])
    if scale > 1e-150:  # below, the variance itself underflows
        assert merged.kappa == pytest.approx(plain.kappa)
    rare = sample_moments([0.0, scale], weights=[1.0, 1e-200])
    assert rare.kappa == pytest.approx(1e200)


def test_a_part_without_weight_leaves_no_trace():
    heavy = StudentT(dof=3.0)
    assert Mixture([Gaussian(), heavy], [1.0, 0.0]).moments.kappa == pytest.approx(0.0)
    assert Mixture([Gaussian(), heavy], [1.0, 1e-300]).moments.kappa == np.inf


def test_laws_at_the_ends_of_their_families():
    sharp = GeneralisedGaussian(shape=1e6)
    for x in (0.0, 0.3, 1.0, 1.7, 1.8):
        np.testing.assert_allclose(sharp.beyond(x), Uniform().beyond(x), atol=2e-6)
    for dof in (1e6, 1e12):
        np.testing.assert_allclose(StudentT(dof=dof).beyond([0.5, 3.0]), Gaussian().beyond([0.5, 3.0]), rtol=1e-4)
    for bits in (2, 8):
        heavy = clip_distribution(StudentT(dof=2.05), Grid(bits))
        assert 0 < heavy.value < 1
        assert heavy.gap < 1e-8
    for sigma in (1e-100, 1e100):
        law = clip_distribution(Gaussian(sigma=sigma), Grid(4))
        assert law.step / sigma == pytest.approx(clip_distribution(Gaussian(), Grid(4)).step, rel=1e-6)


def test_long_blocks_take_extremes_too(monkeypatch, grid):
    expected = [clip_blocks(scale * W, grid, importance=H[0]) for scale in (1e-200, 1.0, 1e100)]
    monkeypatch.setattr(blocks_module, "_LONG", 16)
    for scale, short in zip((1e-200, 1.0, 1e100), expected, strict=True):
        found = clip_blocks(scale * W, grid, importance=H[0])
        np.testing.assert_allclose(found.step, short.step, rtol=1e-6)
        np.testing.assert_allclose(found.error, short.error, rtol=1e-6)
    assert not clip_blocks(W, grid, importance=0 * H[0]).error.any()
    with pytest.raises(InputError, match="row 1, block 0"):
        clip_blocks(np.where(np.arange(3)[:, None] == 1, np.nan, W), grid)
