"""Sentences about the critical bit width B*, at which damage crosses a threshold."""

from collections.abc import Mapping, Sequence

from fairbits.kurtosis.checklist import critical_bits
from fairbits.stats.crossing import CriticalBits

NAMED = 4  # languages that a sentence names at most


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
