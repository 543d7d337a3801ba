"""What reaches the terminal: results on stdout, notes and progress on stderr, nothing that steers it."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.filesize import pick_unit_and_suffix
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from fairbits.errors import printable

out = Console(emoji=False)
err = Console(stderr=True, emoji=False)


class Amount(ProgressColumn):
    """How much is done of how much, and how fast."""

    def render(self, task: Task) -> Text:
        """Returns, for example, 1.3k of 1.8k, 420/s; nothing where it is not known how much there is."""
        if not task.total:
            return Text()
        return Text(f"{short(task.completed)} of {short(task.total)}, {short(task.speed or 0)}/s", style="dim")


@contextmanager
def stages(first: str) -> Iterator[Callable[[str, float, float], None]]:
    """Gives a function to call with what is being done, how much of it is done, and how much there is.

    A terminal shows it, with the rate and the time left; nothing is left of it in the end.
    """
    columns = (TextColumn("{task.description}", markup=False), BarColumn(20), Amount(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(first, total=None)

        def show(what: str, done: float, total: float) -> None:
            description = printable(what)
            if progress.tasks[0].description != description:
                progress.reset(task, description=description, total=total)
            progress.update(task, completed=done, total=total)

        yield show


def short(number: float) -> str:
    """Returns a number in few characters.

    >>> short(420), short(1_830_000)
    ('420', '1.8M')
    """
    unit, suffix = pick_unit_and_suffix(int(number), ["", "k", "M", "G", "T"], 1000)
    return f"{number / unit:.{int(unit > 1)}f}{suffix}"


def print_json(data: Any) -> None:
    """Prints JSON that brings back every character, and holds none that steers a terminal."""
    for line in json.dumps(data, ensure_ascii=False, indent=1).split("\n"):
        typer.echo(printable(line))


def print_notes(notes: Iterable[str]) -> None:
    """Prints one line per note on stderr."""
    for note in notes:
        err.print(Text(printable(note), style="dim"), soft_wrap=True)
