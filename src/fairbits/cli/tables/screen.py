"""Screened models for a terminal of 80 columns, one row each."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fairbits.errors import printable
from fairbits.verbs.screen import CAVEAT, Row, Screening


def screen_table(found: Screening) -> Group:
    """Returns one row per model, and below them notes and errors."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("model", overflow="fold")
    for name in ("blocks", "max κ", "in", "tensor κ", "publ."):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("outliers", overflow="fold")
    for name in ("C1", "C2"):
        table.add_column(name, justify="center", no_wrap=True)
    for name in ("class", "D̂") if found.with_text else ("class",):
        table.add_column(name, no_wrap=True)
    for row in found.rows:
        table.add_row(*_cells(row, with_text=found.with_text))
    notes = [Text.assemble(("note: ", "yellow"), printable(note)) for note in (*_notes(found), CAVEAT)]
    problems = [
        Text.assemble(("error: ", "bold red"), printable(f"{row.target}: {row.problem}"))
        for row in found.rows
        if row.problem is not None
    ]
    return Group(table, "", *notes, *problems)


def _cells(row: Row, *, with_text: bool) -> list[str | Text]:
    w, view = row.weights, row.view
    if w is None or view is None:
        return [Text(printable(row.target)), *["–"] * (9 + with_text)]
    marks = {condition.name: {True: "✓", False: "✗", None: "–"}[condition.holds] for condition in view.conditions}
    damage = [] if row.text is None else list(row.text.damage.values())
    return [
        Text(printable(row.target)),
        str(len(w.kappa)),
        f"{view.max_kappa:.1f}",
        str(view.block),
        f"{w.tensor_kappa:.1f}",
        "–" if w.published is None else f"{w.published.kappa:g}",
        "–" if w.robust.blocks is None else " ".join(map(str, w.robust.blocks)) or "none",
        marks["C1"],
        marks["C2"],
        view.risk.replace("-", "-\n"),
        *([f"{min(damage):.2g} to\n{max(damage):.2g}" if damage else "–"] if with_text else []),
    ]


def _notes(found: Screening) -> list[str]:
    rows = [(row.target, row.weights) for row in found.rows if row.weights is not None]
    notes = [f"{target}: the largest tensor κ is that of {w.tensor}" for target, w in rows]
    notes += [f"{target}: {note}" for target, w in rows for note in w.notes]
    origins = [(target, w.published) for target, w in rows if w.published is not None and w.published.by_origin]
    notes += [f"{target}: published κ of {one.name}, the origin that its config.json states" for target, one in origins]
    return list(dict.fromkeys(notes))
