"""Scheme: how the linear maps of a model are rounded; its steps, and the error it makes."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from fairbits.checks import one_of, whole
from fairbits.errors import InputError
from fairbits.theory.clipping.blocks import clip_blocks
from fairbits.theory.grid import Grid

Clip = Literal["absmax", "exact"]
SchemeGrid = Literal["symmetric", "twos"]


@dataclass(frozen=True)
class Scheme:
    """Round to nearest on a grid of `bits` bits, one step for every `group` neighbouring weights of a row.

    `group`  weights that share a step; None: the whole row ("per channel")
    `clip`   "absmax": the largest weight is a level; "exact": the step of least squared error
    `grid`   "symmetric": −n … n; "twos": the codes of two's complement, with step max|w|/(n + ½) under absmax

    >>> Scheme(3, 64, "exact").name
    'W3 group 64 exact clip'
    >>> Scheme(2, None).error(torch.tensor([[1.0, 0.4, -0.6]])).tolist()
    [[0.0, -0.40..., -0.39...]]
    """

    bits: int = 4
    group: int | None = 128
    clip: Clip = "absmax"
    grid: SchemeGrid = "symmetric"

    def __post_init__(self) -> None:
        whole("bits", self.bits, least=2, most=8)
        if self.group is not None:
            whole("group", self.group, least=2)
        one_of("clip", self.clip, get_args(Clip))
        one_of("grid", self.grid, get_args(SchemeGrid))

    @property
    def name(self) -> str:
        """What a reader calls it."""
        where = "per channel" if self.group is None else f"group {self.group}"
        grid = "" if self.grid == "symmetric" else f" on {self.grid}"
        return f"W{self.bits} {where} {self.clip}{' clip' if self.clip == 'exact' else ''}{grid}"

    def steps(self, W: Tensor) -> Tensor:
        """Returns the step of every group of W (out, in), as (out, groups) in float32."""
        blocks = self._groups(W)
        if self.clip == "exact":
            found = clip_blocks(blocks.flatten(0, 1).float().numpy(), Grid(self.bits, self.grid))
            return torch.from_numpy(found.step).reshape(blocks.shape[:2]).float()
        most = 2 ** (self.bits - 1) - 1
        highest = float(most) if self.grid == "symmetric" else most + 0.5
        largest: Tensor = torch.linalg.vector_norm(blocks, torch.inf, dim=2)  # makes no copy of W
        return largest.float().div_(highest)

    def error(self, W: Tensor, steps: Tensor | None = None) -> Tensor:
        """Returns ΔW = Q(W) − W in float32."""
        blocks = self._groups(W).float()
        chosen = (self.steps(W) if steps is None else steps)[:, :, None]
        most = 2 ** (self.bits - 1) - 1
        least = -most if self.grid == "symmetric" else -most - 1
        # a group of zeros has step 0: its codes are 0
        codes = (blocks / torch.where(chosen == 0, 1.0, chosen)).round_().clamp_(least, most)
        return codes.mul_(chosen).sub_(blocks).reshape(W.shape)

    def fits(self, columns: int) -> bool:
        """Returns whether rows of that many weights can be cut into groups."""
        return self.group is None or columns % self.group == 0

    def _groups(self, W: Tensor) -> Tensor:
        size = W.shape[1] if self.group is None else self.group
        if not self.fits(W.shape[1]):
            raise InputError(
                f"rows of {W.shape[1]} weights cannot be cut into groups of {size}; "
                "the group must divide the inputs of every layer: choose a smaller one, or one step per channel"
            )
        return W.reshape(W.shape[0], -1, size)
