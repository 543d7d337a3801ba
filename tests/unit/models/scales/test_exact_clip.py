"""The exact clip in torch, which a GPU uses, against the compiled one of the CPU."""

import numpy as np
import pytest
import torch
from clip_cases import adversarial, importances
from fairbits.models.scales.clip_torch import exact_steps
from hypothesis import given, settings
from hypothesis import strategies as st

from clip_gpu import count_differences
from fairbits.core.errors import InputError
from fairbits.models.scales.exact_clip import (
    clip_blocks,
    clip_groups,
    device_steps,
    minimax_blocks,
    minimax_groups,
    triton_search,
)
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.minimax_kernels import minimax_steps

KINDS = ("symmetric", "twos", "midrise")
CASES, IMPORTANCES = adversarial(), importances()


def compare(W, grid, *, group, importance=None, signed=False):
    """Returns how many groups have another step than on the CPU, and how many of these another error."""
    expected = clip_blocks(W, grid, group=group, importance=importance, signed=signed)
    h = None if importance is None else torch.from_numpy(importance).reshape(-1, group)
    steps, errors = exact_steps(torch.from_numpy(W).reshape(-1, group), h, grid=grid, signed=signed)
    squares = np.square(W, dtype=np.float64) * (1.0 if importance is None else importance)
    energy = squares.reshape(-1, group).sum(axis=1)
    return count_differences((steps.numpy(), errors.numpy()), (expected.step.ravel(), expected.error.ravel()), energy)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    bits=st.integers(2, 8),
    kind=st.sampled_from(KINDS),
    group=st.sampled_from([2, 16, 48, 96]),
    law=st.sampled_from(["normal", "heavy", "integers"]),
    weighted=st.booleans(),
    signed=st.booleans(),
)
def test_random_groups(seed, bits, kind, group, law, weighted, signed):
    rng = np.random.default_rng(seed)
    draw = {"normal": rng.standard_normal, "heavy": lambda shape: rng.standard_t(2, shape)}
    shape = (6, 96)
    W = (rng.integers(-20, 21, shape) if law == "integers" else draw[law](shape)).astype(np.float32)
    h = np.where(rng.random(96) < 0.1, 0.0, np.exp(2 * rng.standard_normal(96))) if weighted else None
    _, worse = compare(W, Grid(bits, kind), group=group, importance=h, signed=signed and kind == "twos")
    assert worse == 0  # another step is found only where two steps have the same error


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_ordinary_groups_have_the_same_step(bits):
    rng = np.random.default_rng(bits)
    W, h = rng.standard_normal((40, 384)).astype(np.float32), np.exp(rng.standard_normal(384))
    assert compare(W, Grid(bits, "twos"), group=128, importance=h) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("name", CASES)
def test_adversarial_groups(name, bits, kind):
    W = CASES[name][None]
    for h in (None, *IMPORTANCES.values()):
        assert compare(W, Grid(bits, kind), group=W.shape[1], importance=h)[1] == 0
    assert compare(W.reshape(4, 8), Grid(bits, kind), group=8)[1] == 0


def worst_errors(W, steps, H, grid, group):
    """Returns max_λ Σ h(w − Q(w))² of every group."""
    blocks = W.astype(np.float64).reshape(len(W), -1, group)
    squares = (grid.quantize(blocks, steps[:, :, None]) - blocks) ** 2
    return np.einsum("rcs,lcs->rcl", squares, H.reshape(len(H), -1, group)).max(axis=2)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    bits=st.sampled_from([2, 3, 4, 8]),
    kind=st.sampled_from(KINDS),
    group=st.sampled_from([16, 48]),
    languages=st.integers(1, 6),
)
def test_worst_of_languages(seed, bits, kind, group, languages):
    rng = np.random.default_rng(seed)
    W = rng.standard_t(4, (5, 96)).astype(np.float32)
    H = np.where(rng.random((languages, 96)) < 0.1, 0.0, np.exp(rng.standard_normal((languages, 96))))
    H /= H.mean(axis=1, keepdims=True)
    grid = Grid(bits, kind)
    expected = minimax_blocks(W, grid, group=group, importance=H).step
    found = minimax_steps(
        torch.from_numpy(W).reshape(-1, group),
        torch.from_numpy(H).reshape(languages, -1, group),
        scales=torch.ones(languages, 1),
        grid=grid,
    )
    errors = [worst_errors(W, steps.reshape(expected.shape), H, grid, group) for steps in (found.numpy(), expected)]
    np.testing.assert_allclose(errors[0], errors[1], rtol=1e-9)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["symmetric", "twos"])
