"""Experiments in the terminal: a list of all with their results, or one result with its tables."""

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbits.errors import printable
from fairbits.science.experiments.result import Answer, Result, cell_text
from fairbits.science.experiments.result import Table as ResultTable
from fairbits.science.experiments.stored_results import MARKS, Records, overall_answer

STYLES = {Answer.SUPPORTED: "green", Answer.NOT_SUPPORTED: "red", Answer.UNDECIDED: "cyan"}


def experiment_list(experiments: Mapping[str, str], records: Records) -> Group:
    """Returns the question of each experiment (name -> question), and its answer so far."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("experiment", "question", "found"):
        table.add_column(column)
    for name, question in experiments.items():
        found = Text("not run yet", style="dim")
        if name in records:
            answer = overall_answer(records[name])
            found = Text(f"{MARKS[answer]} {answer.value}", style=STYLES[answer])
        table.add_row(name, question, found)
    return Group(table, Text("\nfairbits research NAME runs one; fairbits research all runs all", style="dim"))


def result_panel(result: Result) -> Group:
    """Returns one result: question, prediction, tables, verdict, what it means."""
    own = result.subject
    tested_on = (
        f"{own.model}, {own.text}: {own.languages} languages, {own.documents:,} documents, {own.tokens:,} tokens, "
        f"seeds {', '.join(map(str, own.seeds))}; intervals 95 %"
    )
    verdict = f"\n{MARKS[result.answer]} {result.answer.value}: {result.verdict}"
    parts: list[RenderableType] = [
        Text(result.question, style="bold"),
        Text(f"predicted: {result.predicted}"),
        Text(f"design: {result.design}", style="dim"),
        Text(printable(tested_on), style="dim"),
        *(part for table in result.tables for part in (Text(), _table(table))),
        Text(verdict, style=STYLES[result.answer]),
        Text(result.meaning),
    ]
    parts += [Text(line, style="dim") for line in (result.power, *result.notes) if line]
    return Group(*parts)


def _table(table: ResultTable) -> Table:
    found = Table(box=None, pad_edge=False, header_style="bold", title=table.title, title_justify="left")
    for i, column in enumerate(table.columns):
        found.add_column(column, justify="left" if i == 0 else "right")
    for row in table.rows:
        found.add_row(*map(cell_text, row))
    return found
