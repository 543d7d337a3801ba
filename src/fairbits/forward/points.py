"""Points: the places in a model where activations are measured, and what is measured there."""

from dataclasses import dataclass
from typing import Literal

PointKind = Literal["block", "mlp", "attention", "input"]
Measure = Literal["positions", "norm", "square"]


@dataclass(frozen=True)
class Point:
    """A place in the model where activations are measured.

    `block`      the residual stream after the block
    `mlp`        the output of the down projection, before the residual sum
    `attention`  the output of the attention's output projection
    `input`      the input of a linear layer; layers with the same input share the point
    """

    name: str
    kind: PointKind
    block: int | None
    stack: str
    module: str  # whose output it is or, for inputs, one that reads it
