"""What a layer sees or gives, in the shape (rows, length, width)."""

from typing import Any

from torch import Tensor

from fairbits.errors import InputError


def first_tensor(value: Any) -> Tensor:
    """Returns the first tensor of what a module takes or returns."""
    while not isinstance(value, Tensor):
        value = value[0]
    return value


def side_by_side(x: Tensor, positions: Tensor) -> Tensor:
    """Returns the states of a block; several states of a position, first or third in shape, become a wide one."""
    if x.ndim == 4 and x.shape[:2] == positions.shape:
        return x.flatten(2)
    return x.permute(1, 2, 0, 3).flatten(2) if x.ndim == 4 and x.shape[1:3] == positions.shape else x


def rows_of(x: Tensor, positions: Tensor) -> Tensor:
    """Returns activations as (rows, length, width); some families flatten rows and length."""
    found = x.numel() // x.shape[-1]
    if found != positions.numel():
        raise InputError(
            f"a layer of this model sees {found} positions of a text that has {positions.numel()}; fairbits measures "
            "models whose layers see every token once"
        )
    return x if x.ndim == 3 else x.reshape(*positions.shape, -1)
