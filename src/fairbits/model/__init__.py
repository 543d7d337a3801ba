"""Models: checkpoints that are read tensor by tensor, their blocks, and the moments of their weights."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairbits.model.checkpoint import Checkpoint as Checkpoint
    from fairbits.model.checkpoint import TensorInfo as TensorInfo
    from fairbits.model.moments import ModelMoments as ModelMoments
    from fairbits.model.moments import WeightMoments as WeightMoments
    from fairbits.model.moments import moments_of as moments_of
    from fairbits.model.moments import weight_moments as weight_moments

_HOMES = {
    "Checkpoint": "checkpoint",
    "ModelMoments": "moments",
    "TensorInfo": "checkpoint",
    "WeightMoments": "moments",
    "moments_of": "moments",
    "weight_moments": "moments",
}
"""The module of each public name, imported on first use: `fairbits.model.scheme` alone needs no torch."""

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Returns a public name, imported now."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fairbits.model' has no attribute {name!r}")
    return getattr(import_module(f"fairbits.model.{_HOMES[name]}"), name)
