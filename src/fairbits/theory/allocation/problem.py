"""The allocation problem (sizes, damages, a budget in bytes) and its solution (one width per block)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairbits.checks import (
    Floats,
    finite_array,
    in_range,
    nonnegative_array,
    same_shape,
    sequence,
    weights_vector,
    whole,
)
from fairbits.errors import InputError

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False, init=False)
class Problem:
    """Sizes in bytes and additive damages of every block at every width.

    `damage[lang, block, option]` is the damage of `lang` when only `block` is stored at `bits[option]`; the
    damage of a whole allocation is the sum over blocks (interactions are ignored: measure the chosen one again).
    `sizes[block, option]` includes scales; `fixed_bytes` is everything that is never quantized.

    >>> problem = Problem(bits=(4, 8), sizes=[[4, 8], [4, 8]], damage=[[[2, 0], [1, 0]]], fixed_bytes=10)
    >>> problem.smallest_bytes
    18
    """

    bits: tuple[int, ...]
    sizes: Ints
    damage: Floats
    fixed_bytes: int = 0
    languages: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()

    def __init__(
        self,
        bits: Sequence[int],
        sizes: ArrayLike,
        *,
        damage: ArrayLike,
        fixed_bytes: int = 0,
        languages: Sequence[str] = (),
        blocks: Sequence[str] = (),
    ) -> None:
        widths = _widths(bits)
        size_table = _whole_array("sizes", sizes, ndim=2)
        damages = finite_array("damage", damage, ndim=3).copy()
        same_shape("sizes", size_table.shape[1:], "the number of bits options", (len(widths),))
        same_shape("damage", damages.shape[1:], "the shape of sizes", size_table.shape)
        for name, given, size in (
            ("languages", languages, len(damages)),
            ("blocks", blocks, len(size_table)),
        ):
            if isinstance(given, str) or len(sequence(name, given)) not in (0, size):
                raise InputError(f"{name} is {given!r}; it must be empty or hold {size} name(s), one per row")
        damages.setflags(write=False)
        size_table.setflags(write=False)
        values: dict[str, Any] = {
            "bits": widths,
            "sizes": size_table,
            "damage": damages,
            "fixed_bytes": whole("fixed_bytes", fixed_bytes, least=0),
            "languages": tuple(languages),
            "blocks": tuple(blocks),
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)

    @property
    def n_languages(self) -> int:
        """The number of languages."""
        return len(self.damage)

    @property
    def n_blocks(self) -> int:
        """The number of blocks."""
        return len(self.sizes)

    @property
    def smallest_bytes(self) -> int:
        """The total size with the smallest option everywhere: no budget below it can be met."""
        return self.fixed_bytes + int(self.sizes.min(axis=1).sum())

    def capacity(self, budget: int) -> int:
        """Returns the bytes that `budget` (total, fixed tensors included) leaves for the blocks.

        >>> Problem(bits=(4, 8), sizes=[[4, 8]], damage=[[[2, 0]]], fixed_bytes=10).capacity(15)
        5
        """
        total = whole("budget", budget, least=0)
        if total < self.smallest_bytes:
            raise InputError(
                f"budget is {total} bytes; the smallest feasible size is {self.smallest_bytes} bytes "
                f"({self.fixed_bytes} fixed): raise the budget, or allow fewer than {self.bits[0]} bits"
            )
        return total - self.fixed_bytes

    def total_damage(self, options: ArrayLike) -> Floats:
        """Returns the damage per language, Σ_l d[λ, l, option_l], of one option index per block.

        >>> Problem(bits=(4, 8), sizes=[[4, 8], [4, 8]], damage=[[[2, 0], [1, 0]]]).total_damage([1, 0])
        array([1.])
        """
        chosen = self._checked(options)
        picked: Floats = self.damage[:, np.arange(self.n_blocks), chosen]
        totals: Floats = picked.sum(axis=1)
        return totals

    def total_bytes(self, options: ArrayLike) -> int:
        """Returns the total size in bytes, fixed tensors included, of one option index per block.

        >>> Problem(bits=(4, 8), sizes=[[4, 8]], damage=[[[2, 0]]], fixed_bytes=10).total_bytes([1])
        18
        """
        chosen = self._checked(options)
        return self.fixed_bytes + int(self.sizes[np.arange(self.n_blocks), chosen].sum())

    def mean_damage(self, pi: ArrayLike | None) -> Floats:
        """Returns Σ_λ π_λ d[λ, block, option]; equal weights when `pi` is None.

        >>> Problem(bits=(4, 8), sizes=[[4, 8]], damage=[[[2, 0]], [[4, 0]]]).mean_damage([3, 1])
        array([[2.5, 0. ]])
        """
        weights = np.ones(self.n_languages) if pi is None else pi
        averaged: Floats = np.tensordot(weights_vector("pi", weights, size=self.n_languages), self.damage, axes=1)
        return averaged

    def _checked(self, options: ArrayLike) -> Ints:
        chosen = _whole_array("options", options, ndim=1)
        same_shape("options", chosen.shape, "the number of blocks", (self.n_blocks,))
        if (chosen >= len(self.bits)).any():
            raise InputError(f"options holds {chosen.max()}; every index must be below {len(self.bits)}")
        return chosen


@dataclass(frozen=True, eq=False)
class Allocation:
    """One width per block, its size and damage, and how close it is to the best possible."""

    bits: tuple[int, ...]
    options: tuple[int, ...]
    size_bytes: int
    damage: Floats
    objective: str
    value: float
    bound: float  # no allocation within the budget has an objective value below this
    solver: str
    optimal: bool  # value - bound is at most 1e-7 of the scale of the objective


def block_bytes(
    n_weights: ArrayLike,
    n_scales: ArrayLike,
    *,
    bits: Sequence[int],
    scale_bits: int = 16,
    float_bits: int = 16,
) -> Ints:
    """Returns the bytes of every block at every width, [block, option].

    ⌈n_weights·bits/8⌉ + ⌈n_scales·scale_bits/8⌉. Widths of `float_bits` and more keep the weights as floats
    and need no scales. `n_scales` counts zero points too, where there are any.

    >>> block_bytes([4096], [32], bits=(3, 4, 16))
    array([[1600, 2112, 8192]])
    """
    weights = _whole_array("n_weights", n_weights, ndim=1)
    scales = _whole_array("n_scales", n_scales, ndim=1)
    same_shape("n_scales", scales.shape, "the shape of n_weights", weights.shape)
    whole("scale_bits", scale_bits, least=0)
    whole("float_bits", float_bits, least=1)
    widths = np.array(_widths(bits), dtype=np.int64)
    codes: Ints = -(-weights[:, None] * widths // 8)
    scale_bytes = -(-scales * scale_bits // 8)
    return codes + np.where(widths < float_bits, scale_bytes[:, None], 0)


def make_allocation(
    problem: Problem,
    options: ArrayLike,
    *,
    objective: str,
    value: float,
    bound: float,
    solver: str,
    scale: float,
) -> Allocation:
    """Returns the Allocation of these options; it counts as optimal within 1e-7 of `scale`."""
    in_range("value", value)
    chosen = tuple(int(option) for option in np.asarray(options))
    damage = problem.total_damage(chosen)
    damage.setflags(write=False)
    return Allocation(
        bits=tuple(problem.bits[option] for option in chosen),
        options=chosen,
        size_bytes=problem.total_bytes(chosen),
        damage=damage,
        objective=objective,
        value=value,
        bound=min(bound, value),
        solver=solver,
        optimal=bool(value - bound <= 1e-7 * abs(scale)),
    )


def _widths(bits: Sequence[int]) -> tuple[int, ...]:
    widths = tuple(whole("bits", width, least=1, most=64) for width in sequence("bits", bits))
    if not widths or any(wide <= narrow for narrow, wide in pairwise(widths)):
        raise InputError(f"bits is {widths}; it must hold at least one width, in increasing order")
    return widths


def _whole_array(name: str, value: ArrayLike, *, ndim: int) -> Ints:
    array = nonnegative_array(name, value, ndim=ndim)
    if (array != np.rint(array)).any() or array.max() > 2**53:
        raise InputError(f"{name} holds {array.max():g} at most; every element must be a whole number up to 2^53")
    return array.astype(np.int64)
