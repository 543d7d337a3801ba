"""Where activations are measured, by name: block, mlp and attention outputs, and the input of every linear map."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import nn

from fairbits.model.architecture import Architecture, Weight

PointKind = Literal["block", "mlp", "attention", "input"]
KINDS: tuple[PointKind, ...] = ("block", "mlp", "attention", "input")
OUTPUTS: Mapping[PointKind, str] = {"mlp": "mlp_down", "attention": "attention_out"}
"""The role of the linear map whose output is the point: what a block adds to its stream, but for a norm behind it."""


@dataclass(frozen=True)
class Point:
    """A place in the model that activations pass.

    `block`      the residual stream after the block
    `mlp`        what the down projection gives, before the residual sum
    `attention`  what the output projection of attention gives
    `input`      what a linear map sees; maps that see the same activations share the point
    """

    name: str
    kind: PointKind
    block: int | None
    stack: str
    module: str  # that gives it, or (inputs) one that sees it


def points_of(architecture: Architecture, model: nn.Module) -> tuple[Point, ...]:
    """Returns the points of a model that can be observed, in the order of blocks."""
    modules = dict(model.named_modules())
    points: dict[str, Point] = {}
    for block in architecture.blocks:
        index, stack = block.index, block.stack
        points[f"blocks.{index}"] = Point(f"blocks.{index}", "block", index, stack, block.module)
        for kind, role in OUTPUTS.items():
            for weight in block.linears.values():
                # the name tells self-attention from cross-attention; experts, parts of a sum, are not observable
                if weight.sees == f"blocks.{index}.{role}" and is_observable(weight, modules):
                    name = f"blocks.{index}.{kind}"
                    points[name] = Point(name, kind, index, stack, weight.module)
        for weight in block.linears.values():
            if weight.sees is not None and is_observable(weight, modules):
                name = f"{weight.sees}.input"
                seen_stack = "encoder" if weight.sees == "encoder_output" else stack
                points.setdefault(name, Point(name, "input", index, seen_stack, weight.module))
    return tuple(points.values())


def probed_linears(architecture: Architecture, model: nn.Module) -> tuple[dict[str, Weight], dict[str, str]]:
    """Returns the linear maps of the blocks whose inputs and gradients can be seen, and why the others cannot."""
    modules = dict(model.named_modules())
    seen, left_out = {}, {}
    for block in architecture.blocks:
        for name, weight in block.linears.items():
            if weight.role == "router":
                left_out[name] = "a router stays as it is"
            elif not is_observable(weight, modules):
                left_out[name] = "experts that are stacked in one tensor have no module of their own"
            else:
                seen[name] = weight
    return seen, left_out


def is_observable(weight: Weight, modules: Mapping[str, nn.Module]) -> bool:
    """Returns whether a module of its own computes this linear map."""
    module = modules.get(weight.module)
    return weight.sees is not None and weight.stacked is None and getattr(module, "weight", None) is not None
