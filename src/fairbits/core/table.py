"""Table: rows of a result, rendered for the terminal, as plain text, as HTML for a notebook, or as Markdown.

A cell is a string, or a list of strings and (string, style) pairs with the styles of rich, which only the terminal
shows. Characters that could control a terminal are escaped here, so cells may hold text from anywhere.
"""

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from fairbits.core.errors import InputError, printable

if TYPE_CHECKING:
    import pandas

Cell = str | list[str | tuple[str, str]]
ROWS = 12  # the most rows of a table as text; of a longer one the first rows are shown
STYLE = "border-collapse:collapse;font-variant-numeric:tabular-nums"
EIGHTHS = " ▏▎▍▌▋▊▉█"
BAR_LENGTH = 8  # characters
NOTES = "Notes"  # the title of a table of notes
SPECIAL = re.compile(r"[\\`*\[\]~$]|#|(?<![^\W_])_|_(?![^\W_])")  # but not an underscore within a word
FIRST = re.compile(r"^(\d{1,9})?([-+=.)])(?=[-=\s]|$)")  # make a list or a heading at the beginning of a line
LINK = re.compile(r"@(?=\w)|www(?=\.)|:(?=//)", re.IGNORECASE)  # renderers make links of plain addresses
WORD_JOINER = "&#8288;"  # invisible: some renderers look for addresses after resolving escapes and entities
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;"}


@dataclass(frozen=True)
class Table:
    """Rows under headers, with a title and lines `above` them and lines `below` them.

    The first column wraps and is aligned left. The others are aligned right, unless `left` names them, and wrap only if
    `wrap` names them. A line break in a header is for the terminal alone.
    """

    title: Cell
    headers: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    below: tuple[Cell, ...] = ()
    above: tuple[Cell, ...] = ()
    left: tuple[int, ...] = ()
    wrap: tuple[int, ...] = ()

    def terminal(self, *, indent: int = 0) -> Group:
        """Returns the table for rich; what is below the title is indented."""
        lines = [[rich_text(line or " ") for line in part] for part in (self.above, self.below)]
        parts: list[RenderableType] = [*lines[0], *([self._grid()] if self.rows else []), *lines[1]]
        title = [rich_text(self.title, style="bold")] if self.title else []
        return Group(*title, *(Padding.indent(part, indent) if indent else part for part in parts))

    def _grid(self) -> RichTable:
        grid = RichTable(
            box=None, pad_edge=False, show_header=bool(self.headers), header_style="bold", padding=(0, 1, 0, 0)
        )
        for i in range(len(self.rows[0])):
            header = Text(self.headers[i]) if self.headers else ""
            if i == 0 or i in self.wrap:
                grid.add_column(header, overflow="fold")
            else:
                grid.add_column(header, justify="left" if i in self.left else "right", no_wrap=True)
        for row in self.rows:
            grid.add_row(*map(rich_text, row))
        return grid

    def text(self) -> str:
        shown = self.rows if len(self.rows) <= ROWS else self.rows[: ROWS - 2]
        lines = [tuple(map(plain, row)) for row in shown]
        if self.headers:
            lines.insert(0, self._flat_headers())
        sizes = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))] if lines else []
        body = ["  ".join(map(self._aligned, range(len(sizes)), line, sizes)).rstrip() for line in lines]
        more = [f"… and {len(self.rows) - len(shown)} more"] if len(shown) < len(self.rows) else []
        around = [[plain(line) for line in part] for part in ((self.title, *self.above), self.below)]
        return "\n".join([*filter(None, around[0]), *body, *more, *around[1]])

    def html(self) -> str:
        headers = "".join(
            f'<th style="{self._cell_style(i)}">{_safe(text)}</th>' for i, text in enumerate(self._flat_headers())
        )
        rows = "".join(
            "<tr>"
            + "".join(f'<td style="{self._cell_style(i)}">{_safe(cell)}</td>' for i, cell in enumerate(row))
            + "</tr>"
            for row in self.rows
        )
        head = f"<thead><tr>{headers}</tr></thead>" if headers else ""
        body = f'<table style="{STYLE}">{head}<tbody>{rows}</tbody></table>' if rows else ""
        above, below = ("".join(f"<div>{_safe(line)}</div>" for line in lines) for lines in (self.above, self.below))
        title = f"<div><b>{_safe(self.title)}</b></div>" if self.title else ""
        return f"<div>{title}{above}{body}{below}</div>"

    def markdown(self) -> str:
        """Returns the table for a Markdown page: a bold title, a pipe table with all rows, a paragraph per line."""
        parts = [f"**{escape_markdown(plain(self.title).strip())}**"] if self.title else []
        parts += [escape_markdown(plain(line)) for line in self.above]
        if self.rows:
            width = len(self.rows[0])
            marks = [":--" if self._is_left(i) else "--:" for i in range(width)]
            lines = [self._flat_headers() or ("",) * width, *(tuple(map(plain, row)) for row in self.rows)]
            first, *rest = ("| " + " | ".join(map(escape_markdown, line)) + " |" for line in lines)
            parts.append("\n".join([first, f"|{'|'.join(marks)}|", *rest]))
        return "\n\n".join([*parts, *(escape_markdown(plain(line)) for line in self.below)])

    def _flat_headers(self) -> tuple[str, ...]:
        return tuple(" ".join(header.split()) for header in self.headers)

    def _is_left(self, column: int) -> bool:
        return column == 0 or column in (*self.left, *self.wrap)

    def _aligned(self, column: int, text: str, size: int) -> str:
        return text.ljust(size) if self._is_left(column) else text.rjust(size)

    def _cell_style(self, column: int) -> str:
        return f"text-align:{'left' if self._is_left(column) else 'right'};padding:0 .6em"


