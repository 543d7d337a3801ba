import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbits.errors import InputError
from fairbits.model import Checkpoint
from fairbits.model.scheme import Scheme
from fairbits.theory import Grid

GRIDS = ("symmetric", "twos")


def weights(seed=0, shape=(6, 48)):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_t(3, shape).astype(np.float32))


def by_theory(W, steps, bits, grid):
    """ΔW by the only definition of the grids, group by group."""
    groups = W.double().numpy().reshape(*steps.shape, -1)
    rounded = Grid(bits, grid).quantize(groups, steps.double().numpy()[:, :, None])
    return (rounded - groups).reshape(W.shape)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    bits=st.integers(2, 8),
    group=st.sampled_from([None, 2, 16, 48]),
    grid=st.sampled_from(GRIDS),
    clip=st.sampled_from(["absmax", "exact"]),
)
def test_error_is_that_of_the_grid(seed, bits, group, grid, clip):
    scheme, W = Scheme(bits, group, clip, grid), weights(seed)
    steps = scheme.steps(W)
    assert steps.dtype == torch.float32
    assert steps.shape == (6, 1 if group is None else 48 // group)
    expected = by_theory(W, steps, bits, grid)
    found = scheme.error(W).numpy()
    differ = ~np.isclose(expected, found, atol=2e-5)
    # float32 may choose the other of two levels that are equally near
    half = steps.repeat_interleave(48 // steps.shape[1], 1).numpy() / 2
    np.testing.assert_allclose(np.abs(found[differ]), half[differ], rtol=1e-5)
    torch.testing.assert_close(scheme.error(W, steps), scheme.error(W), rtol=0, atol=0)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_absmax_steps(bits):
    W, n = weights(), 2 ** (bits - 1) - 1
    largest = W.reshape(6, 3, 16).abs().amax(2)
    torch.testing.assert_close(Scheme(bits, 16).steps(W), largest / n)
    torch.testing.assert_close(Scheme(bits, 16, grid="twos").steps(W), largest / (n + 0.5))
    error = Scheme(bits, 16).error(W)
    assert (error.abs() <= Scheme(bits, 16).steps(W).repeat_interleave(16, 1) / 2 * (1 + 1e-5)).all()
    flat = error.reshape(6, 3, 16).gather(2, W.reshape(6, 3, 16).abs().argmax(2, keepdim=True))
    assert flat.abs().max() <= 1e-6 * W.abs().max()  # the largest weight is a level


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("group", [None, 16])
def test_exact_clip_is_the_optimum_and_never_worse_than_absmax(grid, bits, group):
    W = weights(shape=(16, 64))
    exact, largest = Scheme(bits, group, "exact", grid), Scheme(bits, group, "absmax", grid)
    size = group or 64
    errors = [scheme.error(W).double().square().reshape(16, -1, size).sum(2) for scheme in (exact, largest)]
    assert (errors[0] <= errors[1] * (1 + 1e-5)).all()
    assert errors[0].sum() < errors[1].sum()
    for row in range(3):
        block = W[row, :size].double().numpy()
        steps = np.linspace(1e-3, 1.1, 3000)[:, None] * np.abs(block).max()
        scanned = np.square(Grid(bits, grid).quantize(block, steps) - block).sum(1).min()
        assert float(errors[0][row, 0]) <= scanned * (1 + 1e-5)
        assert float(errors[0][row, 0]) >= 0.99 * scanned - 1e-9


@pytest.mark.parametrize("clip", ["absmax", "exact"])
def test_groups_do_not_see_each_other(clip):
    W = weights()
    scheme = Scheme(3, 16, clip)
    before = scheme.error(W)
    W[:, 16:32] *= 1000
    after = scheme.error(W)
    torch.testing.assert_close(after[:, :16], before[:, :16], rtol=0, atol=0)
    torch.testing.assert_close(after[:, 32:], before[:, 32:], rtol=0, atol=0)
    torch.testing.assert_close(scheme.error(weights()[:, :16]), before[:, :16], rtol=0, atol=0)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("clip", ["absmax", "exact"])
def test_groups_of_zeros_stay_zero(clip, grid):
    W = weights()
    W[2, 16:32] = 0
    error = Scheme(4, 16, clip, grid).error(W)
    assert torch.isfinite(error).all()
    assert (error[2, 16:32] == 0).all()
    assert (error[2, :16] != 0).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("clip", ["absmax", "exact"])
def test_weights_of_any_float_type_are_rounded_in_float32(dtype, clip):
    W = weights().to(dtype)
    scheme = Scheme(4, None, clip)
    error = scheme.error(W)
    assert error.dtype == torch.float32
    torch.testing.assert_close(error, scheme.error(W.float()), rtol=0, atol=0)


def test_views_that_are_not_contiguous():
    W = weights(shape=(48, 6)).T  # as Conv1D stores them
    for clip in ("absmax", "exact"):
        torch.testing.assert_close(Scheme(3, 16, clip).error(W), Scheme(3, 16, clip).error(W.contiguous()))


def test_the_weights_are_not_written_to():
    W = weights()
    for clip in ("absmax", "exact"):
        Scheme(3, None, clip).error(W)
    torch.testing.assert_close(W, weights(), rtol=0, atol=0)
    mapped = Checkpoint("embedded:tiny").read("transformer.h.0.mlp.dense_h_to_4h.weight")
    assert Scheme(4, 64).error(mapped).abs().max() > 0


def test_names():
    assert Scheme().name == "W4 group 128 absmax"
    assert Scheme(3, None, "exact").name == "W3 per channel exact clip"
    assert Scheme(2, 64, grid="twos").name == "W2 group 64 absmax on twos"
    assert len({Scheme(), Scheme(4, 128), Scheme(3)}) == 2  # the key of what is measured for it


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"bits": 1}, "bits is 1; it must be 2 to 8"),
        ({"bits": 9}, "bits is 9"),
        ({"bits": 4.0}, "whole number"),
        ({"bits": True}, "whole number"),
        ({"group": 1}, "group is 1; it must be 2 or more"),
        ({"group": "64"}, "group is '64'"),
        ({"clip": "best"}, "clip is 'best'; it must be one of absmax, exact"),
        ({"grid": "midrise"}, "grid is 'midrise'"),
    ],
)
def test_bad_settings_are_refused(bad, words):
    with pytest.raises(InputError, match=words):
        Scheme(**bad)


def test_rows_that_do_not_divide_are_refused():
    assert Scheme(4, 16).fits(48)
    assert Scheme(4, None).fits(47)
    assert not Scheme(4, 32).fits(48)
    with pytest.raises(InputError, match="rows of 48 weights cannot be cut into groups of 32"):
        Scheme(4, 32).error(weights())
