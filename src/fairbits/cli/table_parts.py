"""Parts that all tables share: columns, sections, bars, and numbers that are short and aligned."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fairbits.core.errors import printable
from fairbits.stats.intervals import Estimate
from fairbits.text.language_codes import language_from_code

BLANK = Text(" ")
EIGHTHS = " ▏▎▍▌▋▊▉█"
BAR_LENGTH = 8  # characters


class HasValue(Protocol):
    """Anything with a value to sort by, such as an estimate."""

    @property
    def value(self) -> float:
        """The value."""


def section(title: str, parts: Iterable[RenderableType]) -> list[RenderableType]:
    """Returns the parts below a title; nothing if there are none."""
    indented = [Padding.indent(part, 2) for part in parts]
    return ["", Text(title, style="bold"), *indented] if indented else []


def notes_section(notes: Iterable[str]) -> list[RenderableType]:
    """Returns the section with the notes, one line each; nothing if there are none."""
    return section("Notes", (Text(printable(note)) for note in notes))


def columns(*headers: str, left: tuple[int, ...] = (), header: bool = True) -> Table:
    """Returns an empty table: the first column wraps; the others are aligned right, or left where `left` names them."""
    table = Table(box=None, pad_edge=False, show_header=header, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column(headers[0], overflow="fold")
    for i, each in enumerate(headers[1:], start=1):
        table.add_column(each, justify="left" if i in left else "right", no_wrap=True)
    return table


def language_name(code: str) -> str:
    """Returns the short name of a language; its code, which stands next to it, shows the script and the variety.

    >>> language_name("zho_Hans"), language_name("arb_Arab")
    ('Chinese', 'Arabic')
    """
    return language_from_code(code).name.partition(" (")[0].removeprefix("Standard ")


def worst_first(damage: Mapping[str, HasValue]) -> list[str]:
    """Returns the codes by their damage, the largest first; ties keep their order."""
    return sorted(damage, key=lambda code: -damage[code].value)


def bar_text(share: float) -> str:
    """Returns a bar that fills this share of BAR_LENGTH characters; nothing for a share of 0 or less.

    >>> bar_text(0.5), bar_text(-1.0)
    ('████', '')
    """
    eighths = round(8 * BAR_LENGTH * max(share, 0.0))
    return (EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


def bar(value: float, top: float) -> Text:
    """Returns a bar whose length is proportional to the value: BAR_LENGTH characters at `top`.

    >>> bar(1.5, 3.0).plain
    '████    '
    """
    return Text(bar_text(value / top if top > 0 else 0.0).ljust(BAR_LENGTH), style="red")


def log_bar(kappa: float, top: float) -> str:
    """Returns a bar whose length is proportional to log(1 + κ): BAR_LENGTH characters at `top`, nothing for κ ≤ 0.

    >>> log_bar(9.0, 99.0)
    '████'
    """
    return bar_text(math.log1p(kappa) / math.log1p(top)) if kappa > 0 and top > 0 else ""


def unit_of(top: float) -> tuple[float, str]:
    """Returns a factor that makes numbers up to `top` short, and the prefix of their unit.

    >>> unit_of(0.0004)
    (1000.0, '10⁻³ ')
    """
    for factor, prefix in ((1.0, ""), (1e3, "10⁻³ "), (1e6, "10⁻⁶ ")):
        if top * factor >= 0.01:
            return factor, prefix
    return 1.0, ""


def formatter(top: float, digits: int = 4) -> Callable[[float], str]:
    """Returns a function that writes numbers up to `top` with the same decimals; `top` has about `digits` digits.

    >>> formatter(0.0731)(0.0123), formatter(12.5)(0.0123)
    ('0.0123', '0.01')
    """
    before = math.floor(math.log10(top)) + 1 if top > 0 else 1
    decimals = min(max(digits - before, 0), digits)
    return lambda number: f"{number:.{decimals}f}"


def interval_text(found: Estimate, *, factor: float, limit: Callable[[float], str]) -> str:
    """Returns the interval of an estimate in parentheses; a dash if it has none.

    >>> interval_text(Estimate(0.2, 0.1, 0.3, 9), factor=10, limit="{:.0f}".format)
    '(1–3)'
    >>> interval_text(Estimate.without_interval(0.2, 1), factor=10, limit="{:.0f}".format)
    '(–)'
    """
    return f"({span(limit(found.low * factor), limit(found.high * factor))})" if found.bounded else "(–)"


def span(low: str, high: str) -> str:
    """Returns both limits of an interval; with "to" between them where a minus sign would read as a dash.

    >>> span("0.01", "0.02"), span("-0.00", "0.02"), span("-0.01", "0.02")
    ('0.01–0.02', '0.00–0.02', '-0.01 to 0.02')
    """
    low, high = (each if float(each) else each.lstrip("-") for each in (low, high))
    return f"{low} to {high}" if "-" in low + high else f"{low}–{high}"
