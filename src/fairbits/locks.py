"""Locks: one process at a time works in a directory."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from fairbits.errors import InputError

LOCK = ".lock"
UNLOCKED = "this file system has no locks: nothing prevents a second run in the same directory"


@contextmanager
def lock_directory(directory: Path, *, option: str = "--out") -> Iterator[str | None]:
    """Locks a directory against other runs; yields a note if the file system has no locks.

    The system releases the lock whatever ends the process. The file of the lock stays, and names the process while
    it holds the lock. `option` is the one that names the directory on the command line.
    """
    file = directory / LOCK
    file.touch()  # raises what the caller reports if the directory cannot be written
    lock = FileLock(file)
    try:
        yield None if _acquire(lock, directory, option) else UNLOCKED
    finally:
        if lock.is_locked:
            _name_holder(lock, file, "")
        lock.release()


def _acquire(lock: BaseFileLock, directory: Path, option: str) -> bool:
    """Returns whether the lock is held now; False if the system has none, as on some network file systems."""
    file = directory / LOCK
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise InputError(
            f"another run{_holder(file)} is using {directory}; wait until it ends, "
            f"or give another directory with {option}"
        ) from None
    except (OSError, NotImplementedError):
        return False
    _name_holder(lock, file, f"process {os.getpid()} on {socket.gethostname()}\n")
    return True


def _name_holder(lock: BaseFileLock, file: Path, name: str) -> None:
    if not isinstance(lock, SoftFileLock):  # which keeps its own record in the file
        with suppress(OSError):  # Windows lets nobody write to it
            file.write_text(name, encoding="utf-8")


def _holder(file: Path) -> str:
    """Returns which process holds the lock, in parentheses, if its file says so."""
    try:
        found = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
    return f" ({found:.80})" if found.startswith("process ") else ""
