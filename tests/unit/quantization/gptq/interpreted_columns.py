"""Rounds with the kernel and in torch, and prints `equal` for each case in which codes and errors agree."""

import torch

from fairbits.models.scales.grid import Grid
from fairbits.models.scales.groups import divisors
from fairbits.quantization.gptq import columns as columns
from fairbits.quantization.gptq import columns_gpu as column_kernel


def main() -> None:
    """Runs the cases."""
    for width, out, dtype in ((640, 40, torch.float32), (96, 33, torch.float16), (48, 5, torch.float32)):
        torch.manual_seed(width)
        X = torch.randn(2 * width, width)
        X[:, 1:] += 0.5 * X[:, :-1]
        factor, _ = columns.factorize(X.T @ X)
        assert factor is not None
        W = torch.randn(out, width)
        weights, group = columns._reorder(W, factor), (factor.order // 16).int()
        scales = (W.reshape(out, -1, 16).abs().amax(2) / 7.5).to(dtype).T.contiguous()
        found = []
        for round_panel in (columns._round_panel_in_torch, column_kernel.round_panel):
            codes, errors = torch.empty(width, out, dtype=torch.int8), torch.empty_like(weights)
            for start in range(0, width, 128):
                panel = slice(start, min(start + 128, width))
                round_panel(
                    torch.addmm(weights[panel], factor.feedback[panel, :start], errors[:start], alpha=-1),
                    weights[panel],
                    factor.feedback[panel, panel],
                    scales=scales,
                    divide_by=divisors(scales).to(weights.dtype),
                    group=group[panel],
                    grid=Grid(4, "twos"),
                    codes=codes[panel],
                    errors=errors[panel],
                )
            found.append((codes, errors))
        (one, expected), (other, errors) = found
        same = torch.equal(one, other) and torch.allclose(expected, errors)
        print("equal" if same else f"{(one != other).sum()} codes differ")


if __name__ == "__main__":
    main()
