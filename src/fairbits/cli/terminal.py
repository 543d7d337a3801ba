"""What reaches the terminal: results on stdout, notes and progress on stderr, nothing that steers it."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from rich.console import Console
from rich.filesize import pick_unit_and_suffix
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from rich.text import Text

from fairbits.errors import printable
from fairbits.progress import Progress

BROKEN_PIPE = 141
"""How a command ends whose reader has gone, as `head` goes: 128 and the number of the signal, as shells have it."""
EVERY = 30.0
"""Seconds between two lines on one stage where there is no terminal."""

"""What is being done, how much of it is done, how much there is."""


class Screen(Console):
    """A console whose reader may go before the end without a word."""

    def on_broken_pipe(self) -> None:
        """Ends the command; what is left in the buffers goes nowhere."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(BROKEN_PIPE)


out = Screen(emoji=False)
err = Screen(stderr=True, emoji=False)


def hush(quiet: bool) -> None:
    """Silences notes and progress, or lets them be seen again; errors are seen always."""
    err.quiet = quiet


class Amount(ProgressColumn):
    """How much is done of how much, and how fast."""

    def render(self, task: Task) -> Text:
        """Returns, for example, 1.3k of 1.8k, 420/s; nothing where it is not known how much there is."""
        if not task.total:
            return Text()
        return Text(f"{short(task.completed)} of {short(task.total)}, {short(task.speed or 0)}/s", style="dim")


@contextmanager
def stages(first: str) -> Iterator[Progress]:
    """Gives the progress function of a command, which begins with the stage `first`.

    A terminal shows a bar with the rate and the time left, and nothing is left of it in the end. Elsewhere, as in the
    log of a CI system, every stage has a line when it begins, and one more every half minute.
    """
    if not err.file.isatty() or err.is_dumb_terminal:  # FORCE_COLOR makes no terminal of a log
        show = lines()
        show(first, 0, 0)
        yield show
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(20), Amount(), TimeRemainingColumn())
    with ProgressBar(*columns, console=err, transient=True, disable=err.quiet) as progress:
        task = progress.add_task(first, total=None)

        def show_bar(what: str, done: float, total: float) -> None:
            description = printable(what)
            if progress.tasks[0].description != description:
                progress.reset(task, description=description, total=total)
            progress.update(task, completed=done, total=total)

        yield show_bar


def lines(clock: Callable[[], float] = monotonic) -> Progress:
    """Returns a function that prints one line per stage when it begins, and one every half minute of it."""
    stage, began, said = "", 0.0, 0.0

    def show(what: str, done: float, total: float) -> None:
        nonlocal stage, began, said
        now = clock()
        if what != stage:
            stage, began, said = what, now, now
            print_notes([f"{what} …"])
        elif now - said >= EVERY and done:
            said = now
            rate = done / (now - began)
            left = f", {duration(max(total - done, 0) / rate)} left" if done > total / 10 else ""  # too early to tell
            print_notes([f"{what}: {short(done)} of {short(total)}, {short(rate)}/s{left}"])

    return show


def done(what: str, seconds: float) -> None:
    """Prints on stderr that something is done, and how long it took."""
    print_notes([f"{what:<24} {duration(seconds)}"])


def duration(seconds: float) -> str:
    """Returns a time as a person says it.

    >>> duration(3.21), duration(38), duration(130), duration(7500)
    ('3.2 s', '38 s', '2 min 10 s', '2 h 5 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def short(number: float) -> str:
    """Returns a number in few characters.

    >>> short(420), short(1_830_000), short(0.25)
    ('420', '1.8M', '0.25')
    """
    if 0 < number < 10 and number != int(number):
        return f"{number:.2g}"
    unit, suffix = pick_unit_and_suffix(int(number), ["", "k", "M", "G", "T"], 1000)
    return f"{number / unit:.{int(unit > 1)}f}{suffix}"


def print_json(data: Any) -> None:
    """Prints JSON that brings back every character, and holds none that steers a terminal."""
    try:
        for line in json.dumps(data, ensure_ascii=False, indent=1).split("\n"):
            out.file.write(f"{printable(line)}\n")
        out.file.flush()
    except BrokenPipeError:
        out.on_broken_pipe()


def print_notes(notes: Iterable[str]) -> None:
    """Prints one line per note on stderr."""
    for note in notes:
        err.print(Text(printable(note), style="dim"), soft_wrap=True)


def print_error(message: str) -> None:
    """Prints what went wrong on stderr, in one line, whether or not notes are wanted."""
    line = Text.assemble(("error: ", "bold red"), printable(message))
    Screen(stderr=True, emoji=False).print(line, soft_wrap=True)
