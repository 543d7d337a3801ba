"""What a piece of work is, what a task of it needs, and how far it is."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from fairbits.core.progress import Progress

Item = TypeVar("Item", contravariant=True)
Result = TypeVar("Result", covariant=True)


class Work(Protocol[Item, Result]):
    """What all tasks of a job share, such as a model in memory. It must be picklable before it is opened."""

    def open(
        self, progress: Progress | None = None
    ) -> AbstractContextManager[Callable[[Item, Progress | None], Result]]:
        """Returns a context that yields the function from a task to its result.

        It is entered once in each process, which may then do many tasks.
        """


@dataclass(frozen=True)
class Resources:
    """What one task needs: processors (and as many threads), GPUs or a part of one, and bytes of memory."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory: int = 0


Status = Literal["waiting", "running", "done", "failed"]


@dataclass(frozen=True)
class TaskState:
    """How far a task is: where it runs, its stage, how often it was begun, and the seconds since then.

    `problem` says why it failed.
    """

    name: str
    status: Status = "waiting"
    host: str = ""
    stage: str = ""
    done: float = 0.0
    total: float = 0.0
    seconds: float = 0.0
    attempts: int = 0
    problem: str = ""


Watch = Callable[[Sequence[TaskState]], None]
"""Called about once a second with the states of all tasks, in their order."""
