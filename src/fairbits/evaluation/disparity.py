"""Disparity: how unequal the damage of languages is, and its table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairbits.core.errors import InputError
from fairbits.core.table import Cell, NumberFormat, Table, dim, plain
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits.text.language_codes import language_from_code

ROWS = ("worst", "best", "mean", "gap", "ratio")
HEADERS = {"divergence": "KL", "loss": "added loss"}


@dataclass(frozen=True)
class Disparity:
    """Damage over languages in one unit. Values that need two languages are None if there is only one.

    `worst`      the most damaged language and the largest true damage, corrected for selection; `best` likewise
    `gap`        largest minus smallest damage, corrected for noise; `plain_gap` is the uncorrected difference
    """

    unit: str
    worst: tuple[str, Estimate]
    best: tuple[str, Estimate]
    mean: Estimate  # the mean over languages, equally weighted
    gap: Estimate | None
    plain_gap: Estimate | None
    ratio: Estimate | None  # largest over smallest damage; if None, `no_ratio` says why
    no_ratio: str | None
    deviation: Estimate | None  # the standard deviation of true damage between languages

    @property
    def hidden(self) -> bool:
        """Whether chance explains all differences between languages, so that worst and best are equal."""
        return self.gap is not None and self.worst[1].value == self.best[1].value

    def as_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            name: {"language": code} | estimate.to_dict()
            for name, (code, estimate) in (("worst", self.worst), ("best", self.best))
        }
        for name in ("mean", "gap", "plain_gap", "ratio", "deviation"):
            estimate = getattr(self, name)
            data[name] = None if estimate is None else estimate.to_dict()
        return data | {"no_ratio": self.no_ratio}


def measure_disparity(frame: LanguageFrame) -> Disparity:
    """Returns how unequal the damage of a frame is."""
    several = len(frame.languages) > 1
    ratio, no_ratio = _ratio(frame) if several else (None, "there is only one language")
    return Disparity(
        unit=frame.unit,
        worst=frame.worst(),
        best=frame.best(),
        mean=frame.mean(),
        gap=frame.gap() if several else None,
        plain_gap=frame.plain_gap() if several else None,
        ratio=ratio,
        no_ratio=no_ratio,
        deviation=frame.spread() if several else None,
    )


def _ratio(frame: LanguageFrame) -> tuple[Estimate | None, str | None]:
    try:
        return frame.ratio(), None
    except InputError as problem:
        return None, str(problem)


def disparity_table(both: Mapping[str, Disparity], changed: Disparity, sections: Disparity | None) -> Table:
    """Returns worst, best, mean and gap of `changed` tokens and by measure; a line on `sections` of parallel text."""
    formats = [NumberFormat(1.0, factor=100.0, decimals=1), *map(_format, both.values())]
    rows: list[tuple[Cell, ...]] = []
    for name in ROWS:
        shown = (changed, *both.values())
        cells = [_cell(disparity, name, number) for disparity, number in zip(shown, formats, strict=True)]
        if any(cells):
            rows.append((name, *(cell or "–" for cell in cells)))
    below: list[Cell] = []
    if any(disparity.ratio is None and disparity.gap is not None for disparity in both.values()):
        below.append(dim("The ratio is left out where the smallest damage may be 0."))
    if changed.gap is not None:
        below.append(dim("Worst, best and gap (worst minus best) are corrected for chance, so they differ a little."))
    alike = [name for name, disparity in both.items() if disparity.hidden]
    if alike:
        why = "chance explains the differences between languages, so worst and best are corrected to the mean"
        below.append(dim(f"{' and '.join(alike).capitalize()}: {why}."))
    if sections is not None:
        number = _format(sections)
        parts = {name: _cell(sections, name, number) for name in ("worst", "mean", "gap")}
        listed = ", ".join(f"{name} {plain(cell)}" for name, cell in parts.items() if cell)
        below.append(f"{number.prefix}nats of divergence per parallel section: ".capitalize() + listed)
    units = (f"\n{number.prefix}bits/byte" for number in formats[1:])
    headers = ("", "changed,\nof 100", *(HEADERS[name] + "," + unit for name, unit in zip(both, units, strict=True)))
    return Table("Over languages", headers, tuple(rows), tuple(below), left=(1, 2, 3))


def _format(disparity: Disparity) -> NumberFormat:
    return NumberFormat(max(abs(disparity.worst[1].value), abs(disparity.best[1].value)))


def _cell(disparity: Disparity, name: str, number: NumberFormat) -> Cell | None:
    """Returns a number with its interval and its language, if it has one; None if there is no such number."""
    value = getattr(disparity, name)
    if value is None:
        return None
    code, estimate = value if isinstance(value, tuple) else ("", value)
    if name == "ratio":
        number = NumberFormat(estimate.value, factor=1.0)
    return number.estimate(
        estimate, f" {code.partition('_')[0] if language_from_code(code).script else code}" if code else ""
    )
