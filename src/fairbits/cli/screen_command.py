"""The verb `screen` on the command line.

Screened models for a terminal of 80 columns, one row each.
"""

from typing import Annotated

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fairbits.api.screen import CAVEAT, Row, Screening
from fairbits.cli import completion
from fairbits.cli.options import Bits, Json, Trust
from fairbits.cli.parsing import names_of
from fairbits.cli.terminal import out, print_json, print_notes, stages
from fairbits.core.errors import printable


def screen(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Directories, .gguf files, model ids on the Hub (ID or ID@REVISION), or embedded:tiny.",
            metavar="MODEL",
            autocompletion=completion.model,
        ),
    ],
    languages: Annotated[
        str | None,
        typer.Option(
            help="Also measure C2 and D̂, in these languages.",
            metavar="CODES",
            autocompletion=completion.languages,
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(help="Also measure C2 and D̂, on this text.", metavar="PATH|NAME", autocompletion=completion.text),
    ] = None,
    bits: Bits = 4,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Compare models, one row each: outlier blocks, risk class of the research notes, and predicted damage.

    Examples:
      fairbits screen embedded:tiny "embedded:tiny?outliers=3:125"
      fairbits screen ./model ./other --languages eng,heb
    """
    from fairbits.api.screen import screen as run_screen
    from fairbits.cli.languages_command import language_notes  # heavy: only when the verb runs
    from fairbits.text.reading import open_corpus

    names = names_of(languages)
    print_notes(language_notes(names or ()))
    corpus = None if names is None and text is None else open_corpus(text, names)
    with stages("opening the models") as show:
        found = run_screen(models, corpus=corpus, bits=bits, trust_remote_code=trust_remote_code, progress=show)
    if as_json:
        print_json(found.as_data())
    else:
        out.print(screen_table(found))
    if not found.complete:
        raise typer.Exit(2)


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
