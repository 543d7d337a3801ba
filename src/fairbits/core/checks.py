"""Checks of numbers, words and objects that users give."""

import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np

from fairbits.core.errors import InputError

T = TypeVar("T")


def positive(name: str, value: float) -> float:
    """Returns `value` if it is a finite number above 0."""
    return in_range(name, value, above=0.0)


def in_range(
    name: str,
    value: float,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    least: float = -math.inf,
    most: float = math.inf,
) -> float:
    """Returns `value` if it is finite with above < value < below and least <= value <= most."""
    number = _number(name, value)
    if not (math.isfinite(number) and above < number < below and least <= number <= most):
        limits = {"above": above, "below": below, "at least": least, "at most": most}
        stated = [f", {word} {limit:g}" for word, limit in limits.items() if math.isfinite(limit)]
        raise InputError(f"{name} is {number:g}; it must be finite{''.join(stated)}")
    return number


def whole(name: str, value: int, *, least: int, most: int | None = None) -> int:
    """Returns `value` if it is a whole number with least <= value <= most."""
    top = f" to {most}" if most is not None else " or more"
    number: object = value
    if isinstance(number, bool) or not isinstance(number, Integral):  # numpy's integers are Integral, but not int
        raise InputError(f"{name} is {value!r:.80}; it must be a whole number, {least}{top}")
    if value < least or value > (2**63 - 1 if most is None else most):
        raise InputError(f"{name} is {value}; it must be {least}{top}")
    return int(value)


def one_of(name: str, value: str, choices: Sequence[str]) -> str:
    """Returns `value` if it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name} is {value!r:.80}; it must be one of {', '.join(choices)}")
    return value


def sequence(name: str, value: Iterable[T]) -> tuple[T, ...]:
    """Returns `value`, a list or another iterable other than a string, as a tuple."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return tuple(value)
    except TypeError:
        raise InputError(f"{name} is {describe(value)}; it must be a list or a tuple") from None


def same_shape(name: str, shape: Sequence[int], second_name: str, second: Sequence[int]) -> None:
    """Raises unless two shapes are equal."""
    if tuple(shape) != tuple(second):
        raise InputError(f"{name} has shape {tuple(shape)} but {second_name} is {tuple(second)}; they must agree")


def instance(name: str, value: T, kind: type[Any]) -> T:
    """Returns `value` if it is an object of the class `kind`."""
    if not isinstance(value, kind):
        raise InputError(f"{name} is {describe(value)}; it must be a {kind.__name__}")
    return value


def describe(value: object) -> str:
    """Returns an object in a few words, for an error."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    text = repr(value)
    return f"{type(value).__name__} {text}" if len(text) <= 40 else f"a {type(value).__name__}"


def _number(name: str, value: Any) -> float:
    # float() alone would accept a string, and (with a warning) an array of one element
    if not (
        isinstance(value, Real) or (isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "fiub")
    ):
        raise InputError(f"{name} is {describe(value)}; it must be a number")
    try:
        return float(value)
    except OverflowError:
        raise InputError(f"{name} is beyond the range of float64; it must be a smaller number") from None
