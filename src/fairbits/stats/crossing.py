"""The bit width at which damage crosses a threshold."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fairbits.core.array_checks import Floats, finite_array
from fairbits.core.checks import positive

FLOOR = 100.0  # damage below threshold/FLOOR counts as threshold/FLOOR: noise around 0 has no logarithm


@dataclass(frozen=True)
class CriticalBits:
    """The bits at which damage crosses a threshold, with an interval.

    The smallest and the largest width of a sweep also stand for everything beyond them: both ends are open.
    """

    value: float
    low: float
    high: float

    def text(self, bits: Sequence[int]) -> str:
        value, low, high = (bits_text(number, bits) for number in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]"

    def as_data(self, bits: Sequence[int]) -> dict[str, Any]:
        return asdict(self) | {"text": self.text(bits)}


def bits_text(number: float, bits: Sequence[int]) -> str:
    """Returns a bit width as text: below the smallest, above the largest, or with one decimal."""
    if number <= bits[0]:
        return f"<{bits[0]}"
    return f">{bits[-1]}" if number >= bits[-1] else f"{number:.1f}"


def crossing(bits: Sequence[int], damage: ArrayLike, threshold: float) -> Floats:
    """Returns the width at which damage (…, widths) crosses the threshold; its logarithm is interpolated.

    The largest such width if damage crosses it more than once; the smallest width of all if damage is never above, the
    largest if it is above even there.
    """
    at = finite_array("bits", list(bits), ndim=1, least=2)
    level = positive("threshold", threshold)
    logs = np.log(np.maximum(finite_array("damage", damage), level / FLOOR) / level)
    above = logs > 0
    last = len(at) - 1 - np.argmax(above[..., ::-1], axis=-1)  # the largest width with too much damage
    left = np.minimum(last, len(at) - 2)[..., None]
    before, after = (np.take_along_axis(logs, index, axis=-1)[..., 0] for index in (left, left + 1))
    inside = (last < len(at) - 1) & above.any(axis=-1)
    share = np.divide(before, before - after, out=np.zeros_like(before), where=inside)
    width: Floats = at[left[..., 0]] + share * np.diff(at)[left[..., 0]]
    return np.where(inside, width, np.where(above.any(axis=-1), at[-1], at[0]))
