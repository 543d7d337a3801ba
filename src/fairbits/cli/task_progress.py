"""Tasks of a cluster while they run: one table on a terminal, and lines where there is none."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fairbits.cli.table_parts import columns
from fairbits.cli.terminal import duration, err, print_notes
from fairbits.core.errors import printable
from fairbits.core.task_pool import TaskState, Watch

ROWS = 20
"""Tasks that the table shows at most; the line below counts all."""
ORDER = ("failed", "running", "waiting", "done")
"""What is shown first where there is no room for all."""
STYLES = {"failed": "red", "running": "", "waiting": "dim", "done": "green"}


@contextmanager
def task_table() -> Iterator[Watch]:
    """Yields a function that shows the states of tasks; the table is cleared at the end."""
    if not err.file.isatty() or err.is_dumb_terminal or err.quiet:
        yield line_watch()
        return
    with Live(console=err, transient=True, auto_refresh=False) as live:
        yield lambda states: live.update(Group(state_table(states), Text(summary(states), style="dim")), refresh=True)


def state_table(states: Sequence[TaskState]) -> Table:
    """Returns a row for each task, in their order; if there are more than ROWS, failed and running ones come first."""
    kept = set(map(id, sorted(states, key=lambda each: ORDER.index(each.status))[:ROWS]))
    table = columns("task", "", "machine", "stage", "", "time", left=(1, 2, 3))
    for each in states:
        if id(each) in kept:
            table.add_row(
                Text(printable(each.name)),
                Text(each.status, style=STYLES[each.status]),
                printable(each.host),
                Text(printable(_stage(each)), style="dim"),
                f"{each.done / each.total:.0%}" if each.total and each.status == "running" else "",
                duration(each.seconds) if each.attempts else "",
            )
    return table


def summary(states: Sequence[TaskState]) -> str:
    """Returns how many tasks there are of each status, and how many were begun again.

    >>> summary([TaskState("a", "done", attempts=2), TaskState("b", "running", attempts=1), TaskState("c")])
    '1 of 3 done, 1 running, 1 waiting, 1 begun again'
    """
    counts = Counter(each.status for each in states)
    others = [f"{counts[name]} {name}" for name in ("running", "waiting", "failed") if counts[name]]
    again = sum(max(each.attempts - 1, 0) for each in states)
    return ", ".join([f"{counts['done']} of {len(states)} done", *others, *([f"{again} begun again"] * bool(again))])


def line_watch() -> Watch:
    """Returns a function that prints a line when a task begins, begins again, or ends."""
    before: dict[str, TaskState] = {}

    def show(states: Sequence[TaskState]) -> None:
        done = sum(each.status == "done" for each in states)
        for each in states:
            earlier = before.get(each.name, TaskState(each.name))
            if each.attempts > max(earlier.attempts, 1):
                print_notes([f"{each.name}: its process died; begun again on {each.host}"])
            elif each.status == "running" and earlier.status == "waiting":
                print_notes([f"{each.name}: begun on {each.host}"])
            if each.status == "done" != earlier.status:
                print_notes([f"{each.name}: done in {duration(each.seconds)} ({done} of {len(states)})"])
            if each.status == "failed" != earlier.status:
                print_notes([f"{each.name}: failed"])
            before[each.name] = each

    return show


def _stage(state: TaskState) -> str:
    if state.status == "failed":
        return state.problem[:60]
    again = f" (attempt {state.attempts})" if state.attempts > 1 else ""
    return (state.stage if state.status == "running" else "") + again
