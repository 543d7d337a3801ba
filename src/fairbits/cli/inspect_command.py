"""The command `inspect` on the command line."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from fairbits.cli import early_checks, options
from fairbits.cli.terminal import print_json, print_tables, stages
from fairbits.core.errors import InputError
from fairbits.core.table import Cell, Table
from fairbits.core.units import megabytes

if TYPE_CHECKING:
    from fairbits.api.inspect import Inspection, StoredRole
    from fairbits.models.checkpoint import Checkpoint
    from fairbits.models.weight_moments import WeightMoments

NAMED = 3  # tensors that a note names
MOMENTS = ("weights", "σ", "κ", "skew", "max|w|/σ", "> 3σ", "> 6σ")


def inspect(
    model: options.Model,
    tensors: Annotated[bool, options.flag("--tensors", help="One row per tensor instead of one per block.")] = False,
    roles: Annotated[
        bool, options.flag("--roles", help="κ of every block by role: attention q, k, v, o, MLP gate, up, down.")
    ] = False,
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Show how a quantized checkpoint is stored, or the blocks of another model and the statistics of their weights.

    The model is not run.

    Examples:
      fairbits inspect embedded:tiny
      fairbits inspect ./model-FP8
      fairbits inspect ./model --tensors
      fairbits inspect ./model --roles
      fairbits inspect "embedded:tiny?outliers=5:125" --json
    """
    early_checks.check(locals())
    if tensors and roles:
        raise InputError("--tensors and --roles are two tables; give one of them")
    from fairbits.api.inspect import inspect as run_inspect
    from fairbits.api.inspect import storage
    from fairbits.models.hub_checkpoint import open_to_read

    with stages("opening the model") as show:
        checkpoint = open_to_read(model, trust_remote_code=trust_remote_code, revision=revision)
        stored = storage(checkpoint) if checkpoint.is_quantized else ()
        if stored and not (tensors or roles):
            if as_json:
                print_json({"target": checkpoint.target, "stored": [asdict(role) for role in stored]})
            else:
                print_tables([storage_table(checkpoint, stored)])
            return
        inspection = run_inspect(checkpoint, progress=show)
    if as_json:
        print_json(inspection.as_data())
    else:
        print_tables(roles_tables(inspection) if roles else [inspect_table(inspection, tensors=tensors)])


def storage_table(checkpoint: "Checkpoint", stored: "Sequence[StoredRole]") -> Table:
    """Returns how a quantized checkpoint is stored, a row for every role."""
    weights, nbytes = sum(role.weights for role in stored), sum(role.nbytes for role in stored)
    wide = sum(role.weights for role in stored if role.bits >= 16) / weights
    facts = f"{weights:,} weights, {megabytes(nbytes)}, {8 * nbytes / weights:.2f} bits per weight"
    said = (*checkpoint.notes, *((checkpoint.plain or checkpoint).activation_notes))
    notes: list[Cell] = [[("note: ", "yellow"), note] for note in said]
    rows = tuple((role.role, role.stored, role.inputs, f"{role.weights:,}", f"{role.bits:.2f}") for role in stored)
    return Table(
        [(checkpoint.target, "bold"), "  ", f"{facts}; {wide:.0%} of the weights have 16 bits or more"],
        ("role", "stored as", "inputs", "weights", "bits each"),
        rows,
        below=("", "fairbits inspect --tensors shows the statistics of the weights"),
        above=(*notes, ""),
        left=(0, 1, 2),
    )


def inspect_table(inspection: "Inspection", *, tensors: bool = False) -> Table:
    """Returns a heading, the notes, and one row per block (or per tensor) with the moments of its weights."""
    checkpoint, moments, architecture = inspection.checkpoint, inspection.moments, inspection.checkpoint.architecture
    n = sum(info.numel for info in checkpoint.tensors.values())
    size = sum(info.nbytes for info in checkpoint.tensors.values())
    facts = [architecture.class_name, f"{architecture.n_blocks} blocks", f"{n:,} weights", megabytes(size)]
    facts += [f"{name} tied" for name in architecture.tied]
    left_out = [*_by_reason("not used", architecture.ignored), *_by_reason("without moments", moments.skipped)]
    notes: list[Cell] = [[("note: ", "yellow"), note] for note in (*checkpoint.notes, *left_out)]
    rows = moments.tensors.items() if tensors else _blocks(inspection)
    return Table(
        [(checkpoint.target, "bold"), "  ", ", ".join(facts)],
        ("tensor" if tensors else "linear weights of", *MOMENTS),
        tuple((name, *_cells(weights)) for name, weights in rows),
        above=(*notes, ""),
    )


def roles_tables(inspection: "Inspection") -> list[Table]:
    """Returns κ of every block and of its linear layers by role, a table for each stack."""
    from fairbits.api.inspect import CROSS

    blocks = list(
        zip(inspection.checkpoint.architecture.blocks, inspection.moments.blocks, inspection.roles, strict=True)
    )
    tables = []
    for stack in dict.fromkeys(block.stack for block, _, _ in blocks):
        inside = [(block.index, every, roles) for block, every, roles in blocks if block.stack == stack]
        columns = list(dict.fromkeys(role for _, _, roles in inside for role in roles))
        heading: Cell = [(inspection.checkpoint.target, "bold"), f"  κ of linear weights by role, {stack}"]
        below = ("", "×: attention to the encoder's output") if any(role.startswith(CROSS) for role in columns) else ()
        rows = tuple(
            (str(index), *(f"{part.kappa:.2f}" if part else "–" for part in (every, *map(roles.get, columns))))
            for index, every, roles in inside
        )
        tables.append(
            Table(heading, ("block", "all", *(role.replace(CROSS, "×") for role in columns)), rows, below, above=("",))
        )
    return tables


def _by_reason(what: str, reasons: Mapping[str, str]) -> list[str]:
    """Returns one note per reason, with the first of the tensors it holds for."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        by_reason.setdefault(reason, []).append(name)
    return [
        f"{what}: {', '.join(names[:NAMED])}{f' and {len(names) - NAMED} more' * (len(names) > NAMED)}; {reason}"
        for reason, names in by_reason.items()
    ]


def _blocks(inspection: "Inspection") -> "Iterator[tuple[str, WeightMoments]]":
    """Yields the moments of every block, then of the matrices outside the blocks."""
    architecture, moments = inspection.checkpoint.architecture, inspection.moments
    stacks = len({block.stack for block in architecture.blocks}) > 1
    for block, weights in zip(architecture.blocks, moments.blocks, strict=True):
        yield f"{block.stack if stacks else 'block'} {block.index}", weights
    for name, weight in architecture.weights.items():
        if weight.block is None and len(weight.shape) == 2 and name in moments.tensors:
            yield weight.role, moments.tensors[name]


def _cells(weights: "WeightMoments") -> tuple[str, ...]:
    return (
        f"{weights.n:,}",
        f"{weights.sigma:.4g}",
        f"{weights.kappa:.2f}",
        f"{weights.skewness:.2f}",
        f"{weights.largest / weights.sigma:.1f}" if weights.sigma else "–",
        f"{weights.beyond_3:.2%}",
        f"{weights.beyond_6:.4%}",
    )
