"""The verb `diff` on the command line.

Two models side by side, for a terminal of 80 columns.
"""

from typing import Annotated

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fairbits.cli import completion
from fairbits.cli.options import Json, Model, Trust
from fairbits.cli.table_parts import log_bar
from fairbits.cli.terminal import out, print_json, stages
from fairbits.core.errors import printable
from fairbits.kurtosis.diff import ModelDiff, differ, format_trait


def diff(
    a: Model,
    b: Annotated[str, typer.Argument(help="The other model.", metavar="OTHER", autocompletion=completion.model)],
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Show two models side by side: their architecture and the weights of their blocks.

    Examples:
      fairbits diff embedded:tiny "embedded:tiny?outliers=3:125"
      fairbits diff ./model ./other --json
    """
    from fairbits.kurtosis.diff import diff as run_diff
    from fairbits.models.checkpoint import Checkpoint  # heavy: only when the verb runs

    both = [Checkpoint(model, trust_remote_code=trust_remote_code) for model in (a, b)]
    with stages("reading weights") as show:
        found = run_diff(*both, progress=show)
    if as_json:
        print_json(found.as_data())
    else:
        out.print(diff_table(found))


def diff_table(found: ModelDiff) -> Group:
    """Returns the notes, the traits (≠ where they differ) and the blocks of both models."""
    sides = {"a": found.a, "b": found.b}
    heading = [
        Text.assemble((f"{name}  ", "bold cyan"), (printable(side.target), "bold")) for name, side in sides.items()
    ]
    own = [f"{name}: {note}" for name, side in sides.items() for note in side.notes]
    notes = [Text.assemble(("note: ", "yellow"), printable(note)) for note in (*own, *found.notes)]
    worst = [
        Text(f"{name}  max κ {side.kappa[side.worst]:.2f} in block {side.worst} of {len(side.blocks)}")
        for name, side in sides.items()
    ]
    return Group(*heading, *notes, "", _trait_table(found), "", _block_table(found), "", *worst)


def _trait_table(found: ModelDiff) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "trait", "a", "b"):
        table.add_column(name, overflow="fold")
    for (name, one), (_, other) in zip(found.a.traits.items(), found.b.traits.items(), strict=True):
        mark, style = ("≠", "yellow") if differ(one, other) else ("", "")
        table.add_row(mark, name, *(Text(printable(format_trait(value))) for value in (one, other)), style=style)
    return table


def _block_table(found: ModelDiff) -> Table:
    """Returns σ, max|w|/σ and κ of every pair of blocks, κ also as bars of length ∝ log(1 + κ)."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("a", "b", "σ a", "σ b", "max|w|/σ a", "b", "κ a", "κ b"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("log(1+κ) a", "b"):
        table.add_column(name, no_wrap=True)
    top = max(*found.a.kappa, *found.b.kappa)
    for i, j in found.pairs:
        both = (found.a.blocks[i], found.b.blocks[j])
        table.add_row(
            str(i),
            str(j),
            *(f"{block.sigma:.4f}" for block in both),
            *(f"{block.largest / block.sigma:.1f}" if block.sigma else "–" for block in both),
            *(f"{block.kappa:.2f}" for block in both),
            *(log_bar(block.kappa, top) for block in both),
        )
    return table
