"""Checks of the arguments of public functions. Each error says what arrived and what must hold.

`near_one` and `representable` protect the arithmetic that follows: inputs of any size never produce an infinity.
"""

from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairbits.errors import InputError

Floats = NDArray[np.float64]
T = TypeVar("T")
Result = TypeVar("Result", float, Floats)


def finite_array(name: str, value: ArrayLike, *, ndim: int | None = None, least: int = 1) -> Floats:
    """Returns `value` as a float64 array that is finite and holds at least `least` elements."""
    array = _as_float64(name, value)
    if ndim is not None and array.ndim != ndim:
        raise InputError(f"{name} has shape {array.shape}; it must have {ndim} dimension(s)")
    if array.size < least:
        raise InputError(f"{name} holds {array.size} element(s); at least {least} must be given")
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


def same_shape(name: str, shape: Sequence[int], other_name: str, other: Sequence[int]) -> None:
    """Raises unless two shapes are equal."""
    if tuple(shape) != tuple(other):
        raise InputError(f"{name} has shape {tuple(shape)} but {other_name} is {tuple(other)}; they must agree")


def positive(name: str, value: float) -> float:
    """Returns `value` if it is a finite number above 0."""
    return in_range(name, value, above=0.0)


def in_range(
    name: str,
    value: float,
    *,
    above: float = -np.inf,
    below: float = np.inf,
    least: float = -np.inf,
    most: float = np.inf,
) -> float:
    """Returns `value` if it is finite with above < value < below and least <= value <= most."""
    number = _number(name, value)
    if not (np.isfinite(number) and above < number < below and least <= number <= most):
        limits = [
            text
            for text, limit in (
                (f"above {above:g}", above),
                (f"below {below:g}", below),
                (f"at least {least:g}", least),
                (f"at most {most:g}", most),
            )
            if np.isfinite(limit)
        ]
        raise InputError(f"{name} is {number:g}; it must be finite{''.join(', ' + text for text in limits)}")
    return number


def whole(name: str, value: int, *, least: int, most: int | None = None) -> int:
    """Returns `value` if it is a whole number with least <= value <= most."""
    top = f" to {most}" if most is not None else " or more"
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputError(f"{name} is {value!r}; it must be a whole number, {least}{top}")
    if value < least or value > (2**63 - 1 if most is None else most):
        raise InputError(f"{name} is {value}; it must be {least}{top}")
    return int(value)


def one_of(name: str, value: str, choices: Sequence[str]) -> str:
    """Returns `value` if it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name} is {value!r}; it must be one of {', '.join(choices)}")
    return value


def sequence(name: str, value: Iterable[T]) -> tuple[T, ...]:
    """Returns `value`, a list or another iterable other than a string, as a tuple."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return tuple(value)
    except TypeError:
        raise InputError(f"{name} is {_described(value)}; it must be a list or a tuple") from None


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
    """Returns x divided by a power of two near its largest magnitude, and that power (1 if x is 0).

    The division is exact, and squares and sums of the result neither overflow nor underflow.
    """
    exponent = int(np.clip(np.frexp(np.max(np.abs(x)))[1], -1021, 1023))
    return np.ldexp(x, -exponent), float(np.ldexp(1.0, exponent))


def instance(name: str, value: T, kind: type[Any]) -> T:
    """Returns `value` if it is an object of the class `kind`."""
    if not isinstance(value, kind):
        raise InputError(f"{name} is {_described(value)}; it must be a {kind.__name__}")
    return value


def instances(name: str, values: Iterable[T], kind: type[Any]) -> tuple[T, ...]:
    """Returns `values` as a tuple if all are objects of the class `kind` and there is at least one."""
    items = sequence(name, values)
    if not items:
        raise InputError(f"{name} is empty; it must hold at least one {kind.__name__}")
    return tuple(instance(f"{name}[{i}]", item, kind) for i, item in enumerate(items))


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
        raise InputError(f"{name} is {_described(value)}; it must be an array, every row of the same length") from None


def _number(name: str, value: Any) -> float:
    # float() alone would accept a string, and (with a warning) an array of one element
    if not (isinstance(value, Real) or (isinstance(value, np.ndarray) and value.shape == () and _real(value))):
        raise InputError(f"{name} is {_described(value)}; it must be a number")
    try:
        return float(value)
    except OverflowError:
        raise InputError(f"{name} is beyond the range of float64; it must be a smaller number") from None


def _as_float64(name: str, value: ArrayLike) -> Floats:
    array = as_array(name, value)
    if not _real(array):
        raise InputError(f"{name} is {_described(value)}; it must be an array of real numbers")
    with np.errstate(over="ignore"):  # a long double beyond float64 becomes infinite, which is refused later
        return np.asarray(array, dtype=np.float64, order="C")


def _real(array: np.ndarray) -> bool:
    return array.dtype.kind in "fiub"


def _described(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    text = repr(value)
    return f"{type(value).__name__} {text}" if len(text) <= 40 else f"a {type(value).__name__}"
