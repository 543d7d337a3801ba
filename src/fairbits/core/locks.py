"""Locks: one process at a time works in a directory, and a process that has ended keeps nobody out.

filelock takes the lock. The file names the process that holds it, and is removed with it.
"""

import errno
import os
import re
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from fairbits.core.errors import InputError
from fairbits.core.files import LOCK

UNLOCKED = "this file system has no locks: only runs on the same machine are kept apart"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
WAIT_S = 0.2  # seconds until a lock counts as taken: a process that ends removes the file first
HOLDER = re.compile(r"(\d{1,10})\n(\S{1,255})(\n.*)?", re.DOTALL)  # process and machine, as SoftFileLock writes them


@contextmanager
def lock_directory(directory: Path, *, option: str = "--out") -> Iterator[str | None]:
    """Locks a directory, named by `option`, against other runs; yields a note if the file system has no locks."""
    with lock_file(directory / LOCK, directory, option=option) as note:
        yield note


@contextmanager
def lock_file(file: Path, directory: Path, *, option: str = "--out") -> Iterator[str | None]:
    """Locks a directory as `lock_directory` does, by a file that may be elsewhere."""
    try:
        lock = _take(file)
    except Timeout:
        holder = _holder(file)
        raise InputError(
            f"another run{holder} is using {directory}; wait until it ends, or give another directory with {option}"
        ) from None
    try:
        yield UNLOCKED if isinstance(lock, SoftFileLock) else None
    finally:
        if lock.is_locked:  # not so in a fork
            with suppress(OSError):
                file.unlink()  # while it is held: whoever has opened it takes a new one
            lock.release()


def check_free(file: Path, directory: Path) -> None:
    """Raises if another process holds a lock; removes the file of one that nobody holds."""
    if file.exists():
        with lock_file(file, directory):
            pass


def _take(file: Path) -> BaseFileLock:
    lock: BaseFileLock = FileLock(file, timeout=WAIT_S, thread_local=False)
    try:
        with warnings.catch_warnings(action="ignore"):  # on the change to a soft lock
            lock.acquire()
    except Timeout:
        raise
    except OSError as problem:
        if problem.errno not in NO_LOCKS:
            raise
        if not file.stat().st_size:  # what the attempt made
            file.unlink()
        lock = SoftFileLock(file, timeout=WAIT_S, thread_local=False)
        lock.acquire()
    if not isinstance(lock, SoftFileLock):
        with suppress(OSError):  # a full disk: the lock is held all the same
            file.write_text(f"{os.getpid()}\n{socket.gethostname()}\n", encoding="utf-8")
    return lock


def _holder(file: Path) -> str:
    with suppress(OSError, ValueError), file.open(encoding="utf-8") as opened:
        if (match := HOLDER.fullmatch(opened.read(400))) is not None:
            return f" (process {match[1]} on {match[2]})"
    return ""
