"""Results in the terminal: one with its tables, or a list of all."""

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from fairbits.errors import printable
from fairbits.science.experiments.records import Records, overall
from fairbits.science.experiments.result import Answer, Cell, Result, Table, brief

STYLES = {Answer.SUPPORTED: ("✓", "green"), Answer.NOT_SUPPORTED: ("✗", "red"), Answer.UNDECIDED: ("?", "cyan")}


def as_panel(result: Result) -> RenderableType:
    """Returns one result: question, prediction, tables, verdict, what it means."""
    mark, style = STYLES[result.answer]
    own = result.subject
    where = (
        f"{own.model}, {own.text}: {own.languages} languages, {own.documents:,} documents, {own.tokens:,} tokens, "
        f"seeds {', '.join(map(str, own.seeds))}; intervals 95 %"
    )
    parts: list[RenderableType] = [
        Text(result.question, style="bold"),
        Text(f"predicted: {result.predicted}"),
        Text(f"design: {result.design}", style="dim"),
        Text(printable(where), style="dim"),
        *(part for table in result.tables for part in (Text(), as_table(table))),
        Text(f"\n{mark} {result.answer.value}: {result.verdict}", style=style),
        Text(result.meaning),
    ]
    parts += [Text(line, style="dim") for line in (result.power, *result.notes) if line]
    return Group(*parts)


def as_table(table: Table) -> RichTable:
    """Returns a table of a result."""
    found = RichTable(box=None, pad_edge=False, header_style="bold", title=table.title, title_justify="left")
    for i, column in enumerate(table.columns):
        found.add_column(column, justify="left" if i == 0 else "right")
    for row in table.rows:
        found.add_row(*map(shown, row))
    return found


def as_list(experiments: Mapping[str, str], records: Records) -> RenderableType:
    """Returns what each experiment asks, and what it has found."""
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    for column in ("experiment", "question", "found"):
        table.add_column(column)
    for name, question in experiments.items():
        if name in records:
            mark, style = STYLES[overall(records[name])]
            found = Text(f"{mark} {overall(records[name]).value}", style=style)
        else:
            found = Text("not run yet", style="dim")
        table.add_row(name, question, found)
    return Group(table, Text("\nfairbits research NAME runs one; all runs every one", style="dim"))


def shown(cell: Cell) -> str:
    """Returns a cell as text.

    >>> shown(0.03214), shown(3), shown("eng_Latn")
    ('0.0321', '3', 'eng_Latn')
    """
    return brief(cell) if isinstance(cell, float) else str(cell)
