"""Locks: one process at a time works in a directory, and none that is dead keeps others out.

Which process something on disk belongs to, and whether that process still lives.
"""

import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import psutil

from fairbits.core.errors import InputError

APART = 2.0
"""Seconds by which two readings of one start may differ, as the clock may have been set in between."""
SAID = re.compile(r"process (\d{1,10}) on (\S{1,255}), started (\d{1,12}(?:\.\d{1,3})?)\s*")


@dataclass(frozen=True)
class Owner:
    """A process: its number, when it started, and its machine. A number alone is given again to other processes."""

    process: int
    started: float
    machine: str

    @classmethod
    def here(cls) -> "Owner":
        """Returns the process that calls this."""
        return _owner(os.getpid())

    @classmethod
    def parse(cls, text: str) -> "Owner | None":
        """Returns the owner that `str` has written; None if the text is something else.

        >>> Owner.parse("process 12 on node-3, started 1700000000.25")
        Owner(process=12, started=1700000000.25, machine='node-3')
        """
        found = SAID.fullmatch(text)
        return None if found is None else cls(int(found[1]), float(found[3]), found[2])

    def __str__(self) -> str:
        return f"process {self.process} on {self.machine}, started {self.started:.2f}"

    @property
    def token(self) -> str:
        """The owner in a few characters, for names of files: machine, process, second of its start."""
        return f"{_short(self.machine)}-{self.process}-{int(self.started)}"

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended; False for a process of another machine, of which nothing is known."""
        return self.machine == _machine() and _has_ended(self.process, self.started)


def token_is_dead(token: str) -> bool:
    """Returns whether a token is that of a process of this machine that has ended."""
    machine, process, started = token.split("-")
    return machine == _short(_machine()) and _has_ended(int(process), float(started))


def _has_ended(process: int, started: float) -> bool:
    try:
        return abs(float(psutil.Process(process).create_time()) - started) > APART
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


@lru_cache(1)
def _owner(process: int) -> Owner:
    return Owner(process, psutil.Process(process).create_time(), _machine())


def _machine() -> str:
    return re.sub(r"\s", "-", socket.gethostname())[:255] or "unnamed"


def _short(machine: str) -> str:
    return sha256(machine.encode()).hexdigest()[:8]


if sys.platform != "win32":
    import fcntl

LOCK = ".lock"
UNLOCKED = "this file system has no locks: only runs on the same machine are kept apart"
HELD = (BlockingIOError, PermissionError)
"""What systems say of a lock that another process holds."""
LONGEST = 400  # of what is read of a lock's file
_descriptors: set[int] = set()  # that hold locks of this process


def _let_go() -> None:
    """Closes the locks in a fork, which would hold them on after its parent has been killed."""
    while _descriptors:
        os.close(_descriptors.pop())


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_let_go)


@contextmanager
def lock_directory(directory: Path, *, option: str = "--out") -> Iterator[str | None]:
    """Locks a directory against other runs; yields a note if the file system has no locks.

    `option` is the one that names the directory on the command line.
    """
    with lock_file(directory / LOCK, directory, option=option) as note:
        yield note


@contextmanager
def lock_file(file: Path, directory: Path, *, option: str = "--out") -> Iterator[str | None]:
    """Locks a directory as `lock_directory` does, by a file that may lie elsewhere.

    The system releases the lock whatever ends the process. The file names the process that holds the lock, and is
    removed with it. Where the system has no locks, the file itself is the lock, and one that names a process of this
    machine that has ended is void.
    """
    descriptor = _take(file, directory, option)
    try:
        if descriptor is None:
            yield UNLOCKED
        else:
            _descriptors.add(descriptor)
            yield None
    finally:
        if descriptor is None or descriptor in _descriptors:  # not in a fork, which does not hold it
            with suppress(OSError):
                file.unlink()  # while it is held: who opened it before takes a new one
        if descriptor in _descriptors:
            _descriptors.discard(descriptor)
            os.close(descriptor)


def check_free(file: Path, directory: Path, *, option: str = "--out") -> None:
    """Raises if another process holds a lock; removes the file of one that nobody holds."""
    if file.exists():
        with lock_file(file, directory, option=option):
            pass


def _take(file: Path, directory: Path, option: str) -> int | None:
    """Returns the descriptor that holds the lock; None where the system has no locks."""
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)  # raises what the caller reports
        try:
            held = _lock(descriptor)
            if held is False:
                raise _busy(file, directory, option)
            if held is None:
                owner = Owner.parse(_said(file))
                if owner is not None and not owner.is_dead and owner != Owner.here():
                    raise _busy(file, directory, option)
            if held is None or _is_same(descriptor, file):
                with suppress(OSError):  # a full disk: the lock is held all the same
                    os.ftruncate(descriptor, 0)
                    os.write(descriptor, f"{Owner.here()}\n".encode())
                if held is None:
                    os.close(descriptor)
                    return None
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the file was removed by the process that held it: another one has its name


def _lock(descriptor: int) -> bool | None:
    """Returns whether the lock is held now; None if the system has none, as on some network file systems."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except HELD:
        return False
    except OSError:
        return None
    return True


def _is_same(descriptor: int, file: Path) -> bool:
    """Returns whether an open file still has its name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def _busy(file: Path, directory: Path, option: str) -> InputError:
    owner = Owner.parse(_said(file))
    named = "" if owner is None or owner.is_dead else f" ({owner})"
    return InputError(
        f"another run{named} is using {directory}; wait until it ends, or give another directory with {option}"
    )


def _said(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as opened:
            return opened.read(LONGEST)
    except (OSError, ValueError):
        return ""
