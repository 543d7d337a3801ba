"""The critical bit width B*, at which damage crosses a threshold, and sentences about it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fairbits.core.array_checks import Floats, finite_array
from fairbits.core.checks import positive
from fairbits.kurtosis.checklist import critical_bits

FLOOR = 100.0  # damage below threshold/FLOOR counts as threshold/FLOOR: noise around 0 has no logarithm
NAMED = 4  # languages that a sentence names at most


@dataclass(frozen=True)
class CriticalBits:
    """B*, the bits at which damage crosses a threshold, with its interval.

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
    """Returns the width at which damage (…, widths) crosses the threshold; log D is interpolated between widths.

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


def needs_sentence(widths: Mapping[str, CriticalBits], *, bits: Sequence[int], limit: str) -> str:
    """Returns which languages need the fewest and the most bits, and whether one width is enough for all."""
    top = [code for code, width in widths.items() if width.value >= bits[-1]]
    bottom = [code for code, width in widths.items() if width.value <= bits[0]]
    if len(bottom) == len(widths):
        return f"No language exceeds {limit} at {bits[0]} bits or more: try fewer bits or a lower threshold."
    if len(top) == len(widths):
        return f"Every language exceeds {limit} even at {bits[-1]} bits: try more bits or a higher threshold."
    least = min(widths, key=lambda code: widths[code].value)
    most = max(widths, key=lambda code: widths[code].value)
    low, high = widths[least], widths[most]
    first = f"{_named(top)} even at {bits[-1]} bits" if top else f"{most} below {high.text(bits)} bits"
    last = f"{_named(bottom)} not even at {bits[0]} bits" if bottom else f"{least} only below {low.text(bits)} bits"
    start = f"Damage exceeds {limit} for {first}, and for {last}"
    if low.high >= high.low:
        rest = "no width of this sweep is enough for all" if top else "one width may be enough for all"
        return f"{start}; the intervals of {most} and {least} overlap, so {rest}."
    if top or bottom:
        return f"{start}: {most} needs more bits than {least}; how many more is outside this sweep."
    return f"{start}: {most} needs {high.value - low.value:.1f} bits more, so no single width treats both alike."


def notes_sentence(measured: CriticalBits, max_kappa: float, *, bits: Sequence[int], limit: str) -> str:
    """Returns how the research notes' width compares with the one at which the gap crosses the threshold."""
    predicted = critical_bits(max_kappa)
    below, above = measured.value <= bits[0], measured.value >= bits[-1]
    where = f"below {bits[0]} bits if at all" if below else f"at {measured.text(bits)} bits"
    if above:
        where = f"above {bits[-1]} bits"
    start = (
        f"The research notes expect a gap below {predicted:.1f} bits, because max κ is {max_kappa:.3g}; "
        f"the measured gap crosses {limit} {where}: "
    )
    if measured.high < bits[-1] and predicted > measured.high:
        by = "" if below else f" by {predicted - measured.value:.1f} bits"
        return f"{start}their width is too high{by} and warns where there is no gap yet."
    if measured.low > bits[0] and predicted < measured.low:
        by = "" if above else f" by {measured.value - predicted:.1f} bits"
        return f"{start}their width is too low{by} and promises safety where there is a gap."
    if below or above:
        return f"{start}this sweep cannot decide whether their width is right."
    return f"{start}their width is within its interval."


def _named(codes: Sequence[str]) -> str:
    return ", ".join(codes[:NAMED]) + (f" and {len(codes) - NAMED} more" if len(codes) > NAMED else "")
