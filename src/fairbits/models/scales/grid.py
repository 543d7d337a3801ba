"""The numbers that weights are rounded to; `groups.py` rounds tensors to them.

The integer grids, on numpy arrays:

| kind        | codes k                       | value     | clip threshold α      |
|-------------|-------------------------------|-----------|-----------------------|
| `symmetric` | −n … n, n = 2^(B−1) − 1       | k·step    | n·step (a level)      |
| `twos`      | −2^(B−1) … 2^(B−1) − 1        | k·step    | 2^(B−1)·step          |
| `midrise`   | −2^(B−1) … 2^(B−1) − 1        | (k+½)·step| 2^(B−1)·step (an edge)|

`symmetric` is the grid of the research notes, `twos` the one that INT4 kernels store.
On `twos` the step may be negative, which moves the extra code to the other side.

The numbers of a floating-point grid are counted through: code k is the k-th number above 0, and −k its negative. So
codes are as dense as integers, and |k| is the number as it is stored, exponent bits first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairbits.core.array_checks import Floats
from fairbits.core.checks import one_of, whole
from fairbits.core.errors import InputError
from fairbits.models.scales.scheme import Numbers

GridKind = Literal["symmetric", "twos", "midrise"]
CodeArray = NDArray[np.int16]


@dataclass(frozen=True)
class Grid:
    """A uniform grid of `bits` bits; a step turns its codes into values."""

    numbers: ClassVar[Numbers] = "int"
    bits: int
    kind: GridKind = "symmetric"

    def __post_init__(self) -> None:
        whole("bits", self.bits, least=2, most=16)
        one_of("grid kind", self.kind, get_args(GridKind))

    @cached_property
    def lowest(self) -> int:
        return -self.highest if self.kind == "symmetric" else -self.highest - 1

    @cached_property
    def highest(self) -> int:
        return int(2 ** (self.bits - 1) - 1)

    @cached_property
    def offset(self) -> float:
        """The number added to a code before it is multiplied by the step."""
        return 0.5 if self.kind == "midrise" else 0.0

    @cached_property
    def steps_per_alpha(self) -> int:
        """α / step: n on the symmetric grid, 2^(B−1) on the others."""
        return -self.lowest

    @cached_property
    def caps(self) -> tuple[int, int]:
        """How many decision thresholds lie above 0 and how many below it, for a positive step."""
        return self.highest, self.highest if self.kind == "midrise" else -self.lowest

    def step(self, alpha: ArrayLike) -> Floats:
        return np.asarray(alpha, dtype=np.float64) / self.steps_per_alpha

    def alpha(self, step: ArrayLike) -> Floats:
        """Returns the clip threshold: |step|·steps_per_alpha."""
        return np.abs(np.asarray(step, dtype=np.float64)) * self.steps_per_alpha

    def codes(self, x: ArrayLike, step: ArrayLike) -> CodeArray:
        """Returns the nearest code of each x; `step` broadcasts, and a step of 0 (an all-zero block) gives 0."""
        values, steps = np.asarray(x, dtype=np.float64), np.asarray(step, dtype=np.float64)
        if self.kind != "twos" and (steps < 0).any():
            raise InputError(
                f"step is {steps.min():g}; only the twos grid takes a negative step: use its absolute value"
            )
        with np.errstate(over="ignore"):  # a ratio that overflows is clipped
            zeros = np.zeros(np.broadcast_shapes(values.shape, steps.shape))
            ratio = np.divide(values, steps, out=zeros, where=steps != 0)
        codes = np.clip(np.rint(ratio - self.offset), self.lowest, self.highest)
        return np.where(steps != 0, codes, 0).astype(np.int16)

    def quantize(self, x: ArrayLike, step: ArrayLike) -> Floats:
        """Returns the grid value nearest to each x: (code + offset)·step."""
        levels: Floats = self.codes(x, step) + np.float64(self.offset)
        return levels * np.asarray(step, dtype=np.float64)


@dataclass(frozen=True)
class FloatGrid:
    """The numbers ±m·2^e of a floating-point type with `mantissa` bits after the first and exponents from `least`."""

    numbers: Numbers
    bits: int
    mantissa: int
    least: int
    highest: int  # the code of the largest number

    @property
    def lowest(self) -> int:
        return -self.highest

    @cached_property
    def values(self) -> NDArray[np.float32]:
        """The values of the codes 0, 1 … `highest`."""
        codes = np.arange(self.highest + 1)
        steps = 2**self.mantissa
        exponents = np.maximum(codes // steps - 1, 0)
        whole = np.where(codes < steps, codes, codes % steps + steps).astype(np.float32)
        values: NDArray[np.float32] = np.ldexp(whole, exponents + self.least - self.mantissa)
        return values

    @cached_property
    def gaps(self) -> NDArray[np.float32]:
        """Half the distance between the neighbours of each of these values."""
        beyond = 2 * self.values[-1] - self.values[-2]
        steps = np.diff(np.hstack([-self.values[1], self.values, beyond]))
        gaps: NDArray[np.float32] = ((steps[1:] + steps[:-1]) / 2).astype(np.float32)
        return gaps

    @property
    def largest(self) -> float:
        return float(self.values[-1])

    @property
    def steps_per_alpha(self) -> float:
        """The clip threshold as a multiple of the scale."""
        return self.largest

    def alpha(self, step: ArrayLike) -> Floats:
        return np.abs(np.asarray(step, dtype=np.float64)) * self.largest


FLOAT_GRIDS: Mapping[Numbers, FloatGrid] = MappingProxyType(
    {"e2m1": FloatGrid("e2m1", 4, 1, 0, 7), "e4m3": FloatGrid("e4m3", 8, 3, -6, 126)}
)
