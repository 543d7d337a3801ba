"""What happens in a process that Ray has started: the work is opened once, and then does one task after the other."""

import os
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.core.version import __version__

EVERY = 0.5
"""Seconds between two reports of a task."""


@dataclass(frozen=True)
class Job:
    """What all tasks of a job share: the pickled work in Ray's object store, and where and by whom it was begun."""

    number: str
    work: Any  # a reference to bytes; nested, so that Ray does not fetch it before the function is called
    board: Any
    directory: str
    version: str


@dataclass
class _Opened:
    """The work that this process has open."""

    number: str = ""
    do: Callable[[Any, Progress | None], Any] | None = None
    stack: ExitStack = field(default_factory=ExitStack)


_opened = _Opened()


def do_task(job: Job, name: str, item: bytes) -> bytes:
    """Returns the pickled result of a task, after opening the work if this process has not done so."""
    from ray import cloudpickle

    if job.version != __version__:
        raise InputError(
            f"{socket.gethostname()} has fairbits {__version__}, but the command was given to fairbits {job.version}; "
            "every machine of the cluster must have the same version"
        )
    _settle(job)
    report = _reporter(job, name)
    report("starting", 0, 0)
    if _opened.number != job.number:
        _open(job, report)
    assert _opened.do is not None
    result: bytes = cloudpickle.dumps(_opened.do(cloudpickle.loads(item), report))  # not NumPy arrays in Ray's memory
    return result


class Board:
    """How far all tasks are, in a process of its own: workers write, and the process that gave the tasks reads."""

    def __init__(self) -> None:
        self._states: dict[str, tuple[str, str, float, float]] = {}
        self._begun: dict[str, list[float]] = {}

    def begin(self, name: str) -> None:
        """Counts an attempt."""
        self._begun.setdefault(name, []).append(time.time())

    def write(self, name: str, host: str, stage: str, done: float, total: float) -> None:
        """Keeps where a task runs and how far it is."""
        self._states[name] = (host, stage, done, total)

    def read(self) -> dict[str, tuple[str, str, float, float, int, float]]:
        """Returns host, stage, done, total, attempts and the seconds since the last of them began, by task."""
        now = time.time()
        return {
            name: (*self._states.get(name, ("", "", 0.0, 0.0)), len(begun), now - begun[-1])
            for name, begun in self._begun.items()
        }


def _settle(job: Job) -> None:
    """Takes over the directory of the command, for relative paths, and the number of threads that Ray allows."""
    with suppress(OSError):  # this machine may not have it
        os.chdir(job.directory)
    if threads := os.environ.get("OMP_NUM_THREADS"):  # Ray sets it to the processors of the task
        os.environ.setdefault("NUMBA_NUM_THREADS", threads)


def _open(job: Job, report: Progress) -> None:
    import ray
    from ray import cloudpickle

    _opened.stack.close()  # first, so that two models are never in memory
    _opened.number, _opened.do, _opened.stack = "", None, ExitStack()
    work = cloudpickle.loads(ray.get(job.work))
    _opened.do = _opened.stack.enter_context(work.open(report))
    _opened.number = job.number


def _reporter(job: Job, name: str) -> Progress:
    host, last = socket.gethostname(), 0.0
    stage_before = ""
    job.board.begin.remote(name)

    def report(stage: str, done: float, total: float) -> None:
        nonlocal last, stage_before
        now = time.monotonic()
        if stage != stage_before or now - last >= EVERY:
            last, stage_before = now, stage
            job.board.write.remote(name, host, stage, done, total)

    return report
