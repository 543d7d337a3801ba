"""Codes: a linear map as whole numbers and steps, exactly as it is stored."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fairbits.errors import InputError
from fairbits.theory.grid import Grid


@dataclass(frozen=True, eq=False)
class Codes:
    """A linear map (out, in): W ≈ codes · step, each step shared by neighbouring weights of a row.

    `codes` is int8 (out, in), −2^(bits−1) … 2^(bits−1) − 1; `steps` is (out, groups) in the type that is stored.
    """

    codes: Tensor
    steps: Tensor
    bits: int

    @property
    def group(self) -> int | None:
        """How many weights share a step; None if it is the whole row."""
        size = self.codes.shape[1] // self.steps.shape[1]
        return None if self.steps.shape[1] == 1 else size

    @cached_property
    def dequantized(self) -> Tensor:
        """The weights that a loader makes of it, in the type of the steps."""
        out, columns = self.codes.shape
        blocks = self.codes.reshape(out, self.steps.shape[1], -1).to(self.steps.dtype)
        return (blocks * self.steps[:, :, None]).reshape(out, columns)


def nearest(W: Tensor, steps: Tensor, *, grid: Grid) -> Codes:
    """Returns the codes nearest to W (out, in) for steps (out, groups) that are already of the type that is stored.

    >>> found = nearest(torch.tensor([[0.9, -0.3]]), torch.tensor([[0.5]]), grid=Grid(3, "twos"))
    >>> found.codes.tolist(), found.dequantized.tolist()
    ([[2, -1]], [[1.0, -0.5]])
    """
    if W.ndim != 2 or steps.shape[0] != W.shape[0] or W.shape[1] % steps.shape[1]:
        raise InputError(
            f"steps of shape {tuple(steps.shape)} do not fit weights of shape {tuple(W.shape)}; "
            "they must be (out, groups) with as many weights in every group"
        )
    wide = steps.float()[:, :, None]
    blocks = W.float().reshape(W.shape[0], steps.shape[1], -1)
    # a group of zeros has step 0: its codes are 0
    codes = (blocks / torch.where(wide == 0, 1.0, wide)).round_()
    return Codes(codes.clamp_(grid.lowest, grid.highest).to(torch.int8).reshape(W.shape), steps, grid.bits)
