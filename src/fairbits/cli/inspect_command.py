"""The verb `inspect` on the command line.

An inspected model for a terminal of 80 columns: one row per block, or per tensor.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fairbits.api.inspect import Inspection
from fairbits.cli.options import Json, Model, Revision, Trust, flag
from fairbits.cli.terminal import out, print_json, stages
from fairbits.core.errors import printable
from fairbits.core.units import megabytes
from fairbits.models.weight_moments import ModelMoments, WeightMoments


def inspect(
    model: Model,
    tensors: Annotated[bool, flag("--tensors", help="One row per tensor instead of one per block.")] = False,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Show a model's blocks and the moments of their weights; the model is not run.

    Examples:
      fairbits inspect embedded:tiny
      fairbits inspect ./model --tensors
      fairbits inspect "embedded:tiny?outliers=5:125" --json
    """
    from fairbits.api.inspect import inspect as run_inspect
    from fairbits.models.hub_checkpoint import open_to_read  # heavy: only when the verb runs

    with stages("opening the model") as show:
        checkpoint = open_to_read(model, trust_remote_code=trust_remote_code, revision=revision)
        found = run_inspect(checkpoint, progress=show)
    if as_json:
        print_json(found.as_data())
    else:
        out.print(inspect_table(found, tensors=tensors))


NAMED = 3
"""Tensors that a note names."""


def inspect_table(found: Inspection, *, tensors: bool = False) -> Group:
    """Returns a heading, the notes, and one row per block (or per tensor) with the moments of its weights."""
    checkpoint, moments, architecture = found.checkpoint, found.moments, found.checkpoint.architecture
    n = sum(info.numel for info in checkpoint.tensors.values())
    size = sum(info.nbytes for info in checkpoint.tensors.values())
    facts = [architecture.class_name, f"{architecture.n_blocks} blocks", f"{n:,} weights", megabytes(size)]
    facts += [f"{name} tied" for name in architecture.tied]
    heading = Text.assemble((printable(checkpoint.target), "bold"), "  ", printable(", ".join(facts)))
    left_out = [*_by_reason("not used", architecture.ignored), *_by_reason("without moments", moments.skipped)]
    notes = [Text.assemble(("note: ", "yellow"), printable(note)) for note in (*checkpoint.notes, *left_out)]
    return Group(heading, *notes, "", _tensor_table(moments) if tensors else _block_table(found))


def _by_reason(what: str, reasons: Mapping[str, str]) -> list[str]:
    """Returns one note per reason, with the first of the tensors it holds for."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return [
        f"{what}: {', '.join(each[:NAMED])}{f' and {len(each) - NAMED} more' * (len(each) > NAMED)}; {reason}"
        for reason, each in names.items()
    ]


def _block_table(found: Inspection) -> Table:
    blocks, moments = found.checkpoint.architecture.blocks, found.moments
    stacks = len({block.stack for block in blocks}) > 1
    names = (f"{block.stack} {block.index}" if stacks else f"block {block.index}" for block in blocks)
    outside = [
        (weight.role, moments.tensors[name])
        for name, weight in found.checkpoint.architecture.weights.items()
        if weight.block is None and len(weight.shape) == 2 and name in moments.tensors
    ]
    return _moments_table("linear weights of", [*zip(names, moments.blocks, strict=True), *outside])


def _tensor_table(moments: ModelMoments) -> Table:
    return _moments_table("tensor", moments.tensors.items())


def _moments_table(first: str, rows: Iterable[tuple[str, WeightMoments]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, overflow="fold")
    for name in ("weights", "σ", "κ", "skew", "max|w|/σ", "> 3σ", "> 6σ"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, each in rows:
        extreme = f"{each.largest / each.sigma:.1f}" if each.sigma else "–"
        shares = (f"{each.beyond_3:.2%}", f"{each.beyond_6:.4%}")
        table.add_row(
            Text(printable(name)),  # as it is: no markup, no emoji
            f"{each.n:,}",
            f"{each.sigma:.4g}",
            f"{each.kappa:.2f}",
            f"{each.skewness:.2f}",
            extreme,
            *shares,
        )
    return table
