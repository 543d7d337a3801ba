"""The compiled loop over GPTQ's columns, against the same in torch."""

import pytest
import torch

from fairbits.models.scales.grid import Grid
from fairbits.models.scales.groups import divisors
from fairbits.quantization.gptq import columns, columns_cpu
from fairbits.quantization.gptq.columns_cpu import Panel

CASES = {
    "float64, scales of float32": (96, 300, 4, torch.float32),
    "float64, scales of float16": (96, 33, 3, torch.float16),
    "float64, scales of bfloat16": (200, 17, 8, torch.bfloat16),
    "float32, scales of bfloat16": (640, 40, 4, torch.bfloat16),
}


def round_panel_in_torch(panel: Panel, grid: Grid) -> None:
    """Rounds column by column in torch, looking back at the errors of earlier columns."""
    for k, group in enumerate(panel.group.tolist()):
        panel.wanted[k].addmv_(panel.errors[:k].T, panel.feedback[k, :k], alpha=-1)
        code = (panel.wanted[k] / panel.divide_by[group]).round_().clamp_(grid.lowest, grid.highest)
        panel.codes[k] = code
        value = (code.to(panel.scales.dtype) * panel.scales[group]).to(panel.weights.dtype)  # as a loader computes it
        torch.sub(value, panel.weights[k], out=panel.errors[k])


@pytest.mark.parametrize("case", CASES)
def test_codes_and_errors_are_those_of_torch(case: str) -> None:
    width, out, bits, dtype = CASES[case]
    torch.manual_seed(width)
    X = torch.randn(2 * width, width)
    X[:, 1:] += 0.5 * X[:, :-1]
    factor, _ = columns.factorize(X.T @ X)
    W = torch.randn(out, width)
    weights, group = columns._reorder(W, factor), (factor.order // 8).int()
    assert weights.dtype == (torch.float64 if case.startswith("float64") else torch.float32)
    scales = (W.reshape(out, -1, 8).abs().amax(2) / (2 ** (bits - 1) - 0.5)).to(dtype).T.contiguous()
    panels = []
    for round_panel in (columns_cpu.round_panel, round_panel_in_torch):
        wanted, codes, errors = weights.clone(), torch.empty(width, out, dtype=torch.int8), torch.empty_like(weights)
        divide_by = divisors(scales).to(weights.dtype)
        panel = Panel(wanted, weights, factor.feedback, scales, divide_by, group, codes, errors)
        round_panel(panel, Grid(bits, "twos"))
        panels.append(panel)
    compiled, expected = panels
    assert torch.equal(compiled.codes, expected.codes)
    torch.testing.assert_close(compiled.errors, expected.errors)
    torch.testing.assert_close(compiled.wanted, expected.wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", columns_cpu.PRECISION)
def test_products_are_rounded_as_torch_stores_them(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    top = 15 if dtype == torch.float16 else 100
    values = torch.randn(4000) * 2.0 ** torch.randint(-40 if dtype == torch.float16 else -140, top, (4000,))
    halves = torch.arange(1.0, 600.0) / 2  # among them numbers half-way between two that can be stored
    every = torch.cat([values, -values, halves, halves * 2.0**-24, torch.zeros(1)])
    every = every[every.abs() < torch.finfo(dtype).max / 2]
    digits, least = columns_cpu.PRECISION[dtype]
    rounded = torch.tensor([columns_cpu._loaded(value, digits, least) for value in every.double().tolist()])
    assert torch.equal(rounded, every.to(dtype).float())
