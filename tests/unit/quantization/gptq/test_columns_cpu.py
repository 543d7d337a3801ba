"""The compiled loop over GPTQ's columns, against the same in torch."""

import pytest
import torch

from fairbits.models.scales.grid import Grid
from fairbits.models.scales.groups import divisors
from fairbits.quantization.gptq import columns as gptq
from fairbits.quantization.gptq import columns_cpu as column_loop

CASES = {
    "float64, scales of float32": (96, 300, 4, torch.float32),
    "float64, scales of float16": (96, 33, 3, torch.float16),
    "float64, scales of bfloat16": (200, 17, 8, torch.bfloat16),
    "float32, scales of bfloat16": (640, 40, 4, torch.bfloat16),
}


@pytest.mark.parametrize("case", CASES)
def test_codes_and_errors_are_those_of_torch(case: str) -> None:
    width, out, bits, dtype = CASES[case]
    torch.manual_seed(width)
    X = torch.randn(2 * width, width)
    X[:, 1:] += 0.5 * X[:, :-1]
    factor, _ = gptq.factorize(X.T @ X)
    W = torch.randn(out, width)
    weights, group = gptq._reorder(W, factor), (factor.order // 8).int()
    assert weights.dtype == (torch.float64 if case.startswith("float64") else torch.float32)
    scales = (W.reshape(out, -1, 8).abs().amax(2) / (2 ** (bits - 1) - 0.5)).to(dtype).T.contiguous()
    found = []
    for round_panel in (column_loop.round_panel, gptq._round_panel_in_torch):
        wanted, codes, errors = weights.clone(), torch.empty(width, out, dtype=torch.int8), torch.empty_like(weights)
        round_panel(
            wanted,
            weights,
            factor.feedback,
            scales=scales,
            divide_by=divisors(scales).to(weights.dtype),
            group=group,
            grid=Grid(bits, "twos"),
            codes=codes,
            errors=errors,
        )
        found.append((codes, errors, wanted))
    (codes, errors, wanted), expected = found
    assert torch.equal(codes, expected[0])
    torch.testing.assert_close(errors, expected[1])
    torch.testing.assert_close(wanted, expected[2], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", column_loop.PRECISION)
def test_products_are_rounded_as_torch_stores_them(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    top = 15 if dtype == torch.float16 else 100
    values = torch.randn(4000) * 2.0 ** torch.randint(-40 if dtype == torch.float16 else -140, top, (4000,))
    halves = torch.arange(1.0, 600.0) / 2  # among them numbers half-way between two that can be stored
    every = torch.cat([values, -values, halves, halves * 2.0**-24, torch.zeros(1)])
    every = every[every.abs() < torch.finfo(dtype).max / 2]
    digits, least = column_loop.PRECISION[dtype]
    found = torch.tensor([column_loop._rounded(value, digits, least) for value in every.double().tolist()])
    assert torch.equal(found, every.to(dtype).float())
