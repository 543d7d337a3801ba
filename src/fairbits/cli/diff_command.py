"""The command `diff` on the command line."""

import math
from typing import TYPE_CHECKING, Annotated

from fairbits.cli import completion, early_checks, options
from fairbits.cli.terminal import print_json, print_tables, stages
from fairbits.core.table import Cell, Table, bar

if TYPE_CHECKING:
    from fairbits.kurtosis.diff import ModelDiff


def diff(
    a: options.Model,
    b: Annotated[str, options.argument("The model to compare with.", "OTHER", completion.model)],
    trust_remote_code: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Show two models side by side: architecture and weights.

    Examples:
      fairbits diff embedded:tiny "embedded:tiny?outliers=3:125"
      fairbits diff ./model ./other --json
    """
    early_checks.check(locals())
    from fairbits.kurtosis.diff import diff as run_diff
    from fairbits.models.checkpoint import Checkpoint

    opened = [Checkpoint(model, trust_remote_code=trust_remote_code) for model in (a, b)]
    both = [checkpoint.plain or checkpoint for checkpoint in opened]
    with stages("reading weights") as show:
        comparison = run_diff(*both, progress=show)
    print_json(comparison.as_data()) if as_json else print_tables(diff_tables(comparison))


def diff_tables(comparison: "ModelDiff") -> list[Table]:
    """Returns the traits (≠ where they differ) with the notes, and the blocks of both models."""
    from fairbits.kurtosis.diff import differ, format_trait

    sides = {"a": comparison.a, "b": comparison.b}
    names: list[Cell] = [[(f"{name}  ", "bold cyan"), (side.target, "bold")] for name, side in sides.items()]
    notes = (*(f"{name}: {note}" for name, side in sides.items() for note in side.notes), *comparison.notes)
    shown: list[Cell] = [[("note: ", "yellow"), note] for note in notes]
    rows: list[tuple[Cell, ...]] = []
    for (name, one), (_, two) in zip(comparison.a.traits.items(), comparison.b.traits.items(), strict=True):
        values = one, two
        style = "yellow" if differ(*values) else ""
        cells = ("≠" if style else "", name, *map(format_trait, values))
        rows.append(tuple([(cell, style)] for cell in cells))
    traits = Table("", ("", "trait", "a", "b"), tuple(rows), above=(*names, *shown, ""), left=(1,), wrap=(2, 3))
    return [traits, _block_table(comparison)]


def _block_table(comparison: "ModelDiff") -> Table:
    """Returns σ, max|w|/σ and κ of every pair of blocks, κ also as bars of length ∝ log(1 + κ)."""
    top = max(*comparison.a.kappa, *comparison.b.kappa)
    rows: list[tuple[Cell, ...]] = []
    for i, j in comparison.pairs:
        both = (comparison.a.blocks[i], comparison.b.blocks[j])
        rows.append(
            (
                str(i),
                str(j),
                *(f"{block.sigma:.4f}" for block in both),
                *(f"{block.largest / block.sigma:.1f}" if block.sigma else "–" for block in both),
                *(f"{block.kappa:.2f}" for block in both),
                *(log_bar(block.kappa, top) for block in both),
            )
        )
    headers = ("a", "b", "σ a", "σ b", "max|w|/σ a", "b", "κ a", "κ b", "log(1+κ) a", "b")
    worst = tuple(
        f"{name}  max κ {side.kappa[side.worst]:.2f} in block {side.worst} of {len(side.blocks)}"
        for name, side in (("a", comparison.a), ("b", comparison.b))
    )
    return Table("Blocks", headers, tuple(rows), ("", *worst), left=(8, 9))


def log_bar(kappa: float, top: float) -> Cell:
    """Returns a bar whose length is proportional to log(1 + κ), full at `top`; nothing for κ ≤ 0."""
    return bar(math.log1p(kappa), math.log1p(top)) if kappa > 0 and top > 0 else ""
