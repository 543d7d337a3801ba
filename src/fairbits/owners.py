"""Which process something on disk belongs to, and whether that process still lives."""

import os
import re
import socket
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

import psutil

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
