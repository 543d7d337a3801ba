"""The critical width B*: the bits at which damage passes a threshold, and what can be said of it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fairbits.checks import Floats, finite_array, positive
from fairbits.measure.audit.founding_documents import critical_width

FLOOR = 100.0
"""Damage below threshold/FLOOR counts as threshold/FLOOR: noise around 0 has no logarithm."""
NAMED = 4
"""Languages of an open end that are named."""


@dataclass(frozen=True)
class Width:
    """B*, the bits at which damage passes a threshold, with its interval.

    The least and the largest width of a sweep stand for all that lies beyond them: both ends are open.
    """

    value: float
    low: float
    high: float

    def written(self, bits: Sequence[int]) -> str:
        """Returns it as text, where `bits` are the widths of the sweep.

        >>> Width(3.42, 3.1, 8.0).written(range(2, 9))
        '3.4 [3.1, >8]'
        """
        value, low, high = (written_width(each, bits) for each in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]"

    def as_data(self, bits: Sequence[int]) -> dict[str, Any]:
        """Returns it for JSON; the text tells an open end from a number."""
        return asdict(self) | {"text": self.written(bits)}


def written_width(width: float, bits: Sequence[int]) -> str:
    """Returns a width as text: below the least, above the largest, or with one decimal."""
    if width <= bits[0]:
        return f"<{bits[0]}"
    return f">{bits[-1]}" if width >= bits[-1] else f"{width:.1f}"


def crossing(bits: Sequence[int], damage: ArrayLike, threshold: float) -> Floats:
    """Returns the width at which damage (…, widths) passes the threshold, log D taken as linear between two widths.

    The largest one if damage passes it more than once; the least width of all where damage is never above, the largest
    where it is above even there.

    >>> crossing([2, 3, 4], [0.4, 0.1, 0.025], 0.05).item()
    3.5
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


def needs(widths: Mapping[str, Width], *, bits: Sequence[int], limit: str) -> str:
    """Returns which languages need the fewest and the most bits, and whether one width is enough for all."""
    top = [code for code, width in widths.items() if width.value >= bits[-1]]
    bottom = [code for code, width in widths.items() if width.value <= bits[0]]
    if len(bottom) == len(widths):
        return (
            f"No language loses more than {limit} at {bits[0]} bits or more: ask for fewer bits or a lower threshold."
        )
    if len(top) == len(widths):
        return f"Every language loses more than {limit} even at {bits[-1]} bits: ask for more or a higher threshold."
    least = min(widths, key=lambda code: widths[code].value)
    most = max(widths, key=lambda code: widths[code].value)
    low, high = widths[least], widths[most]
    first = f"{_named(top)} even at {bits[-1]} bits" if top else f"{most} below {high.written(bits)} bits"
    other = f"{_named(bottom)} not even at {bits[0]}" if bottom else f"{least} below {low.written(bits)} only"
    start = f"More than {limit} is lost by {first}, by {other}"
    if low.high >= high.low:
        rest = "no width of this sweep is enough for all" if top else "one width may do for all"
        return f"{start}; the intervals of {most} and {least} meet, and {rest}."
    if top or bottom:
        return f"{start}: {most} needs more bits than {least}; how many more lies outside the sweep."
    return f"{start}: {most} needs {high.value - low.value:.1f} bits more, so no one width treats both alike."


def against_founding_width(own: Width, max_kappa: float, *, bits: Sequence[int], limit: str) -> str:
    """Returns where the founding documents' width lies beside the one at which languages part."""
    found = critical_width(max_kappa)
    below, above = own.value <= bits[0], own.value >= bits[-1]
    where = f"below {bits[0]} bits if at all" if below else f"at {own.written(bits)} bits"
    if above:
        where = f"above {bits[-1]} bits"
    start = (
        f"The founding documents expect that languages part below {found:.1f} bits, as max κ is {max_kappa:.3g}; "
        f"the gap passes {limit} {where}: "
    )
    if own.high < bits[-1] and found > own.high:
        by = "" if below else f" by {found - own.value:.1f} bits"
        return f"{start}theirs is too high{by}, which warns where languages do not part yet."
    if own.low > bits[0] and found < own.low:
        by = "" if above else f" by {own.value - found:.1f} bits"
        return f"{start}theirs is too low{by}, which promises safety where languages have parted."
    if below or above:
        return f"{start}this sweep cannot tell whether theirs is right."
    return f"{start}theirs is within its interval."


def _named(codes: Sequence[str]) -> str:
    """Returns a few names, and how many more there are.

    >>> _named(["a", "b", "c", "d", "e", "f"])
    'a, b, c, d and 2 more'
    """
    return ", ".join(codes[:NAMED]) + (f" and {len(codes) - NAMED} more" if len(codes) > NAMED else "")
