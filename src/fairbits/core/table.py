"""Tables: what a result shows of itself in place of a dump of its arrays."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairbits.core.errors import InputError, printable

if TYPE_CHECKING:
    import pandas

ROWS = 12
"""The most rows in a terminal; of a longer table the first ones are shown."""
STYLE = "border-collapse:collapse;font-variant-numeric:tabular-nums"


@dataclass(frozen=True)
class Table:
    """Rows of text under headers: a line above them that says what they are, and lines below."""

    title: str
    headers: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    below: tuple[str, ...] = ()

    def text(self) -> str:
        """Returns the table for a terminal: the first column is aligned left, the others right.

        >>> print(Table("damage", ("language", "value"), (("heb", "0.09"), ("deu", "0.03"))).text())
        damage
        language  value
        heb        0.09
        deu        0.03
        """
        shown = self.rows if len(self.rows) <= ROWS else self.rows[: ROWS - 2]
        lines = [self.headers, *shown] if self.headers else list(shown)
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))] if lines else []
        body = ["  ".join(_aligned(line, widths)).rstrip() for line in lines]
        more = [f"… and {len(self.rows) - len(shown)} more"] if len(shown) < len(self.rows) else []
        return "\n".join(printable(line) for line in (self.title, *body, *more, *self.below))

    def html(self) -> str:
        """Returns the table for a notebook, with all rows."""
        heads = "".join(f'<th style="{_cell(i)}">{_safe(each)}</th>' for i, each in enumerate(self.headers))
        rows = "".join(
            "<tr>" + "".join(f'<td style="{_cell(i)}">{_safe(each)}</td>' for i, each in enumerate(row)) + "</tr>"
            for row in self.rows
        )
        head = f"<thead><tr>{heads}</tr></thead>" if heads else ""
        below = "".join(f"<div>{_safe(each)}</div>" for each in self.below)
        body = f'<table style="{STYLE}">{head}<tbody>{rows}</tbody></table>' if rows else ""
        return f"<div><div>{_safe(self.title)}</div>{body}{below}</div>"


class Shown:
    """A result that shows a short table of itself; dataclasses that inherit from it need `repr=False`."""

    def _table(self) -> Table:
        raise NotImplementedError

    def __repr__(self) -> str:
        """Returns the table as text."""
        return self._table().text()

    def _repr_html_(self) -> str:
        """Returns the table for a notebook."""
        return self._table().html()


def number(value: float) -> str:
    """Returns a number with four decimals, or three significant digits if it is smaller; "–" if there is none.

    >>> number(0.01234), number(0.00001234), number(float("nan"))
    ('0.0123', '1.23e-05', '–')
    """
    if value != value:
        return "–"
    return f"{value:.4f}" if value == 0 or abs(value) >= 0.001 else f"{value:.3g}"


def data_frame(columns: Mapping[str, Sequence[Any]], *, index: str | None = None) -> "pandas.DataFrame":
    """Returns a pandas DataFrame; `index` is the column that becomes its index."""
    try:
        import pandas
    except ImportError:
        raise InputError("pandas is not installed, which to_pandas() needs; install it: pip install pandas") from None
    found = pandas.DataFrame(dict(columns))
    return found if index is None else found.set_index(index)


def _aligned(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    pairs = list(zip(line, widths, strict=True))
    return [text.ljust(width) if i == 0 else text.rjust(width) for i, (text, width) in enumerate(pairs)]


def _cell(column: int) -> str:
    return f"text-align:{'left' if column == 0 else 'right'};padding:0 .6em"


def _safe(text: str) -> str:
    return html.escape(printable(text))
