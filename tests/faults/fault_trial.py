"""One command that is disturbed at its points, each time in a fork of this process, and judged."""

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fault_cases import Case, placed
from fault_disk import KINDS, NOTHING, arm, content, disarm, visible

LIMIT = 120.0
"""Seconds after which a command counts as one that does not end."""
EXPECTED = {"SIGKILL": {-9}, "SIGINT": {0, 2, 130}, "SIGTERM": {0, 2, 143}}
SIZES = 12
"""Disks that are too small, in equal steps up to what a command needs."""


@dataclass(frozen=True)
class Place:
    """Where commands write, `out`, and where it is kept what they print, `log`."""

    out: Path
    log: Path

    def fresh(self, older: dict[str, bytes]) -> None:
        """Puts back what was there before the command."""
        for path in self.out.iterdir() if self.out.exists() else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        (self.out / "tmp").mkdir(parents=True)
        for name, data in older.items():
            if not name.endswith("/"):
                (self.out / name).parent.mkdir(parents=True, exist_ok=True)
                (self.out / name).write_bytes(data)

    def last_line(self) -> str:
        """Returns the last line that a command has printed."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def start(arguments: list[str], place: Place, *, kind: int = NOTHING, point: int = 0) -> int:
    """Returns the process of a fork that runs a command; its changes of the disk are in the log's neighbour."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        log = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for number in (1, 2):
            os.dup2(log, number)
        tempfile.tempdir = str(place.out / "tmp")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.argv = ["fairbits", *arguments]
        from fairbits.cli import main

        arm(place.out, kind, point)
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        except KeyboardInterrupt:  # after the last change, when the command itself has ended
            code = 130
        changes = disarm()
        place.log.with_suffix(".changes").write_text(changes)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def end(child: int, *, stopped: bool = False) -> int | None:
    """Returns the exit code of a fork, or minus the signal that ended it; None if it does not end."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG | (os.WUNTRACED if stopped else 0))
        if ended:
            return -signal.SIGSTOP if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


@dataclass
class Trial:
    """One case: what it changes and makes undisturbed, and how it is disturbed."""

    case: Case
    place: Place
    older: dict[str, bytes] = field(default_factory=dict)
    whole: dict[str, bytes] = field(default_factory=dict)
    changes: str = ""

    def prepare(self) -> None:
        """Runs the command undisturbed: once here, so that forks find all compiled; twice to compare with."""
        self.place.fresh({})
        self._warm()
        self.place.fresh({})
        if self.case.older:
            self._undisturbed(placed(self.case.older, self.place.out))
            self.older = content(self.place.out)
        for _ in range(2):
            self.place.fresh(self.older)
            self._undisturbed(self.case.arguments(self.place.out))
            files = content(self.place.out)
            differing = [name for name in files if self.whole and files[name] != self.whole.get(name)]
            if differing:
                raise SystemExit(f"{self.case.name}: two runs give other bytes in {differing}")
            self.whole = files
            gc.freeze()  # forks copy no page only because their collector looks at it
        self.changes = self.place.log.with_suffix(".changes").read_text()

    def _warm(self) -> None:
        from fairbits.cli import main

        sys.argv = ["fairbits", *self.case.arguments(self.place.out)]
        with self.place.log.open("w") as log, redirect_stdout(log), redirect_stderr(log), suppress(SystemExit):
            main()

    def _undisturbed(self, arguments: list[str]) -> None:
        code = end(start(arguments, self.place))
        if code != 0:
            raise SystemExit(f"{self.case.name} ends with {code}: {self.place.log.read_text()}")

    def points(self, kind: str, *, every: int | None = None) -> list[int]:
        """Returns points to try of a kind: a full disk can still remove files."""
        step = self.case.every if every is None else every
        first = list(KINDS).index(kind) % step
        full = kind == "ENOSPC from then on"
        return [i for i, change in enumerate(self.changes, 1) if not full or change in "cwfrm"][first::step]

    def disturb(self, kind: str, point: int) -> tuple[str, str]:
        """Returns how a command went on after a fault, and what was wrong."""
        self.place.fresh(self.older)
        child = start(self.case.arguments(self.place.out), self.place, kind=KINDS[kind], point=point)
        code = end(child, stopped=kind == "beside")
        other = None
        if code == -signal.SIGSTOP:
            other_place = Place(self.place.out, self.place.log.with_name("beside"))
            other = end(start(self.case.arguments(self.place.out), other_place))
            if other not in (0, 2):
                return "failed", f"the other process ends with {other}: {other_place.last_line()}"
            os.kill(child, signal.SIGCONT)
            code = end(child)
        return self.judged(code, other, EXPECTED.get(kind, {0, 2}))

    def judged(self, code: int | None, other: int | None, expected: Iterable[int]) -> tuple[str, str]:
        """Returns how a command goes on after it has ended with a code, and what was wrong."""
        message = self.place.last_line()
        files = content(self.place.out)
        wrong = self.case.half_written(visible(files), whole=self.whole, old=self.older)
        if code is None:
            return "failed", "it does not end"
        if code not in {0, *expected}:
            return "failed", f"exit code {code}: {message}"
        if wrong:
            return "failed", f"{wrong} (exit code {code}: {message})"
        if code == 0 and not other and files == self.whole:
            return "unharmed", ""
        complete = all(files.get(name) == data for name, data in visible(self.whole).items())  # and older files, maybe
        if code == 0 and not complete:
            return "failed", "exit code 0 without the whole result"
        how = "complete" if complete else "resumed" if self.kept(files) else "restarted"
        second = end(start(self.case.arguments(self.place.out, again=True), self.place))
        if second != 0:
            return "failed", f"after {code} ({message}) the second run ends with {second}: {self.place.last_line()}"
        files = content(self.place.out)
        differing = sorted(name for name in files.keys() | self.whole.keys() if files.get(name) != self.whole.get(name))
        if differing:
            return "failed", f"after {code} ({message}) the second run leaves {', '.join(differing[:4])}"
        return how, ""

    def kept(self, files: dict[str, bytes]) -> bool:
        """Returns whether something finished is there that a second run need not do again."""
        marks = ("done/block", "done/outside", "trial.json", "learning/", "audit.json")
        return any(mark in name for name in files for mark in marks)


def small_disks(trial: Trial) -> Iterator[tuple[str, str]]:
    """Yields how a command goes on that a disk was too small for, after the disk has grown; needs root."""
    needed = sum(-(-len(data) // 4096) * 4096 + 4096 for data in trial.whole.values()) + 65536
    for step in range(1, SIZES + 1):
        trial.place.fresh({})
        size = max(needed * step // SIZES, 16384)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(trial.place.out)]
        if subprocess.run(mount, capture_output=True).returncode:
            return
        try:
            try:
                trial.place.fresh(trial.older)
            except OSError:  # not even what was there before has room
                continue
            code = end(start(trial.case.arguments(trial.place.out), trial.place))
            subprocess.run(["mount", "-o", "remount,size=64m", str(trial.place.out)], check=True)
            yield trial.judged(code, None, {0, 2})
        finally:
            subprocess.run(["umount", str(trial.place.out)], check=True)