def test_worst_of_languages_of_adversarial_groups(name, kind):
    W, grid = CASES[name][None], Grid(3, kind)
    H = np.stack([IMPORTANCES["lognormal"], IMPORTANCES["with zeros"], IMPORTANCES["lognormal"][::-1]])
    H = H / H.mean(axis=1, keepdims=True)
    expected = minimax_blocks(W, grid, importance=H).step
    found = minimax_steps(torch.from_numpy(W), torch.from_numpy(H)[:, None], scales=torch.ones(3, 1), grid=grid)
    errors = [worst_errors(W, each.reshape(1, 1), H, grid, W.shape[1]) for each in (found.numpy(), expected)]
    np.testing.assert_allclose(errors[0], errors[1], rtol=1e-9, atol=1e-30 * np.square(W.astype(float)).sum())


def test_scales_of_languages_enter_per_group():
    rng = np.random.default_rng(3)
    W = torch.from_numpy(rng.standard_normal((8, 16)).astype(np.float32))
    H = torch.from_numpy(np.exp(rng.standard_normal((2, 1, 16))))
    scales = torch.tensor([[1.0] * 4 + [1e-9] * 4, [1e-9] * 4 + [1.0] * 4], dtype=torch.float64)
    both = minimax_steps(W, H, scales=scales, grid=Grid(3))
    own = [exact_steps(W, h, grid=Grid(3))[0] for h in H]
    torch.testing.assert_close(both, torch.cat([own[0][:4], own[1][4:]]), rtol=1e-9, atol=0)


@pytest.mark.parametrize("objective", ["worst", "regret"])
def test_on_a_device_without_triton(objective, monkeypatch):
    """Everything that a GPU does, on the CPU."""
    monkeypatch.setattr("fairbits.models.scales.exact_clip._on_device", lambda _blocks: True)
    monkeypatch.setattr("fairbits.models.scales.exact_clip.triton_search", lambda: None)
    rng = np.random.default_rng(4)
    W = rng.standard_t(5, (6, 64)).astype(np.float32)
    H = np.exp(rng.standard_normal((3, 64)))
    blocks, grid = torch.from_numpy(W).reshape(6, 4, 16), Grid(3, "twos")
    np.testing.assert_allclose(clip_groups(blocks, grid), clip_blocks(W, grid, group=16).step, rtol=1e-12)
    weighted = clip_groups(blocks, grid, importance=H[0])
    np.testing.assert_allclose(weighted, clip_blocks(W, grid, group=16, importance=H[0]).step, rtol=1e-12)
    found = minimax_groups(blocks, grid, importance=H, objective=objective)
    expected = minimax_blocks(W, grid, group=16, importance=H, objective=objective).step
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_weights_that_are_not_finite():
    W = torch.ones(2, 3, 4)
    W[1, 2, 0] = torch.nan
    with pytest.raises(InputError, match=r"1 block.*row 1, block 2"):
        device_steps(W, torch.ones(3, 4, dtype=torch.float64), grid=Grid(4, "midrise"))


def test_triton_without_a_compiler_counts_as_missing(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _name: None)
    assert triton_search.__wrapped__() is None


def test_groups_that_a_kernel_leaves_undone_are_searched_in_torch(monkeypatch):
    rng = np.random.default_rng(5)
    W, h = rng.standard_t(4, (6, 32)).astype(np.float32), np.exp(rng.standard_normal(32))

    def kernel(W, h, *, caps):
        steps, errors = exact_steps(W, h, grid=Grid(3))
        undone = torch.arange(len(W)) % 5 == 1
        assert float(h.max()) <= 1
        assert caps == Grid(3).caps
        return torch.where(undone, 0.0, steps), torch.where(undone, 0.0, errors), undone

    monkeypatch.setattr("fairbits.models.scales.exact_clip.triton_search", lambda: kernel)
    monkeypatch.setattr("fairbits.models.scales.exact_clip.GPU_SEARCHED_WEIGHTS", 16)
    steps, errors = device_steps(torch.from_numpy(W).reshape(6, 4, 8), torch.from_numpy(h).reshape(4, 8), grid=Grid(3))
    expected = clip_blocks(W, Grid(3), group=8, importance=h)
    np.testing.assert_allclose(steps, expected.step, rtol=1e-12)
    np.testing.assert_allclose(errors, expected.error, rtol=1e-10)


@pytest.mark.parametrize("weighted", [False, True])
def test_steps_of_either_sign_are_those_of_the_cpu(weighted, monkeypatch):
    monkeypatch.setattr("fairbits.models.scales.exact_clip.triton_search", lambda: None)
    rng = np.random.default_rng(5)
    W, h = rng.standard_t(3, (8, 64)).astype(np.float32), rng.lognormal(size=64) if weighted else None
    expected = clip_blocks(W, Grid(3, "twos"), group=16, importance=h, signed=True)
    blocks = torch.from_numpy(W).reshape(8, 4, 16)
    own = None if h is None else torch.from_numpy(h).reshape(4, 16)
    steps, errors = device_steps(blocks, own, grid=Grid(3, "twos"), signed=True)
    assert (steps < 0).any()
    np.testing.assert_allclose(errors.numpy(), expected.error, rtol=1e-9)
    np.testing.assert_allclose(clip_groups(blocks, Grid(3, "twos"), importance=h, signed=True).numpy(), expected.step)
