"""Checks of arrays.

`near_one` and `representable` protect the arithmetic that follows: inputs of any size never produce an infinity.
"""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairbits.core.checks import describe, same_shape
from fairbits.core.errors import InputError

Floats = NDArray[np.float64]
Result = TypeVar("Result", float, Floats)


def finite_array(name: str, value: ArrayLike, *, ndim: int | None = None, least: int = 1) -> Floats:
    """Returns `value` as a float64 array that is finite and holds at least `least` elements."""
    array = as_array(name, value)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} is {describe(value)}; it must be an array of real numbers")
    with np.errstate(over="ignore"):  # a long double beyond float64 becomes infinite, which is refused below
        array = np.asarray(array, dtype=np.float64, order="C")
    if ndim is not None and array.ndim != ndim:
        raise InputError(f"{name} has shape {array.shape}; it must have {ndim} dimension(s)")
    if array.size < least:
        raise InputError(f"{name} holds {array.size} element(s); it must hold at least {least}")
    finite = np.isfinite(array)
    if not finite.all():
        where = np.argwhere(~finite)
        first = tuple(int(i) for i in where[0])
        raise InputError(
            f"{name} holds {len(where)} NaN or infinite element(s), the first ({array[first]}) at {first}; "
            "every element must be finite: remove or repair them first"
        )
    return array


def nonnegative_array(name: str, value: ArrayLike, *, ndim: int | None = None, least: int = 1) -> Floats:
    """Returns `value` as a finite float64 array without negative elements."""
    array = finite_array(name, value, ndim=ndim, least=least)
    if (array < 0).any():
        first = tuple(int(i) for i in np.argwhere(array < 0)[0])
        raise InputError(f"{name} holds {array[first]} at {first}; every element must be at least 0")
    return array


def weights_vector(name: str, value: ArrayLike, *, size: int) -> Floats:
    """Returns `value` as nonnegative weights of length `size`, scaled to sum to 1."""
    array = nonnegative_array(name, value, ndim=1)
    same_shape(name, array.shape, "the number of parts", (size,))
    if not array.any():
        raise InputError(f"{name} sums to 0; at least one weight must be positive")
    scaled = near_one(array)[0]  # so that the sum cannot overflow
    return scaled / float(scaled.sum())


def labels(name: str, value: ArrayLike, size: int) -> NDArray[np.intp]:
    """Returns an integer code 0, 1, … for each of `size` labels, which must be strings or finite numbers."""
    array = as_array(name, value)
    same_shape(name, array.shape, "the number of units", (size,))
    if array.dtype.kind == "O" and all(isinstance(label, str) for label in array):
        array = array.astype(np.str_)
    if array.dtype.kind not in "Ubiuf" or (array.dtype.kind == "f" and not np.isfinite(array).all()):
        raise InputError(f"{name} is an array of {array.dtype}; its labels must be strings or finite numbers")
    return np.unique(array, return_inverse=True)[1]


def near_one(x: Floats) -> tuple[Floats, float]:
    """Returns x divided, exactly, by a power of two near its largest magnitude, and that power (1 if x is 0)."""
    exponent = int(np.clip(np.frexp(np.max(np.abs(x)))[1], -1021, 1023))
    return np.ldexp(x, -exponent), float(np.ldexp(1.0, exponent))


def representable(name: str, value: Result) -> Result:
    """Returns the result `value` if it is within the range of float64."""
    if not np.isfinite(value).all():
        raise InputError(f"{name} is beyond the range of float64; scale the input down (or up) first")
    return value


def as_array(name: str, value: Any) -> np.ndarray:
    """Returns `value` as a NumPy array and keeps its type."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} is {describe(value)}; it must be an array, every row of the same length") from None
