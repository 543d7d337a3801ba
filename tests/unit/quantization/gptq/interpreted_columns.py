"""Rounds with the kernel and on the CPU, and prints `equal` for each case in which codes and errors agree."""

import torch

from fairbits.models.scales.grid import FLOAT_GRIDS, Grid
from fairbits.models.scales.groups import divisors
from fairbits.quantization.gptq import columns, columns_cpu, columns_gpu
from fairbits.quantization.gptq.columns_cpu import Panel


def main() -> None:
    """Runs the cases."""
    integers = Grid(4, "twos")
    for width, out, dtype, grid in (
        (640, 40, torch.float32, integers),
        (96, 33, torch.float16, integers),
        (48, 5, torch.float32, integers),
        (640, 40, torch.float32, FLOAT_GRIDS["e2m1"]),
        (96, 33, torch.float32, FLOAT_GRIDS["e4m3"]),
    ):
        torch.manual_seed(width)
        X = torch.randn(2 * width, width)
        X[:, 1:] += 0.5 * X[:, :-1]
        factor, _ = columns.factorize(X.T @ X)
        assert factor is not None
        W = torch.randn(out, width)
        weights, group = columns._reorder(W, factor), (factor.order // 16).int()
        largest = 7.5 if grid is integers else grid.largest
        scales = (W.reshape(out, -1, 16).abs().amax(2) / largest).to(dtype).T.contiguous()
        divide_by, rounded = divisors(scales).to(weights.dtype), []
        for round_panel in (columns_cpu.round_panel, columns_gpu.round_panel):
            codes, errors = torch.empty(width, out, dtype=torch.int8), torch.empty_like(weights)
            for start in range(0, width, 128):
                at = slice(start, min(start + 128, width))
                wanted = torch.addmm(weights[at], factor.feedback[at, :start], errors[:start], alpha=-1)
                feedback = factor.feedback[at, at]
                panel = Panel(wanted, weights[at], feedback, scales, divide_by, group[at], codes[at], errors[at])
                round_panel(panel, grid)
            rounded.append((codes, errors))
        (expected, expected_errors), (codes, errors) = rounded
        same = torch.equal(expected, codes) and torch.allclose(expected_errors, errors)
        print("equal" if same else f"{(expected != codes).sum()} codes differ")


if __name__ == "__main__":
    main()
