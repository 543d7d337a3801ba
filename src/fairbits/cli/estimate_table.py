"""An estimate for a terminal of 80 columns: a row for every stage, and what does not fit.

Estimates on the command line: the table or the JSON, and the error if the job does not fit.
"""

from collections.abc import Iterator, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fairbits.api.dry_run import ResourceEstimate
from fairbits.api.memory_needed import Held
from fairbits.cli.table_parts import columns, notes_section
from fairbits.cli.terminal import duration, out, print_json
from fairbits.core.errors import InputError, printable
from fairbits.core.units import readable_size


def estimate_table(found: ResourceEstimate) -> Group:
    """Returns the stages with their time, memory and disk, the whole job, and what is free."""
    heading = Text.assemble((printable(found.model), "bold cyan"), "  ", (f"estimate on {found.device}", "bold"))
    return Group(heading, "", _stages(found), *notes_section(_notes(found)))


def _stages(found: ResourceEstimate) -> Table:
    table = columns("stage", "time", *(["GPU memory"] if _has_gpu(found) else []), "RAM", "disk")
    for stage in found.stages:
        table.add_row(Text(printable(stage.name)), duration(found.time(stage)), *_cells(stage.held, found))
    table.add_row(Text("in all", style="bold"), duration(found.seconds), *_cells(found.held, found))
    free = found.capacity
    spare = [free.gpu] if _has_gpu(found) else []
    cells = ["–" if each is None else readable_size(each) for each in (*spare, free.ram, free.disk)]
    table.add_row(Text("free", style="dim"), "", *(Text(each, style="dim") for each in cells))
    return table


def _cells(held: Held, found: ResourceEstimate) -> tuple[str, ...]:
    own = (held.gpu, held.ram) if _has_gpu(found) else (held.ram,)
    return tuple("–" if each < 1 else readable_size(each) for each in (*own, held.written + held.scratch))


def _has_gpu(found: ResourceEstimate) -> bool:
    return found.capacity.gpu is not None


def _notes(found: ResourceEstimate) -> Iterator[str]:
    yield "times follow from a little of the work, which was done just now; other work on this machine changes them"
    if found.held.scratch:
        yield f"{readable_size(found.held.scratch)} of the disk are temporary files"
    for each in found.shortages:
        yield f"this {'does not fit' if each.certain else 'may not fit'}: {each}"
    if found.advice is not None:
        yield found.advice


def show_estimate(estimate: ResourceEstimate, *, as_json: bool) -> None:
    """Prints an estimate; raises if the job certainly does not fit, so that scripts notice it."""
    show_estimates([estimate], as_json=as_json)


def show_estimates(estimates: Sequence[ResourceEstimate], *, as_json: bool) -> None:
    """Prints estimates one after the other, as JSON in a list if there are several; raises if one does not fit."""
    if as_json:
        data = [each.as_data() for each in estimates]
        print_json(data if len(data) > 1 else data[0])
    else:
        for each in estimates:
            out.print(estimate_table(each))
    for each in estimates:
        certain = [shortage for shortage in each.shortages if shortage.certain]
        if certain:
            raise InputError("; ".join(filter(None, (str(certain[0]), each.advice))))
