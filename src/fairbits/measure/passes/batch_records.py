"""What a recorder keeps of one batch: the sums of its rows, and which linear maps were applied."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class BatchRows:
    """The sums of the rows of one batch, on the device, for some columns of the tables of documents."""

    document: Tensor
    point_columns: list[int]
    linear_columns: list[int]
    activity: Tensor
    damage: Tensor


@dataclass(frozen=True)
class Application:
    """That a linear map was applied in a batch: what it saw and gave has these shapes."""

    column: int
    name: str
    stack: str
    seen: torch.Size
    given: torch.Size
    dtype: torch.dtype

    def without_gradient(self, device: torch.device) -> tuple[int, str, str, Tensor, Tensor]:
        """Returns what is recorded for a map whose output no gradient reaches."""
        x, g = (torch.zeros(shape, dtype=self.dtype, device=device) for shape in (self.seen, self.given))
        return self.column, self.name, self.stack, x, g
