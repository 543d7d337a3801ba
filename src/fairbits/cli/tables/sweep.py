"""A sweep for a terminal of 80 columns: damage by language and width, critical widths, and the verdict."""

from collections.abc import Iterable

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fairbits.checks import instance
from fairbits.cli.tables.layout import columns, notes_section, section
from fairbits.errors import count_of, printable
from fairbits.units import MB, MEASURE_LABELS, UNIT_LABELS
from fairbits.verbs.sweep import Sweep

LEGEND = (
    "B*: critical width, below which the damage exceeds the threshold; log damage is interpolated linearly between "
    "widths, and 95 % intervals come from resampling documents. The intervals of the damage are in the JSON."
)


def sweep_table(found: Sweep) -> Group:
    """Returns the damage of every language at every width, the language that needs most bits first."""
    instance("found", found, Sweep)
    frame = next(iter(found.frames.values()))
    amounts = (count_of(len(frame.languages), "language"), count_of(len(frame.document), "document"))
    group = found.settings["group"]
    return Group(
        Text.assemble((printable(found.model), "bold cyan"), "  ", (f"{found.policy}, group {group}", "bold")),
        Text(printable(f"evaluation text of {found.settings['text']}: {', '.join(amounts)}"), style="dim"),
        "",
        Text(_title(found), style="bold"),
        _table(found),
        Text(LEGEND, style="dim"),
        *section("Verdict", (Text(printable(each)) for each in found.verdict)),
        *notes_section(found.all_notes),
    )


def _title(found: Sweep) -> str:
    measure, unit = MEASURE_LABELS[found.measure].capitalize(), UNIT_LABELS[found.unit]
    return f"{measure} in {unit} by bits per weight; B* for {found.threshold:g}"


def _table(found: Sweep) -> Table:
    table = columns("", *map(str, found.bits), "B*")
    for code in sorted(found.widths, key=lambda code: -found.widths[code].value):
        values = (each.value for each in found.curves[code].values())
        table.add_row(code, *_numbers(values), found.widths[code].text(found.bits))
    table.add_row("gap", *_numbers(each.value for each in found.gaps.values()), found.gap_width.text(found.bits))
    table.add_row("MB", *(f"{size / MB:.1f}" for size in found.sizes.values()), "", style="dim")
    return table


def _numbers(values: Iterable[float]) -> list[str]:
    """Returns damages in six or seven characters each.

    >>> _numbers([12.3456, 0.00312, -0.0001])
    ['12.35', '0.0031', '-0.0001']
    """
    return [f"{value:.2f}" if abs(value) >= 10 else f"{value:.4f}" for value in values]