class Shown:
    """A result that shows tables of itself; dataclasses that inherit from it need `repr=False`."""

    def tables(self) -> list[Table]:
        """Returns the tables that show the result, the most important first."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.tables()[0].text()

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self.tables())


def render_tables(tables: Iterable[Table]) -> Group:
    """Returns tables for the terminal, with an empty line between them; all but the first are indented."""
    first, *rest = tables
    return Group(first.terminal(), *(part for table in rest for part in ("", table.terminal(indent=2))))


def notes_table(notes: Iterable[str], title: str = NOTES) -> list[Table]:
    """Returns a table without rows that shows the notes; none if there are no notes."""
    lines: list[Cell] = list(notes)
    return [Table(title, below=tuple(lines))] if lines else []


def rich_text(cell: Cell, *, style: str = "") -> Text:
    """Returns a cell for rich; `style` is for a cell that has none."""
    if isinstance(cell, str):
        return Text(printable(cell), style=style)
    parts = ((part, "") if isinstance(part, str) else part for part in cell)
    return Text.assemble(*((printable(text), part_style) for text, part_style in parts))


def plain(cell: Cell) -> str:
    """Returns a cell without styles."""
    if isinstance(cell, str):
        return printable(cell)
    return printable("".join(part if isinstance(part, str) else part[0] for part in cell))


def dim(text: str) -> Cell:
    """Returns a cell of less importance."""
    return [(text, "dim")]


def bar(value: float, top: float) -> Cell:
    """Returns a bar whose length is proportional to the value: BAR_LENGTH characters at `top`, none for 0 or less."""
    eighths = round(8 * BAR_LENGTH * max(value / top, 0.0)) if top > 0 else 0
    return [((EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip().ljust(BAR_LENGTH), "red")]


class HasInterval(Protocol):
    """An estimate with its interval."""

    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def bounded(self) -> bool: ...


class NumberFormat:
    """How the numbers of a column are written: in one unit and with the same decimals.

    The largest number, `top`, has about `digits` digits, and limits of intervals one fewer. `prefix` belongs before the
    name of the unit: numbers below 0.01 are written in thousandths or millionths, unless a `factor` is set.
    """

    def __init__(
        self, top: float, digits: int = 4, *, factor: float | None = None, decimals: int | None = None
    ) -> None:
        self.factor, self.prefix = short_unit(top) if factor is None else (factor, "")
        self._decimals, self._fewer = (
            _decimals(top * self.factor, n) if decimals is None else decimals for n in (digits, digits - 1)
        )

    def __call__(self, value: float) -> str:
        return f"{value * self.factor:.{self._decimals}f}"

    def limits(self, estimate: HasInterval) -> str:
        """Returns the interval of an estimate in parentheses; a dash if it has none."""
        if not estimate.bounded:
            return "(–)"
        return f"({span(*(f'{end * self.factor:.{self._fewer}f}' for end in (estimate.low, estimate.high)))})"

    def estimate(self, estimate: HasInterval, after: str = "") -> list[str | tuple[str, str]]:
        """Returns a cell with an estimate, its interval, and what follows it."""
        return [self(estimate.value), (f" {self.limits(estimate)}", "dim"), after]


def _decimals(top: float, digits: int) -> int:
    before = math.floor(math.log10(top)) + 1 if top > 0 else 1
    return min(max(digits - before, 0), digits)


def short_unit(top: float) -> tuple[float, str]:
    """Returns a factor that makes numbers up to `top` short, and the prefix of their unit."""
    for factor, prefix in ((1.0, ""), (1e3, "10⁻³ "), (1e6, "10⁻⁶ ")):
        if top * factor >= 0.01:
            return factor, prefix
    return 1.0, ""


def span(low: str, high: str) -> str:
    """Returns both limits of an interval, 0.01–0.02; "-0.01 to 0.02" where a minus sign would read as a dash."""
    low, high = (limit if float(limit) else limit.lstrip("-") for limit in (low, high))
    return f"{low} to {high}" if "-" in low + high else f"{low}–{high}"


def number(value: float) -> str:
    """Returns a number with four decimals, or three significant digits if it is smaller; "–" if there is none."""
    if value != value:
        return "–"
    return f"{value:.4f}" if value == 0 or abs(value) >= 0.001 else f"{value:.3g}"


def data_frame(columns: Mapping[str, Sequence[Any]], *, index: str | None = None) -> "pandas.DataFrame":
    """Returns a pandas DataFrame; `index` is the column that becomes its index."""
    try:
        import pandas
    except ImportError:
        raise InputError("pandas is not installed, which to_pandas() needs; install it: pip install pandas") from None
    frame = pandas.DataFrame(dict(columns))
    return frame if index is None else frame.set_index(index)


def escape_markdown(text: str) -> str:
    """Returns text on one line that Markdown and HTML show as it is, without links."""
    line = SPECIAL.sub(lambda match: "\\" + match[0], printable(text.strip()))
    line = FIRST.sub(lambda match: f"{match[1] or ''}\\{match[2]}", line)
    line = re.sub("[&<>|]", lambda match: ENTITIES[match[0]], line)
    return LINK.sub(lambda match: match[0] + WORD_JOINER, line)


def _safe(cell: Cell) -> str:
    return html.escape(plain(cell))
