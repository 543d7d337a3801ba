"""Checks of the arguments of public functions. Each error says what arrived and what must hold."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairbits.checks.values import in_range, instance, instances, one_of, positive, same_shape, sequence, whole

if TYPE_CHECKING:
    from fairbits.checks.arrays import Floats as Floats
    from fairbits.checks.arrays import as_array as as_array
    from fairbits.checks.arrays import finite_array as finite_array
    from fairbits.checks.arrays import labels as labels
    from fairbits.checks.arrays import near_one as near_one
    from fairbits.checks.arrays import nonnegative_array as nonnegative_array
    from fairbits.checks.arrays import representable as representable
    from fairbits.checks.arrays import weights_vector as weights_vector

_ARRAYS = (
    "Floats",
    "as_array",
    "finite_array",
    "labels",
    "near_one",
    "nonnegative_array",
    "representable",
    "weights_vector",
)
"""Names that are imported when they are used, because the command line must start without numpy."""

__all__ = [
    *_ARRAYS,
    "in_range",
    "instance",
    "instances",
    "one_of",
    "positive",
    "same_shape",
    "sequence",
    "whole",
]


def __getattr__(name: str) -> Any:
    """Returns a check of arrays, imported now."""
    if name not in _ARRAYS:
        raise AttributeError(f"module 'fairbits.checks' has no attribute {name!r}")
    return getattr(import_module("fairbits.checks.arrays"), name)
