"""Lock: one run at a time in a directory."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fairbits.errors import InputError

if sys.platform != "win32":
    import fcntl

LOCK = ".lock"
UNLOCKED = "no locks are kept here: nothing stops a second run in the same directory"


@contextmanager
def locked(directory: Path) -> Iterator[str | None]:
    """Holds a directory against other runs; yields a note where the system keeps no locks.

    The system lets go of it whatever ends the process, so the file of the lock stays and says nothing.
    """
    with (directory / LOCK).open("ab") as file:
        yield None if _held(file, directory) else UNLOCKED


def _held(file: BinaryIO, directory: Path) -> bool:
    """Returns whether the lock is held now; False if there is no such thing, as on some network file systems."""
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(
            f"another run is using {directory}; wait until it has ended, or give another directory with --out"
        ) from None
    except OSError:
        return False
    return True
