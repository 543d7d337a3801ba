"""Weights in groups: the scales of plain clips, the error of rounding, and scales fitted to codes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales import groups as module
from fairbits.models.scales.clip_formulas import banner_gaussian, banner_laplace
from fairbits.models.scales.exact_clip import clip_blocks, minimax_blocks
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.groups import choose_scales, fit_scales, rounding_error
from fairbits.models.scales.scheme import Scheme
from fairbits_research.theory.threshold_formulas import kappa_alpha

GRIDS = ("symmetric", "twos", "signed")


def weights(seed=0, shape=(6, 48)):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_t(3, shape).astype(np.float32))


def scales_of(W, scheme):
    return choose_scales(W, scheme, dtype=torch.float32)[0]


def levels(bits, grid):
    return Grid(bits, "twos" if grid == "signed" else grid)


def by_theory(W, scales, bits, grid):
    """ΔW by the only definition of the grids, group by group."""
    groups = W.double().numpy().reshape(*scales.shape, -1)
    rounded = levels(bits, grid).quantize(groups, scales.double().numpy()[:, :, None])
    return (rounded - groups).reshape(W.shape)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    bits=st.integers(2, 8),
    group=st.sampled_from(["channel", 2, 16, 48]),
    grid=st.sampled_from(GRIDS),
    clip=st.sampled_from(["absmax", "exact"]),
)
def test_error_is_that_of_the_grid(seed, bits, group, grid, clip):
    scheme, W = Scheme(bits, group, clip, grid), weights(seed)
    scales = scales_of(W, scheme)
    assert scales.dtype == torch.float32
    assert scales.shape == (6, 1 if group == "channel" else 48 // group)
    expected = by_theory(W, scales, bits, grid)
    errors = rounding_error(W, scheme).numpy()
    differ = ~np.isclose(expected, errors, atol=2e-5)
    # float32 may choose the other of two levels that are equally near
    half = scales.abs().repeat_interleave(48 // scales.shape[1], 1).numpy() / 2
    np.testing.assert_allclose(np.abs(errors[differ]), half[differ], rtol=1e-5)
    torch.testing.assert_close(rounding_error(W, scheme, scales), rounding_error(W, scheme), rtol=0, atol=0)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_absmax_scales(bits):
    W, n = weights(), 2 ** (bits - 1) - 1
    largest = W.reshape(6, 3, 16).abs().amax(2)
    torch.testing.assert_close(scales_of(W, Scheme(bits, 16)), largest / n)
    torch.testing.assert_close(scales_of(W, Scheme(bits, 16, grid="twos")), largest / (n + 0.5))
    error = rounding_error(W, Scheme(bits, 16))
    assert (error.abs() <= scales_of(W, Scheme(bits, 16)).repeat_interleave(16, 1) / 2 * (1 + 1e-5)).all()
    flat = error.reshape(6, 3, 16).gather(2, W.reshape(6, 3, 16).abs().argmax(2, keepdim=True))
    assert flat.abs().max() <= 1e-6 * W.abs().max()  # the largest weight is a level
    written = Scheme(bits, 16, grid="twos")
    scales = scales_of(W, written)
    at_largest = (
        rounding_error(W, written).reshape(6, 3, 16).gather(2, W.reshape(6, 3, 16).abs().argmax(2, keepdim=True))
    )
    torch.testing.assert_close(at_largest.abs()[..., 0], scales / 2)  # here it lies half a scale from its level


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("group", ["channel", 16])
def test_exact_clip_is_the_optimum_and_never_worse_than_absmax(grid, bits, group):
    W = weights(shape=(16, 64))
    exact, largest = Scheme(bits, group, "exact", grid), Scheme(bits, group, "absmax", grid)
    size = 64 if group == "channel" else group
    errors = [rounding_error(W, scheme).double().square().reshape(16, -1, size).sum(2) for scheme in (exact, largest)]
    assert (errors[0] <= errors[1] * (1 + 1e-5)).all()
    assert errors[0].sum() < errors[1].sum()
    for row in range(3):
        block = W[row, :size].double().numpy()
        scales = np.linspace(1e-3, 1.1, 3000)[:, None] * np.abs(block).max()
        scales = np.concatenate([scales, -scales]) if grid == "signed" else scales
        scanned = np.square(levels(bits, grid).quantize(block, scales) - block).sum(1).min()
        assert float(errors[0][row, 0]) <= scanned * (1 + 1e-5)
        assert float(errors[0][row, 0]) >= 0.99 * scanned - 1e-9


@pytest.mark.parametrize("clip", ["absmax", "exact"])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_scales_of_either_sign_are_never_worse(clip, bits):
    W = weights(shape=(64, 64))
    one, either = Scheme(bits, 16, clip, "twos"), Scheme(bits, 16, clip, "signed")
    errors = [rounding_error(W, scheme).double().square().reshape(64, 4, 16).sum(2) for scheme in (one, either)]
    scales = scales_of(W, either)
    assert 0.3 < float((scales < 0).double().mean()) < 0.7
    assert errors[1].sum() < errors[0].sum()
    if clip == "exact":
        assert (errors[1] <= errors[0] * (1 + 1e-6)).all()
        mirrored = rounding_error(-W, either).double().square().reshape(64, 4, 16).sum(2)
        torch.testing.assert_close(mirrored, errors[1], rtol=1e-5, atol=0)
    else:
        assert (scales.abs() <= scales_of(W, one)).all()
        assert (rounding_error(W, either).abs() <= scales.abs().repeat_interleave(16, 1) / 2 * (1 + 1e-5)).all()


def test_negative_scales_are_kept_in_the_range_of_their_type():
    W = torch.tensor([[1e-9, -2e-10], [3e6, -1e6]])
    scales, notes = choose_scales(W, Scheme(4, "channel", "absmax", "signed"), dtype=torch.float16)
    assert (scales < 0).all()
    assert torch.isfinite(scales).all()
    assert len(notes) == 2


def test_one_scale_of_a_tensor_for_the_worst_language_has_no_sign():
    with pytest.raises(InputError, match="either sign"):
        choose_scales(
            weights(), Scheme(4, "tensor", "exact", "signed", "worst"), importance=np.ones((2, 48)), dtype=torch.float32
        )


@pytest.mark.parametrize("objective", ["mean", "worst", "regret"])
def test_languages_weigh_scales_of_either_sign(objective):
    W, h = weights(), np.random.default_rng(0).lognormal(size=(3, 48))
    weighted_errors = []
    for grid in ("twos", "signed"):
        scheme = Scheme(3, 16, "exact", grid, objective)
        scales, _ = choose_scales(W, scheme, importance=h, dtype=torch.float32)
        squares = rounding_error(W, scheme, scales).double().square().numpy()
        weighted_errors.append((squares * (h / h.mean(1, keepdims=True))[:, None]).reshape(3, 6, 3, 16).sum(3))
    assert (scales < 0).any()
    if objective == "mean":
        assert (weighted_errors[1].mean(0) <= weighted_errors[0].mean(0) * (1 + 1e-6)).all()
    elif objective == "worst":
        assert (weighted_errors[1].max(0) <= weighted_errors[0].max(0) * (1 + 1e-6)).all()


@pytest.mark.parametrize("clip", ["absmax", "exact"])
def test_groups_do_not_see_each_other(clip):
    W = weights()
    scheme = Scheme(3, 16, clip)
    before = rounding_error(W, scheme)
    W[:, 16:32] *= 1000
    after = rounding_error(W, scheme)
    torch.testing.assert_close(after[:, :16], before[:, :16], rtol=0, atol=0)
    torch.testing.assert_close(after[:, 32:], before[:, 32:], rtol=0, atol=0)
    torch.testing.assert_close(rounding_error(weights()[:, :16], scheme), before[:, :16], rtol=0, atol=0)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("clip", ["absmax", "exact"])
def test_groups_of_zeros_stay_zero(clip, grid):
    W = weights()
    W[2, 16:32] = 0
    error = rounding_error(W, Scheme(4, 16, clip, grid))
    assert torch.isfinite(error).all()
    assert (error[2, 16:32] == 0).all()
    assert (error[2, :16] != 0).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("clip", ["absmax", "exact"])
def test_weights_of_any_float_type_are_rounded_in_float32(dtype, clip):
    W = weights().to(dtype)
    scheme = Scheme(4, "channel", clip)
    error = rounding_error(W, scheme)
    assert error.dtype == torch.float32
    torch.testing.assert_close(error, rounding_error(W.float(), scheme), rtol=0, atol=0)


def test_views_that_are_not_contiguous():
    W = weights(shape=(48, 6)).T  # as Conv1D stores them
    for clip in ("absmax", "exact"):
        torch.testing.assert_close(
            rounding_error(W, Scheme(3, 16, clip)), rounding_error(W.contiguous(), Scheme(3, 16, clip))
        )


def test_the_weights_are_not_written_to():
    W = weights()
    for clip in ("absmax", "exact"):
        rounding_error(W, Scheme(3, "channel", clip))
    torch.testing.assert_close(W, weights(), rtol=0, atol=0)
    mapped = Checkpoint("embedded:tiny").read("transformer.h.0.mlp.dense_h_to_4h.weight")
    assert rounding_error(mapped, Scheme(4, 64)).abs().max() > 0


def test_rows_that_do_not_divide_are_refused():
    with pytest.raises(InputError, match="rows of 48 weights cannot be cut into groups of 32"):
        rounding_error(weights(), Scheme(4, 32))


@pytest.mark.parametrize("clip", ["absmax", "exact", "gaussian"])
def test_one_scale_of_a_tensor_is_that_of_a_single_row(clip):
    W = weights()
    error = rounding_error(W, Scheme(4, "tensor", clip))
    torch.testing.assert_close(error, rounding_error(W.reshape(1, -1), Scheme(4, "channel", clip)).reshape(W.shape))
    assert len(scales_of(W, Scheme(4, "tensor", clip)).unique()) == 1


def test_scales_that_do_not_fit_are_refused():
    for scales in (torch.ones(6, 5), torch.ones(5, 3)):
        with pytest.raises(InputError, match=r"they must be \(out, groups\)"):
            rounding_error(weights(), Scheme(), scales)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_fitted_scales_are_those_that_a_search_finds(groups: int) -> None:
    rng = torch.Generator().manual_seed(groups)
    W, X = torch.randn(12, 16, generator=rng), torch.randn(40, 16, generator=rng) @ torch.randn(16, 16, generator=rng)
    H, size = X.T @ X / 40, 16 // groups
    old = W.reshape(12, groups, size).abs().amax(2) / 4
    codes = (W.reshape(12, groups, size) / old[:, :, None]).round().reshape(12, 16).to(torch.int8)
    scales = fit_scales(W, codes, old, H=H)
    tried = torch.linspace(0, 2, 1001) * float(old.max())
    for group in range(groups):
        part = slice(group * size, (group + 1) * size)

        def error(scale: Tensor, part: slice = part) -> Tensor:
            """Returns the errors of all rows for scales (…, 1)."""
            left = W[:, part] - scale[..., None] * codes[:, part]
            return ((left @ H[part, part]) * left).sum(-1)

        searched = torch.stack([error(scale.expand(12)) for scale in tried])
        fitted = error(scales[:, group])
        assert (fitted <= searched.amin(0) * (1 + 1e-4) + 1e-5).all()
        nearest = tried[searched.argmin(0)]
        assert torch.allclose(scales[:, group], nearest, atol=float(tried[1]))


def test_fitted_scales_keep_their_sign() -> None:
    codes = torch.tensor([[-1, -2]], dtype=torch.int8)
    fitted = fit_scales(torch.tensor([[0.5, 1.0]]), codes, torch.tensor([[-0.4]]), H=torch.eye(2))
    assert fitted.tolist() == [[-0.5]]


def test_a_scale_stays_where_no_other_helps() -> None:
    codes, scales = torch.tensor([[0, 0], [1, 1], [1, 2]], dtype=torch.int8), torch.full((3, 1), 0.25)
    W = torch.tensor([[0.1, 0.1], [-0.5, -0.5], [0.5, 1.0]])
    assert fit_scales(W, codes, scales, H=torch.eye(2)).tolist() == [[0.25], [0.25], [0.5]]


RNG = np.random.default_rng(0)
W = torch.from_numpy(RNG.standard_t(5, (6, 48)).astype(np.float32))
IMPORTANCE = RNG.lognormal(0, 1, (3, 48))
CUT = {"channel": 48, 16: 16}


PLAIN = {"bits": 4, "group": "channel", "clip": "exact", "grid": "twos"}


def choose(W=W, *, dtype=torch.float32, importance=None, pi=None, **how):
    return choose_scales(W, Scheme(**PLAIN | how), importance=importance, pi=pi, dtype=dtype)


@pytest.mark.parametrize("grid", ["twos", "symmetric"])
@pytest.mark.parametrize("group", CUT)
def test_closed_forms_block_by_block(grid, group):
    blocks = W.double().numpy().reshape(6, -1, CUT[group])
    sigma, mean = blocks.std(2), blocks.mean(2, keepdims=True)
    b = np.abs(blocks - mean).mean(2)
    kappa = ((blocks - mean) ** 4).mean(2) / sigma**4 - 3
    alphas = {
        "gaussian": [banner_gaussian(s, 4) for s in sigma.ravel()],
        "laplace": [banner_laplace(s, 4) for s in b.ravel()],
        "kappa": [kappa_alpha(s, max(0, k)) for s, k in zip(sigma.ravel(), kappa.ravel(), strict=True)],
    }
    for clip, alpha in alphas.items():
        scales, notes = choose(clip=clip, group=group, grid=grid)
        np.testing.assert_allclose(Grid(4, grid).alpha(scales.numpy()).ravel(), alpha, rtol=1e-5)
        assert bool(notes) == (clip == "kappa" and (kappa < 0).any())
    assert (kappa < 0).any()


@pytest.mark.parametrize(("grid", "levels"), [("twos", 8), ("symmetric", 7)])
@pytest.mark.parametrize(("group", "shape"), [("tensor", (6, 1)), ("channel", (6, 1)), (16, (6, 3))])
def test_a_stated_alpha_is_that_of_every_group(grid, levels, group, shape):
    scales, notes = choose(clip=1.75, group=group, grid=grid)
    torch.testing.assert_close(scales, torch.full(shape, 1.75 / levels))
    assert notes == ()
    rounded = W + rounding_error(W, Scheme(4, group, 1.75, "symmetric"))
    assert float(rounded.abs().max()) == pytest.approx(1.75), "larger weights are clipped"


def test_one_scale_for_a_tensor_is_stored_per_channel():
    scales, _ = choose(group="tensor")
    expected = clip_blocks(W.reshape(1, -1).numpy(), Grid(4, "twos")).step
    assert scales.shape == (6, 1)
    torch.testing.assert_close(scales, torch.full((6, 1), expected.item()))
    sigma = float(W.double().std(correction=0))
    scales, _ = choose(group="tensor", clip="gaussian")
    torch.testing.assert_close(scales, torch.full((6, 1), banner_gaussian(sigma, 4) / 8))


@pytest.mark.parametrize("group", [*CUT, "tensor"])
def test_the_mean_weighs_languages_not_their_loudness(group):
    pi = np.array([0.5, 0.5, 0.0])
    loud = IMPORTANCE * np.array([1.0, 100.0, 1.0])[:, None]
    scales, _ = choose(importance=loud, pi=pi, objective="mean", group=group)
    h = pi @ (IMPORTANCE / IMPORTANCE.mean(1, keepdims=True))
    cut = (W.reshape(1, -1).numpy(), np.tile(h, 6)) if group == "tensor" else (W.numpy(), h)
    size = None if group == "tensor" else CUT[group]
    expected = clip_blocks(cut[0], Grid(4, "twos"), group=size, importance=cut[1]).step
    np.testing.assert_allclose(scales.numpy(), np.broadcast_to(expected, scales.shape), rtol=1e-6)


@pytest.mark.parametrize("objective", ["worst", "regret"])
def test_the_worst_is_sought_among_languages_that_count(objective):
    grid, pi = Grid(4, "twos"), np.array([0.9, 0.1, 0.0])
    scales, _ = choose(importance=IMPORTANCE, pi=pi, objective=objective, group=16)
    expected = minimax_blocks(W.numpy(), grid, importance=IMPORTANCE[:2], group=16, objective=objective)
    np.testing.assert_allclose(scales.numpy(), expected, rtol=1e-6)
    whole, _ = choose(importance=IMPORTANCE, pi=pi, objective=objective, group="tensor")
    tiled = np.tile(IMPORTANCE[:2], 6)
    expected = minimax_blocks(W.reshape(1, -1).numpy(), grid, importance=tiled, objective=objective)
    np.testing.assert_allclose(whole.numpy(), np.full((6, 1), expected), rtol=1e-6)


def test_scales_leave_neither_end_of_float16():
    tiny, huge = W * 1e-9, W * 1e7
    scales, notes = choose(tiny, dtype=torch.float16)
    assert scales.dtype == torch.float16
    assert (scales > 0).all()
    assert "6 of 6 scales are smaller than torch.float16 can hold" in notes[0]
    scales, notes = choose(huge, dtype=torch.float16, bits=2)
    assert torch.isfinite(scales).all()
    assert "larger" in notes[0]
    zero, notes = choose(torch.zeros(2, 8), dtype=torch.float16)
    assert zero.tolist() == [[0.0], [0.0]]
    assert notes == ()


@pytest.mark.parametrize("clip", ["gaussian", "laplace", "kappa"])
def test_weights_that_are_all_alike_keep_the_largest(clip):
    scales, notes = choose(torch.tensor([[0.7, 0.7], [0.0, 0.0]]), clip=clip, grid="symmetric")
    torch.testing.assert_close(scales, torch.tensor([[0.1], [0.0]]))
    assert "alike in 1 of 2 blocks" in notes[0]


@pytest.mark.parametrize("objective", ["mean", "worst", "regret"])
def test_languages_whose_input_is_zero_are_left_out(objective):
    heard, silent = np.linspace(0.1, 2.0, 48), np.zeros(48)
    alone, _ = choose(importance=heard[None], objective=objective)
    both, notes = choose(importance=np.stack([heard, silent]), objective=objective)
    torch.testing.assert_close(both, alone)
    assert notes == ("its input is 0 in 1 of 2 languages, left out here",)


def test_an_input_that_is_always_zero_keeps_the_largest_weight():
    scales, notes = choose(importance=np.zeros((2, 48)), objective="mean")
    torch.testing.assert_close(scales, choose(clip="absmax")[0])
    assert notes == ("its input is 0 everywhere: the largest weight sets the scale",)


def test_refusals(monkeypatch):
    with pytest.raises(InputError, match="E\\[x²\\] of its input"):
        choose(objective="mean")
    with pytest.raises(InputError, match="groups of 10"):
        choose(group=10)
    with pytest.raises(InputError, match="must match"):
        choose(importance=np.ones((2, 47)), objective="mean")
    monkeypatch.setattr(module, "MINIMAX_TABLE_NUMBERS", 500)
    with pytest.raises(InputError, match="up to 166"):
        choose(importance=IMPORTANCE, objective="worst", group="tensor")
