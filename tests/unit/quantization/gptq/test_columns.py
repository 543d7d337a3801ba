import pytest
import torch

from fairbits.models.scales.grid import FLOAT_GRIDS, Grid
from fairbits.models.scales.groups import round_to_nearest
from fairbits.quantization.gptq.columns import factorize, gptq

GRID = Grid(3, "twos")


@pytest.fixture
def problem():
    rng = torch.Generator().manual_seed(0)
    X = torch.randn(200, 24, generator=rng) @ torch.randn(24, 24, generator=rng)
    W = torch.randn(10, 24, generator=rng)
    return W, X.T @ X / 200, W.abs().amax(1, keepdim=True) / 3


def test_dead_inputs_are_rounded_to_nearest_and_touch_nothing(problem):
    W, H, scales = problem
    H[5], H[:, 5] = 0, 0
    alive = torch.arange(24) != 5
    rounded = gptq(W, H, scales, grid=GRID)
    without = gptq(W[:, alive], H[alive][:, alive], scales, grid=GRID, damp=0.01 * 23 / 24)  # the same in all
    assert torch.equal(rounded.codes.codes[:, 5], round_to_nearest(W, scales, grid=GRID).codes[:, 5])
    assert torch.equal(rounded.codes.codes[:, alive], without.codes.codes)


def test_an_indefinite_h_is_damped_more_and_a_note_says_so(problem):
    W, H, scales = problem
    lowest = torch.linalg.eigvalsh(H)[0]
    rounded = gptq(W, H - (lowest + 0.05 * H.diagonal().mean()) * torch.eye(24), scales, grid=GRID)
    assert rounded.notes == ("H is not positive definite: the damping was raised to 0.1 of its mean diagonal",)
    hopeless = torch.ones(24, 24) * -1e9
    hopeless.diagonal().fill_(1.0)
    rounded = gptq(W, hopeless, scales, grid=GRID)
    assert torch.equal(rounded.codes.codes, round_to_nearest(W, scales, grid=GRID).codes)
    assert rounded.kept_nearest == 10
    assert "rounded to nearest" in rounded.notes[0]


def test_damping_can_be_0(problem):
    assert factorize(problem[1], damp=0.0)[0].damp == 0
    factor, notes = factorize(torch.ones(24, 24), damp=0.0)
    assert factor.damp == pytest.approx(1e-4)
    assert "raised to 0.0001" in notes[0]


def test_codes_compensate_for_rounding_to_the_stored_type(problem):
    """ŵ = code·scale is rounded to bfloat16 as a loader does; nobody's row may be worse for it."""
    W, H, scales = problem
    scales = (scales * 3 / 127).bfloat16()
    grid = Grid(8, "twos")
    rounded = gptq(W, H, scales, grid=grid)

    def damage(codes):
        e = codes.dequantized.double() - W
        return ((e @ H.double()) * e).sum(1)

    plain = damage(round_to_nearest(W, scales, grid=grid))
    assert (damage(rounded.codes) <= plain * (1 + 1e-6)).all()
    assert damage(rounded.codes).sum() < 0.7 * plain.sum()


@pytest.mark.parametrize("numbers", ["e2m1", "e4m3"])
def test_a_weight_of_zero_is_zero_among_floating_point_numbers(problem, numbers):
    """Zero has no exponent."""
    W, H, _ = problem
    grid = FLOAT_GRIDS[numbers]
    first = torch.argsort(H.diagonal(), descending=True)[0]  # rounded before anything is fed back
    W[:, first], W[4] = 0, 0
    rounded = gptq(W, H, W.abs().amax(1, keepdim=True) / grid.largest, grid=grid)
    assert not rounded.codes.codes[4].any()
    assert not rounded.codes.codes[:, first].any()
    assert rounded.codes.numbers == numbers


def test_a_shared_factor_gives_the_same(problem):
    W, H, scales = problem
    factor, _ = factorize(H)
    assert torch.equal(
        gptq(W, H, scales, grid=GRID).codes.codes, gptq(W, H, scales, grid=GRID, factor=factor).codes.codes
    )


def test_rows_of_zeros_stay_zero(problem):
    W, H, scales = problem
    W[3], scales[3] = 0, 0
    assert not gptq(W, H, scales, grid=GRID).codes.codes[3].any()


def test_scales_of_either_sign_mirror_the_weights() -> None:
    """A negative scale rounds w as its size rounds −w."""
    generator = torch.Generator().manual_seed(0)
    W, X = torch.randn(12, 32, generator=generator), torch.randn(256, 32, generator=generator)
    H, scales = X.T @ X / len(X), torch.full((12, 2), 0.4)
    one, other = (gptq(sign * W, H, sign * scales, grid=Grid(3, "twos")).codes for sign in (1, -1))
    assert torch.equal(one.codes, other.codes)
    assert torch.equal(one.dequantized, -other.dequantized)
