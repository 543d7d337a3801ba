"""Small questions about tensors."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def all_finite(x: Tensor) -> bool:
    """Returns whether no element is NaN or infinite, by the extremes: much faster than a mask of torch.isfinite."""
    return not x.numel() or bool(torch.isfinite(torch.stack(torch.aminmax(x))).all())


def first_tensor(values: Iterable[Any]) -> Any:
    """Returns the first tensor among what a module takes or returns, itself or first in a tuple; None without one."""
    for value in values:
        if isinstance(value, Tensor):
            return value
        if isinstance(value, tuple) and value and isinstance(value[0], Tensor):
            return value[0]
    return None
