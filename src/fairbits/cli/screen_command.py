"""The command `screen` on the command line."""

from typing import TYPE_CHECKING, Annotated

import typer

from fairbits.cli import completion, options
from fairbits.cli.terminal import print_json, print_tables, stages
from fairbits.core.checks import whole
from fairbits.core.table import Cell, Table
from fairbits.text.reading import open_corpus

if TYPE_CHECKING:
    from fairbits.api.screen import Row, Screening


def screen(
    models: Annotated[
        list[str],
        options.argument(
            "Directories, .gguf files, model ids on the Hub (ID or ID@REVISION), or embedded:tiny.",
            "MODEL",
            completion.model,
        ),
    ],
    languages: Annotated[
        str | None, options.option("Also measure C2 and D̂, in these languages.", "CODES", completion.languages)
    ] = None,
    text: Annotated[
        str | None, options.option("Also measure C2 and D̂, on this text.", "PATH|NAME", completion.text)
    ] = None,
    bits: options.Bits = 4,
    outlier_kappa: options.OutlierKappa = None,
    trust_remote_code: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Compare models by the outliers in their weights.

    It shows one row for each model: outlier blocks, the risk class of the research notes, and the predicted damage.

    Examples:
      fairbits screen embedded:tiny "embedded:tiny?outliers=3:125"
      fairbits screen ./model ./other --languages eng,fra,heb --outlier-kappa 5
    """
    names = options.language_names(languages)
    whole("bits", bits, least=2, most=8)
    corpus = None if names is None and text is None else open_corpus(text, names)
    from fairbits.api.screen import screen as run_screen

    with stages("opening the models") as show:
        screening = run_screen(
            models,
            corpus=corpus,
            bits=bits,
            outlier_kappa=outlier_kappa,
            trust_remote_code=trust_remote_code,
            progress=show,
        )
    print_json(screening.as_data()) if as_json else print_tables([screen_table(screening)])
    if not screening.complete:
        raise typer.Exit(2)


def screen_table(screening: "Screening") -> Table:
    """Returns one row per model, and below them notes and errors."""
    from fairbits.api.screen import CAVEAT, R_CAVEAT

    headers = ("model", "blocks", "max κ", "in", "tensor κ", "publ.", "outliers", "C1", "C2", "class")
    remarks = (CAVEAT, R_CAVEAT) if screening.with_r else (CAVEAT,)
    below: list[Cell] = [[("note: ", "yellow"), note] for note in (*_notes(screening), *remarks)]
    below += [
        [("error: ", "bold red"), f"{row.target}: {row.problem}"] for row in screening.rows if row.problem is not None
    ]
    more = (*(["D̂"] if screening.with_text else []), *(["r(R̂, D̂)"] if screening.with_r else []))
    return Table(
        "",
        (*headers, *more),
        tuple(_cells(row, len(more)) for row in screening.rows),
        ("", *below),
        left=(7, 8),
        wrap=(6, 9, 10, 11),
    )


def _cells(row: "Row", n_from_text: int) -> tuple[str, ...]:
    weights, view = row.weights, row.view
    if weights is None or view is None:
        return (row.target, *["–"] * (9 + n_from_text))
    marks = {condition.name: {True: "✓", False: "✗", None: "–"}[condition.holds] for condition in view.conditions}
    damage = [] if row.text is None else list(row.text.damage.values())
    blocks, r = view.outliers.blocks, row.text and row.text.r
    from_text = (
        f"{min(damage):.2g} to {max(damage):.2g}" if damage else "–",
        f"{r.value:.2f} ({r.low:.2f} to {r.high:.2f})" if r else "–",
    )
    return (
        row.target,
        str(len(weights.kappa)),
        f"{view.max_kappa:.1f}",
        str(view.block),
        f"{weights.tensor_kappa:.1f}",
        "–" if weights.published is None else f"{weights.published.kappa:g}",
        "–" if blocks is None else " ".join(map(str, blocks)) or "none",
        marks["C1"],
        marks["C2"],
        view.risk,
        *from_text[:n_from_text],
    )


def _notes(screening: "Screening") -> list[str]:
    rows = [(row.target, row.weights) for row in screening.rows if row.weights is not None]
    notes = [f"{target}: the tensor with the largest κ is {weights.tensor}" for target, weights in rows]
    notes += [f"{target}: {note}" for target, weights in rows for note in weights.notes]
    notes += [
        f"{target}: published κ of {weights.published.name}, the origin that its config.json states"
        for target, weights in rows
        if weights.published is not None and weights.published.by_origin
    ]
    return list(dict.fromkeys(notes))
