"""Where a command computes: the device, or a Ray cluster with its tasks in one table while they run."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Annotated

import typer
from rich.live import Live

from fairbits.cli import completion
from fairbits.cli.terminal import duration, err, print_notes, stages
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.core.table import Cell, Table, dim
from fairbits.core.task_pool import NEEDS_RAY, Cluster, TaskState, Watch, check_reachable

Ray = Annotated[
    str | None,
    typer.Option(
        help="Run the tasks on a Ray cluster: host:port of its head, auto (the cluster of this machine), or local "
        "(start one here). Needs the package ray.",
        metavar="ADDRESS",
        autocompletion=completion.one_of("local", "auto"),
    ),
]
RayCpus = Annotated[float, typer.Option(help="With --ray: CPUs per task.", metavar="N")]
RayGpus = Annotated[
    float, typer.Option(help="With --ray: GPUs per task, if there are any; 0.5 runs two tasks on one GPU.", metavar="X")
]
ROWS = 20  # tasks that the table shows at most; the line below counts all
ORDER = ("failed", "running", "waiting", "done")  # what is shown first where there is no room for all
STYLES = {"failed": "red", "running": "", "waiting": "dim", "done": "green"}


def choose_device(device: str, *, earlier: str | None = None) -> str:
    """Returns the device to compute on, after a note on stderr if it is a GPU; see `resolve_device`."""
    from fairbits.models.device import gpu_note, resolve_device

    resolved = resolve_device(device, earlier=earlier)
    print_notes(filter(None, [gpu_note(resolved)]))
    return resolved


def open_cluster(address: str | None, cpus: float, gpus: float) -> Cluster | None:
    """Returns the cluster of --ray, or None without it; raises if Ray is not installed."""
    if address is None:
        if (cpus, gpus) != (1.0, 1.0):
            raise InputError(
                "--ray-cpus and --ray-gpus are for tasks of a Ray cluster; name it with --ray, or leave them out"
            )
        return None
    if find_spec("ray") is None:  # before anything is read
        raise InputError(NEEDS_RAY)
    cluster = Cluster(address, cpus=cpus, gpus=gpus)
    check_reachable(address)  # before the model is read
    return cluster


def device_here(device: str, cluster: Cluster | None, *, earlier: str | None = None) -> str:
    """Returns the device of this machine, with a note on it; on a cluster, the device as requested."""
    return choose_device(device, earlier=earlier) if cluster is None else device


@contextmanager
def show_progress(cluster: Cluster | None, first: str) -> Iterator[tuple[Progress | None, Cluster | None]]:
    """Yields the progress of a command, and the cluster, which shows its tasks in a table instead."""
    if cluster is None:
        with stages(first) as show:
            yield show, None
        return
    local = cluster.address == "local"
    print_notes(["starting Ray on this machine …" if local else f"connecting to Ray at {cluster.address} …"])
    with task_table() as watch:
        yield None, replace(cluster, watch=watch)


@contextmanager
def task_table() -> Iterator[Watch]:
    """Yields a function that shows the states of tasks; the table is cleared at the end."""
    if not err.file.isatty() or err.is_dumb_terminal or err.quiet:
        yield line_watch()
        return
    with Live(console=err, transient=True, auto_refresh=False) as live:
        yield lambda states: live.update(state_table(states).terminal(), refresh=True)


def state_table(states: Sequence[TaskState]) -> Table:
    """Returns a row for each task, in their order; if there are more than ROWS, failed and running ones come first.

    The line below counts all tasks, and those that were begun again.
    """
    shown = set(map(id, sorted(states, key=lambda state: ORDER.index(state.status))[:ROWS]))
    rows: list[tuple[Cell, ...]] = [
        (
            state.name,
            [(state.status, STYLES[state.status])],
            state.host,
            dim(_stage(state)),
            f"{state.done / state.total:.0%}" if state.total and state.status == "running" else "",
            duration(state.seconds) if state.attempts else "",
        )
        for state in states
        if id(state) in shown
    ]
    headers = ("task", "", "machine", "stage", "", "time")
    return Table("", headers, tuple(rows), (dim(summary(states)),), left=(1, 2, 3))


def summary(states: Sequence[TaskState]) -> str:
    """Returns how many tasks there are of each status, and how many were begun again."""
    counts = Counter(state.status for state in states)
    unfinished = [f"{counts[name]} {name}" for name in ("running", "waiting", "failed") if counts[name]]
    again = sum(max(state.attempts - 1, 0) for state in states)
    restarted = [f"{again} restarted"] if again else []
    return ", ".join([f"{counts['done']} of {len(states)} done", *unfinished, *restarted])


def line_watch() -> Watch:
    """Returns a function that prints a line when a task starts, restarts, or ends."""
    before: dict[str, TaskState] = {}

    def show(states: Sequence[TaskState]) -> None:
        done = sum(state.status == "done" for state in states)
        for state in states:
            earlier = before.get(state.name, TaskState(state.name))
            if state.attempts > max(earlier.attempts, 1):
                print_notes([f"{state.name}: its process died; restarted on {state.host}"])
            elif state.status == "running" and earlier.status == "waiting":
                print_notes([f"{state.name}: started on {state.host}"])
            if state.status == "done" != earlier.status:
                print_notes([f"{state.name}: done in {duration(state.seconds)} ({done} of {len(states)})"])
            if state.status == "failed" != earlier.status:
                print_notes([f"{state.name}: failed"])
            before[state.name] = state

    return show


def _stage(state: TaskState) -> str:
    if state.status == "failed":
        return state.problem[:60]
    again = f" (attempt {state.attempts})" if state.attempts > 1 else ""
    return (state.stage if state.status == "running" else "") + again
