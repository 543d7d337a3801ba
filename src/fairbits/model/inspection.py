"""A model at a glance: its blocks, its tensors and the moments of their weights, as data and as a terminal table."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fairbits.errors import printable
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.moments import ModelMoments, WeightMoments
from fairbits.units import megabytes
from fairbits.version import __version__

SCHEMA = "fairbits.inspection/1"
SHOWN = 3  # tensors named in a note


def inspection_data(checkpoint: Checkpoint, moments: ModelMoments) -> dict[str, Any]:
    """Returns everything that is known of a model without running it, for JSON."""
    architecture = checkpoint.architecture
    return {
        "schema": SCHEMA,
        "fairbits": __version__,
        "target": checkpoint.target,
        "fingerprint": checkpoint.fingerprint,
        "notes": list(checkpoint.notes),
        "family": architecture.family,
        "class": architecture.class_name,
        "weights": {name: asdict(weight) for name, weight in architecture.weights.items()},
        "fused": {name: [weight.name for weight in group] for name, group in architecture.fused_groups.items()},
        "tied": dict(architecture.tied),
        "ignored": dict(architecture.ignored),
        "moments": moments.as_data(),
    }


def inspection_table(checkpoint: Checkpoint, moments: ModelMoments, *, tensors: bool = False) -> Group:
    """Returns a heading, the notes, and one row per block (or per tensor) with the moments of its weights."""
    architecture = checkpoint.architecture
    n = sum(info.numel for info in checkpoint.tensors.values())
    size = sum(info.nbytes for info in checkpoint.tensors.values())
    facts = [architecture.class_name, f"{architecture.n_blocks} blocks", f"{n:,} weights", megabytes(size)]
    facts += [f"{name} tied" for name in architecture.tied]
    heading = Text.assemble((printable(checkpoint.target), "bold"), "  ", printable(", ".join(facts)))
    left_out = [*_by_reason("not used", architecture.ignored), *_by_reason("without moments", moments.skipped)]
    notes = [Text.assemble(("note: ", "yellow"), printable(note)) for note in (*checkpoint.notes, *left_out)]
    return Group(heading, *notes, "", _tensor_table(moments) if tensors else _block_table(checkpoint, moments))


def _by_reason(what: str, reasons: Mapping[str, str]) -> list[str]:
    """Returns one note per reason, with the first of the tensors it holds for."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return [
        f"{what}: {', '.join(each[:SHOWN])}{f' and {len(each) - SHOWN} more' * (len(each) > SHOWN)}; {reason}"
        for reason, each in names.items()
    ]


def _block_table(checkpoint: Checkpoint, moments: ModelMoments) -> Table:
    blocks = checkpoint.architecture.blocks
    stacks = len({block.stack for block in blocks}) > 1
    names = (f"{block.stack} {block.index}" if stacks else f"block {block.index}" for block in blocks)
    outside = [
        (weight.role, moments.tensors[name])
        for name, weight in checkpoint.architecture.weights.items()
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
