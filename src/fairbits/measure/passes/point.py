"""A place in a model where activations are measured."""

from dataclasses import dataclass
from typing import Literal

PointKind = Literal["block", "mlp", "attention", "input"]


@dataclass(frozen=True)
class Point:
    """A place in the model where activations are measured.

    `block`      the residual stream after the block
    `mlp`        the output of the down projection, before the residual sum
    `attention`  the output of the attention's output projection
    `input`      the input of a linear map; maps with the same input share the point
    """

    name: str
    kind: PointKind
    block: int | None
    stack: str
    module: str  # whose output it is or, for inputs, one that reads it
