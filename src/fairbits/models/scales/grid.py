"""The integer grids: the only definition of quantize, dequantize and code in fairbits.

| kind        | codes k                       | value     | clip threshold α      |
|-------------|-------------------------------|-----------|-----------------------|
| `symmetric` | −n … n, n = 2^(B−1) − 1       | k·step    | n·step (a level)      |
| `twos`      | −2^(B−1) … 2^(B−1) − 1        | k·step    | 2^(B−1)·step          |
| `midrise`   | −2^(B−1) … 2^(B−1) − 1        | (k+½)·step| 2^(B−1)·step (an edge)|

`symmetric` is the grid of the research notes, `twos` the one that INT4 kernels store.
On `twos` the step may be negative, which moves the extra code to the other side.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairbits.core.array_checks import Floats, finite_array, nonnegative_array, representable
from fairbits.core.checks import one_of, whole
from fairbits.core.errors import InputError

GridKind = Literal["symmetric", "twos", "midrise"]
CodeArray = NDArray[np.int16]


@dataclass(frozen=True)
class Grid:
    """A uniform grid of `bits` bits; a step turns its codes into values.

    >>> Grid(4).quantize([0.0, 0.44, -9.0], step=0.5).tolist()
    [0.0, 0.5, -3.5]
    >>> Grid(4, "twos").quantize([0.0, 0.44, -9.0], step=0.5).tolist()
    [0.0, 0.5, -4.0]
    """

    bits: int
    kind: GridKind = "symmetric"

    def __post_init__(self) -> None:
        whole("bits", self.bits, least=2, most=8)
        one_of("grid kind", self.kind, get_args(GridKind))

    @cached_property
    def lowest(self) -> int:
        """The smallest code."""
        return -self.highest if self.kind == "symmetric" else -self.highest - 1

    @cached_property
    def highest(self) -> int:
        """The largest code, 2^(B−1) − 1."""
        return int(2 ** (self.bits - 1) - 1)

    @cached_property
    def offset(self) -> float:
        """The number added to a code before it is multiplied by the step."""
        return 0.5 if self.kind == "midrise" else 0.0

    @cached_property
    def levels(self) -> int:
        """The number of codes."""
        return self.highest - self.lowest + 1

    @cached_property
    def steps_per_alpha(self) -> int:
        """α / step: n on the symmetric grid, 2^(B−1) on the others."""
        return -self.lowest

    @cached_property
    def caps(self) -> tuple[int, int]:
        """How many decision thresholds lie above 0 and how many below it, for a positive step."""
        return self.highest, self.highest if self.kind == "midrise" else -self.lowest

    def step(self, alpha: ArrayLike) -> Floats:
        """Returns the step that belongs to the clip threshold: α / steps_per_alpha.

        >>> float(Grid(4).step(3.5)), float(Grid(4, "twos").step(4.0))
        (0.5, 0.5)
        """
        return nonnegative_array("alpha", alpha) / self.steps_per_alpha

    def alpha(self, step: ArrayLike) -> Floats:
        """Returns the clip threshold: |step|·steps_per_alpha.

        >>> float(Grid(4).alpha(0.5)), float(Grid(4, "twos").alpha(-0.5))
        (3.5, 4.0)
        """
        steps = np.abs(finite_array("step", step))
        with np.errstate(over="ignore"):
            return representable("alpha", steps * self.steps_per_alpha)

    def codes(self, x: ArrayLike, step: ArrayLike) -> CodeArray:
        """Returns the nearest code of each x, clipped to the grid; `step` broadcasts against x.

        A step of 0 stands for an all-zero block and gives code 0.

        >>> Grid(4, "twos").codes([0.0, 0.44, -9.0], 0.5).tolist()
        [0, 1, -8]
        """
        x, step = finite_array("x", x), self._checked_step(step)
        _broadcastable(x, step)
        with np.errstate(over="ignore"):  # a ratio that overflows is clipped
            ratio = np.divide(x, step, out=np.zeros(np.broadcast_shapes(x.shape, step.shape)), where=step != 0)
        nearest = np.rint(ratio - self.offset)
        codes = np.clip(nearest, self.lowest, self.highest)
        return np.where(step != 0, codes, 0).astype(np.int16)

    def values(self, codes: ArrayLike, step: ArrayLike) -> Floats:
        """Returns (code + offset)·step: the dequantized values.

        >>> Grid(4, "midrise").values([-8, 0, 7], 0.5).tolist()
        [-3.75, 0.25, 3.75]
        """
        codes, step = finite_array("codes", codes), self._checked_step(step)
        _broadcastable(codes, step)
        if codes.min() < self.lowest or codes.max() > self.highest or (codes != np.rint(codes)).any():
            raise InputError(
                f"codes run from {codes.min():g} to {codes.max():g}; on the {self.kind} grid of {self.bits} bits "
                f"they must be whole numbers from {self.lowest} to {self.highest}"
            )
        with np.errstate(over="ignore"):
            return representable("(code + offset)·step", (codes + self.offset) * step)

    def quantize(self, x: ArrayLike, step: ArrayLike) -> Floats:
        """Returns the grid value nearest to each x: `values` of its `codes`.

        >>> Grid(3, "midrise").quantize([0.1, -5.0], 1.0).tolist()
        [0.5, -3.5]
        """
        levels: Floats = self.codes(x, step) + np.float64(self.offset)
        with np.errstate(over="ignore"):
            return representable("(code + offset)·step", levels * np.asarray(step, dtype=np.float64))

    def _checked_step(self, step: ArrayLike) -> Floats:
        array = finite_array("step", step)
        if self.kind != "twos" and (array < 0).any():
            raise InputError(
                f"step is {array.min():g}; only the twos grid takes a negative step: use its absolute value"
            )
        return array


def _broadcastable(x: Floats, step: Floats) -> None:
    try:
        np.broadcast_shapes(x.shape, step.shape)
    except ValueError:
        raise InputError(
            f"x has shape {x.shape} and step {step.shape}; step must broadcast against x, "
            "for example (out, 1) for one step per row"
        ) from None
