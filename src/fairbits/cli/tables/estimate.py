"""An estimate for a terminal of 80 columns: a row for every stage, and what does not fit."""

from collections.abc import Iterator

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fairbits.cli.tables.layout import columns, notes_section
from fairbits.cli.terminal import duration
from fairbits.errors import printable
from fairbits.units import readable_size
from fairbits.verbs.estimate.estimate import Estimate
from fairbits.verbs.estimate.work import Held


def estimate_table(found: Estimate) -> Group:
    """Returns the stages with their time, memory and disk, the whole job, and what is free."""
    heading = Text.assemble((printable(found.model), "bold cyan"), "  ", (f"estimate on {found.device}", "bold"))
    return Group(heading, "", _stages(found), *notes_section(_notes(found)))


def _stages(found: Estimate) -> Table:
    table = columns("stage", "time", *(["GPU memory"] if _has_gpu(found) else []), "RAM", "disk")
    for stage in found.stages:
        table.add_row(Text(printable(stage.name)), duration(found.time(stage)), *_cells(stage.held, found))
    table.add_row(Text("in all", style="bold"), duration(found.seconds), *_cells(found.held, found))
    free = found.capacity
    spare = [free.gpu] if _has_gpu(found) else []
    cells = ["–" if each is None else readable_size(each) for each in (*spare, free.ram, free.disk)]
    table.add_row(Text("free", style="dim"), "", *(Text(each, style="dim") for each in cells))
    return table


def _cells(held: Held, found: Estimate) -> tuple[str, ...]:
    own = (held.gpu, held.ram) if _has_gpu(found) else (held.ram,)
    return tuple("–" if each < 1 else readable_size(each) for each in (*own, held.written + held.scratch))


def _has_gpu(found: Estimate) -> bool:
    return found.capacity.gpu is not None


def _notes(found: Estimate) -> Iterator[str]:
    yield "times follow from rates that were measured just now; other work on this machine changes them"
    if found.held.scratch:
        yield f"{readable_size(found.held.scratch)} of the disk are temporary files"
    for each in found.shortages:
        yield f"this {'does not fit' if each.certain else 'may not fit'}: {each}"
    if found.advice is not None:
        yield found.advice
