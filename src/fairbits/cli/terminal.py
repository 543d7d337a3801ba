"""Output: results on stdout, notes and progress on stderr, and no character that could control the terminal."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from rich.console import Console
from rich.filesize import pick_unit_and_suffix
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar
from rich.text import Text

from fairbits.core.errors import printable
from fairbits.core.progress import BYTES, Progress, unit_of
from fairbits.core.table import NOTES, Table, render_tables
from fairbits.core.torchrun import this_process

BROKEN_PIPE = 141
"""Exit code when the reader, such as `head`, has closed the pipe: 128 plus the number of the signal, as in shells."""
EVERY = 30.0  # seconds between two lines about one stage where there is no terminal
FIRST = 1.0  # seconds of a stage after which its speed means something


class Screen(Console):
    """A console whose reader may close the pipe early without an error message."""

    def on_broken_pipe(self) -> None:
        """Ends the command and drops what is still in the buffers."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(BROKEN_PIPE)


out = Screen(emoji=False)
err = Screen(stderr=True, emoji=False)


def hush(quiet: bool) -> None:
    """Silences all but results and errors, or shows it again."""
    err.quiet = quiet


def silence() -> None:
    """Drops all that this process prints from now on, except for an error that it is to report."""
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (until the process ends)


class Pace:
    """How far a stage is, in words. `began` is when it was first reported, with what an earlier run had done."""

    def __init__(self, stage: str, began: float, done: float = 0) -> None:
        self.stage = stage
        self._began, self._before = began, done

    def words(self, done: float, total: float, now: float) -> str:
        """Returns, for example, 3 of 18 blocks, 12 s per block, about 3 min left; nothing if nothing is known."""
        from fairbits.core.units import readable_size  # with numpy, which --help does not need

        if not total:
            return ""
        unit, seconds, fresh = unit_of(self.stage), now - self._began, done - self._before
        if unit == BYTES:
            amount = f"{readable_size(done)} of {readable_size(total)}"
        else:
            amount = f"{short_number(int(done))} of {short_number(total)}{'' if unit is None else f' {unit}s'}"
        if fresh <= 0 or seconds < FIRST:
            return amount
        rate = fresh / seconds
        speed = f"{readable_size(rate)}/s" if unit == BYTES else f"{short_number(rate)} {unit}s/s"
        if unit is None:
            speed = f"{short_number(rate)}/s"
        elif unit != BYTES and rate < 1:
            speed = f"{duration(1 / rate)} per {unit}"
        left, later = max(total - done, 0) / rate, getattr(self.stage, "later", None)
        remaining = f"about {rough_duration(left)} left"
        if later:
            remaining += f" in this stage, {rough_duration(left + later * total / rate)} in all"
        return ", ".join([amount, speed, *([remaining] if done > total / 50 else [])])


@contextmanager
def stages(first: str) -> Iterator[Progress]:
    """Yields the progress function of a command, which begins with the stage `first`.

    A terminal shows a bar, and clears it at the end. Elsewhere, as in the log of a CI system, every stage prints a line
    when it begins and another every half minute. Both say how far the stage is, how fast, and what time is left.
    """
    if not err.file.isatty() or err.is_dumb_terminal:  # FORCE_COLOR does not turn a log into a terminal
        show = line_printer()
        show(first, 0, 0)
        yield show
        return
    words = TextColumn("{task.fields[words]}", style="dim", markup=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(12), words, TimeElapsedColumn())
    with ProgressBar(*columns, console=err, transient=True, disable=err.quiet) as progress:
        task = progress.add_task(first, total=None, words="")
        pace = Pace(first, monotonic())

        def show_bar(what: str, done: float, total: float) -> None:
            nonlocal pace
            if what != pace.stage:
                pace = Pace(what, monotonic(), done)
                progress.reset(task, description=printable(what), total=None, words="")
            words = pace.words(done, total, monotonic())
            progress.update(task, completed=done, total=total or None, words=words)

        yield show_bar


def line_printer(clock: Callable[[], float] = monotonic) -> Progress:
    """Returns a function that prints one line when a stage begins, and another every half minute."""
    pace, printed = Pace("", 0.0), 0.0

    def show(what: str, done: float, total: float) -> None:
        nonlocal pace, printed
        now = clock()
        if what != pace.stage:
            pace, printed = Pace(what, now, done), now
            print_notes([f"{what} …"])
        elif now - printed >= EVERY and done:
            printed = now
            print_notes([f"{what}, {pace.words(done, total, now)}"])

    return show


def print_done(what: str, seconds: float) -> None:
    """Prints on stderr what is done and how long it took."""
    print_notes([f"{what:<24} {duration(seconds)}"])


def duration(seconds: float) -> str:
    """Returns a time in words."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def rough_duration(seconds: float) -> str:
    """Returns a time that is only an estimate: in whole seconds, minutes, or hours and minutes."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def short_number(number: float) -> str:
    """Returns a number in few characters."""
    if 0 < number < 10 and number != int(number):
        return f"{number:.2g}"
    unit, suffix = pick_unit_and_suffix(int(number), ["", "k", "M", "G", "T"], 1000)
    return f"{number / unit:.{int(unit > 1)}f}{suffix}"


def print_tables(tables: Iterable[Table]) -> None:
    """Prints tables on stdout; those of notes not if notes are silenced."""
    out.print(render_tables(table for table in tables if not (err.quiet and table.title == NOTES)))


def print_written(tables: Sequence[Table] = (), line: str = "") -> None:
    """Prints on stdout what is in the files that a command wrote, and a line; nothing if notes are silenced."""
    if tables and not err.quiet:
        print_tables(tables)
    if line and not err.quiet:
        print_line(line)


def print_line(line: str) -> None:
    """Prints a line on stdout that is not broken, however long."""
    out.print(Text(printable(line)), soft_wrap=True)


def print_json(data: Any) -> None:
    """Prints JSON; characters that could control the terminal are escaped."""
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
    """Prints an error on stderr, in one line, even where notes are silenced."""
    line = Text.assemble(("error: ", "bold red"), printable(message))
    silenced = not this_process().leads
    Screen(stderr=True, file=sys.__stderr__ if silenced else None, emoji=False).print(line, soft_wrap=True)
