"""Codes: a linear map as integers and scales, exactly as it is stored."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fairbits.model.groups import dequantize, nearest_codes
from fairbits.theory.grid import Grid


@dataclass(frozen=True, eq=False)
class Codes:
    """A linear map (out, in): W ≈ codes · scale, each scale shared by neighbouring weights of a row.

    `codes` is int8 (out, in), −2^(bits−1) … 2^(bits−1) − 1; `scales` is (out, groups) in the type that is stored.
    """

    codes: Tensor
    scales: Tensor
    bits: int

    @cached_property
    def dequantized(self) -> Tensor:
        """The weights that a loader computes from it, in the type of the scales."""
        return dequantize(self.codes, self.scales)


def round_to_nearest(W: Tensor, scales: Tensor, *, grid: Grid) -> Codes:
    """Returns the codes nearest to W (out, in) for scales (out, groups) that already have their stored type.

    >>> found = round_to_nearest(torch.tensor([[0.9, -0.3]]), torch.tensor([[0.5]]), grid=Grid(3, "twos"))
    >>> found.codes.tolist(), found.dequantized.tolist()
    ([[2, -1]], [[1.0, -0.5]])
    """
    codes = nearest_codes(W, scales, grid=grid)
    return Codes(codes.to(torch.int8).reshape(W.shape), scales, grid.bits)
