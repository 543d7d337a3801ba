"""The scales of groups: closed forms, the exact clip for languages, and the type they are stored in."""

import numpy as np
import pytest
import torch

from fairbits.core.errors import InputError
from fairbits.models.scales import groups as module
from fairbits.models.scales.clip_formulas import banner_gaussian, banner_laplace
from fairbits.models.scales.exact_clip import clip_blocks, minimax_blocks
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.groups import choose_scales
from fairbits.models.scales.scheme import Scheme
from fairbits_research.theory.threshold_formulas import kappa_alpha

RNG = np.random.default_rng(0)
W = torch.from_numpy(RNG.standard_t(5, (6, 48)).astype(np.float32))
IMPORTANCE = RNG.lognormal(0, 1, (3, 48))
CUT = {"channel": 48, 16: 16}


PLAIN = {"bits": 4, "group": "channel", "clip": "exact", "grid": "twos"}


def scales_of(W=W, *, dtype=torch.float32, importance=None, pi=None, **how):
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
        found, notes = scales_of(clip=clip, group=group, grid=grid)
        np.testing.assert_allclose(Grid(4, grid).alpha(found.numpy()).ravel(), alpha, rtol=1e-5)
        assert bool(notes) == (clip == "kappa" and (kappa < 0).any())
    assert (kappa < 0).any()


def test_one_scale_for_a_tensor_is_stored_per_channel():
    found, _ = scales_of(group="tensor")
    expected = clip_blocks(W.reshape(1, -1).numpy(), Grid(4, "twos")).step
    assert found.shape == (6, 1)
    torch.testing.assert_close(found, torch.full((6, 1), expected.item()))
    sigma = float(W.double().std(correction=0))
    found, _ = scales_of(group="tensor", clip="gaussian")
    torch.testing.assert_close(found, torch.full((6, 1), banner_gaussian(sigma, 4) / 8))


@pytest.mark.parametrize("group", [*CUT, "tensor"])
def test_the_mean_weighs_languages_not_their_loudness(group):
    pi = np.array([0.5, 0.5, 0.0])
    loud = IMPORTANCE * np.array([1.0, 100.0, 1.0])[:, None]
    found, _ = scales_of(importance=loud, pi=pi, objective="mean", group=group)
    h = pi @ (IMPORTANCE / IMPORTANCE.mean(1, keepdims=True))
    cut = (W.reshape(1, -1).numpy(), np.tile(h, 6)) if group == "tensor" else (W.numpy(), h)
    size = None if group == "tensor" else CUT[group]
    expected = clip_blocks(cut[0], Grid(4, "twos"), group=size, importance=cut[1]).step
    np.testing.assert_allclose(found.numpy(), np.broadcast_to(expected, found.shape), rtol=1e-6)


@pytest.mark.parametrize("objective", ["worst", "regret"])
def test_the_worst_is_sought_among_languages_that_count(objective):
    grid, pi = Grid(4, "twos"), np.array([0.9, 0.1, 0.0])
    found, _ = scales_of(importance=IMPORTANCE, pi=pi, objective=objective, group=16)
    expected = minimax_blocks(W.numpy(), grid, importance=IMPORTANCE[:2], group=16, objective=objective)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    whole, _ = scales_of(importance=IMPORTANCE, pi=pi, objective=objective, group="tensor")
    tiled = np.tile(IMPORTANCE[:2], 6)
    expected = minimax_blocks(W.reshape(1, -1).numpy(), grid, importance=tiled, objective=objective)
    np.testing.assert_allclose(whole.numpy(), np.full((6, 1), expected), rtol=1e-6)


def test_scales_leave_neither_end_of_float16():
    tiny, huge = W * 1e-9, W * 1e7
    found, notes = scales_of(tiny, dtype=torch.float16)
    assert found.dtype == torch.float16
    assert (found > 0).all()
    assert "6 of 6 scales are smaller than torch.float16 can hold" in notes[0]
    found, notes = scales_of(huge, dtype=torch.float16, bits=2)
    assert torch.isfinite(found).all()
    assert "larger" in notes[0]
    zero, notes = scales_of(torch.zeros(2, 8), dtype=torch.float16)
    assert zero.tolist() == [[0.0], [0.0]]
    assert notes == ()


@pytest.mark.parametrize("clip", ["gaussian", "laplace", "kappa"])
def test_weights_that_are_all_alike_keep_the_largest(clip):
    found, notes = scales_of(torch.tensor([[0.7, 0.7], [0.0, 0.0]]), clip=clip, grid="symmetric")
    torch.testing.assert_close(found, torch.tensor([[0.1], [0.0]]))
    assert "alike in 1 of 2 blocks" in notes[0]


@pytest.mark.parametrize("objective", ["mean", "worst", "regret"])
def test_languages_whose_input_is_zero_are_left_out(objective):
    heard, silent = np.linspace(0.1, 2.0, 48), np.zeros(48)
    alone, _ = scales_of(importance=heard[None], objective=objective)
    both, notes = scales_of(importance=np.stack([heard, silent]), objective=objective)
    torch.testing.assert_close(both, alone)
    assert notes == ("its input is 0 in 1 of 2 languages, left out here",)


def test_an_input_that_is_always_zero_keeps_the_largest_weight():
    found, notes = scales_of(importance=np.zeros((2, 48)), objective="mean")
    torch.testing.assert_close(found, scales_of(clip="absmax")[0])
    assert notes == ("its input is 0 everywhere: the largest weight sets the scale",)


def test_refusals(monkeypatch):
    with pytest.raises(InputError, match="E\\[x²\\] of its input"):
        scales_of(objective="mean")
    with pytest.raises(InputError, match="groups of 10"):
        scales_of(group=10)
    with pytest.raises(InputError, match="must match"):
        scales_of(importance=np.ones((2, 47)), objective="mean")
    monkeypatch.setattr(module, "MINIMAX_TABLE_NUMBERS", 500)
    with pytest.raises(InputError, match="up to 166"):
        scales_of(importance=IMPORTANCE, objective="worst", group="tensor")
