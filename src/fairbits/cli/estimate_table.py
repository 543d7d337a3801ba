"""What a job takes, printed for --dry-run: a row for every stage, and what does not fit."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fairbits.cli.terminal import duration, print_json, print_tables
from fairbits.core.errors import InputError
from fairbits.core.table import Cell, Table, dim, notes_table
from fairbits.core.units import readable_size

if TYPE_CHECKING:
    from fairbits.api.dry_run import ResourceEstimate
    from fairbits.api.memory_needed import Held


def estimate_tables(estimate: "ResourceEstimate") -> list[Table]:
    """Returns the stages with their time, memory and disk, the whole job, and what is free."""
    gpu = estimate.capacity.gpu is not None

    def sizes(taken: "Held") -> tuple[str, ...]:
        memory = (taken.gpu, taken.ram) if gpu else (taken.ram,)
        return tuple("–" if size < 1 else readable_size(size) for size in (*memory, taken.written + taken.scratch))

    free = estimate.capacity
    spare = (*((free.gpu,) if gpu else ()), free.ram, free.disk)
    rows: list[tuple[Cell, ...]] = [
        *((stage.name, duration(estimate.time(stage)), *sizes(stage.held)) for stage in estimate.stages),
        ([("in all", "bold")], duration(estimate.seconds), *sizes(estimate.held)),
        (dim("free"), "", *(dim("–" if size is None else readable_size(size)) for size in spare)),
    ]
    headers = ("stage", "time", *(("GPU memory",) if gpu else ()), "RAM", "disk")
    title: Cell = [(estimate.model, "bold cyan"), "  ", (f"estimate on {estimate.device}", "bold")]
    return [Table(title, headers, tuple(rows), above=("",)), *notes_table(_notes(estimate))]


def _notes(estimate: "ResourceEstimate") -> Iterator[str]:
    yield "times follow from rates measured just now; other work on this machine changes them"
    for option, seconds in estimate.dropped.items():
        yield f"{option} saves {duration(seconds)}"
    if estimate.held.scratch:
        yield f"{readable_size(estimate.held.scratch)} of the disk are temporary files"
    for shortage in estimate.shortages:
        yield f"this {'does not fit' if shortage.certain else 'may not fit'}: {shortage}"
    if estimate.advice is not None:
        yield estimate.advice


def print_estimates(estimates: "Sequence[ResourceEstimate]", *, as_json: bool) -> None:
    """Prints estimates, as JSON in a list if there are several; raises if one certainly does not fit."""
    if as_json:
        data = [estimate.as_data() for estimate in estimates]
        print_json(data if len(data) > 1 else data[0])
    else:
        for estimate in estimates:
            print_tables(estimate_tables(estimate))
    for estimate in estimates:
        certain = [shortage for shortage in estimate.shortages if shortage.certain]
        if certain:
            raise InputError("; ".join(filter(None, (str(certain[0]), estimate.advice))))
