"""Floating-point grids and their scales, against torch's own types, brute force and compressed-tensors."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from compressed_tensors.quantization.utils import generate_gparam, generate_mx_scales

from fairbits.core.errors import InputError
from fairbits.models.scales.float_scales import code_values, full_global_scale, grid_codes
from fairbits.models.scales.grid import FLOAT_GRIDS
from fairbits.models.scales.groups import choose_scales, dequantize_in_float32, round_to_nearest, scheme_grid
from fairbits.models.scales.scheme import FORMATS, Scheme

FLOATS = [name for name, format in FORMATS.items() if format.numbers != "int" and format.group != "tensor"]
E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)


@pytest.fixture
def W() -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    W = torch.randn(130, 256, generator=rng) * torch.rand(130, 1, generator=rng)
    W[3], W[4, :32] = 0, 0
    return W


def scheme_of(name: str, **more: object) -> Scheme:
    return Scheme(FORMATS[name].bits, FORMATS[name].group, format=name, **more)  # type: ignore[arg-type]


def scales_of(W: torch.Tensor, scheme: Scheme, **more: object) -> torch.Tensor:
    return choose_scales(W, scheme, dtype=torch.bfloat16, **more)[0]  # type: ignore[arg-type]


def test_the_numbers_of_8_bits_are_those_of_torch() -> None:
    values = FLOAT_GRIDS["e4m3"].values
    assert np.array_equal(values, torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy())
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(0)).mul_(3).exp_()
    x = torch.cat([x, -x, torch.from_numpy(values), torch.from_numpy((values[1:] + values[:-1]) / 2)])
    expected = x.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    assert torch.equal(code_values(grid_codes(x, FLOAT_GRIDS["e4m3"]), "e4m3"), expected)


def test_the_numbers_of_4_bits_with_halves_to_the_even_code() -> None:
    assert FLOAT_GRIDS["e2m1"].values.tolist() == list(E2M1)
    halves = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 7, -0.25, -0.75, -5])
    expected = [0, 1, 1, 2, 2, 4, 4, 6, 0, -1, -4]
    assert code_values(grid_codes(halves, FLOAT_GRIDS["e2m1"]), "e2m1").tolist() == expected


@pytest.mark.parametrize("name", ["MXFP4", "MXFP8"])
def test_powers_of_two_are_those_of_compressed_tensors(W: torch.Tensor, name: str) -> None:
    largest = W.reshape(130, -1, 32).abs().amax(2)
    some = largest > 0
    expected = 2.0 ** (generate_mx_scales(largest, FORMATS[name].bits) - 127)
    assert torch.equal(scales_of(W, scheme_of(name))[some], expected[some])


def test_scales_in_8_bits_are_those_of_compressed_tensors(W: torch.Tensor) -> None:
    overall = full_global_scale(W.abs().amax())
    assert overall.item() == pytest.approx(generate_gparam(W.amin().reshape(1), W.amax().reshape(1)).item(), rel=1e-6)
    stored = (W.reshape(130, -1, 16).abs().amax(2) / 6 * overall).to(torch.float8_e4m3fn).float()
    assert torch.equal(scales_of(W, scheme_of("NVFP4")), stored / overall)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("objective", [None, "mean", "worst", "regret"])
def test_the_exact_clip_has_the_least_error(W: torch.Tensor, name: str, objective: str | None) -> None:
    """Of scales that can be stored none nearby has a smaller one; of the many of channels, 16 in an octave count."""
    h = np.random.default_rng(0).exponential(size=(3, 256))
    importance = None if objective is None else h
    scheme = scheme_of(name, clip="exact", objective=objective)
    chosen = scales_of(W, scheme, importance=importance)
    plain = scales_of(W, replace(scheme, clip="absmax", objective=None))
    weights = np.ones((1, 256)) if importance is None else h / h.mean(1, keepdims=True)
    weights = torch.from_numpy(weights.mean(0, keepdims=True) if objective == "mean" else weights).float()
    overall, largest = full_global_scale(W.abs().amax()), W.reshape(*chosen.shape, -1).abs().amax(2)
    if scheme.group == "block":
        largest = torch.cat([part.amax(0).expand_as(part) for part in largest.split(128)])
    best = errors_of(W, chosen, scheme, weights)
    tried = [errors_of(W, scales, scheme, weights) for scales in nearby(plain, largest, scheme, overall)]
    all_errors = torch.stack([best, *tried])
    if objective == "regret":
        all_errors = all_errors / all_errors.amin(0).clamp_(min=1e-30)
    damage = all_errors.amax(1)
    assert bool((damage[0] <= damage[1:].amin(0) * (1 + 1e-5) + 1e-9).all())


def nearby(plain: torch.Tensor, largest: torch.Tensor, scheme: Scheme, overall: torch.Tensor) -> list[torch.Tensor]:
    """Returns scales around those of the largest weights, each of which can be stored."""
    if scheme.scales == "e8m0":
        return [plain * 2.0**k for k in (-1, 0, 1)]
    if scheme.scales == "e4m3":
        stored = (plain * overall).to(torch.float8_e4m3fn).view(torch.uint8).int()
        near = [torch.where(stored > 0, (stored + k).clamp(1, 126), 0) for k in range(-10, 5)]
        return [codes.to(torch.uint8).view(torch.float8_e4m3fn).float() / overall for codes in near]
    return [(largest * (2 ** (k / 16) / 448)).bfloat16() for k in range(16)]


def errors_of(W: torch.Tensor, scales: torch.Tensor, scheme: Scheme, weights: torch.Tensor) -> torch.Tensor:
    """Returns the error of each language in each group, (languages, rows, groups); of blocks, in each block."""
    rounded = round_to_nearest(W, scales.float(), grid=scheme_grid(scheme))
    change = (dequantize_in_float32(rounded) - W).square()
    errors = torch.stack([(change * h).reshape(*scales.shape, -1).sum(2) for h in weights])
    if scheme.group == "block":
        whole = torch.nn.functional.pad(errors, (0, 0, 0, -errors.shape[1] % 128))
        errors = whole.reshape(len(errors), -1, 128, errors.shape[2]).sum(2)
    return errors


def test_blocks_share_a_scale(W: torch.Tensor) -> None:
    scales = scales_of(W, scheme_of("FP8_BLOCK"))
    assert scales.shape == (130, 2)
    assert all(
        len(torch.unique(scales[rows, group])) == 1 for rows in (slice(128), slice(128, 130)) for group in (0, 1)
    )
    assert scales[0, 0].float() == pytest.approx(W[:128, :128].abs().amax() / 448, rel=2**-8)


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (
            {"bits": 4, "group": 32, "format": "NVFP4"},
            r"bits and group are \(4, 32\), and the format NVFP4 has \(4, 16",
        ),
        ({"bits": 4, "group": 16, "format": "NVFP4", "clip": "laplace"}, "rounded with absmax or exact"),
        ({"bits": 4, "group": 16, "format": "FP5"}, "format is 'FP5'"),
        ({"bits": 4, "group": "block"}, "group is 'block'"),
    ],
)
def test_schemes_that_do_not_exist(scheme: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Scheme(**scheme)  # type: ignore[arg-type]
