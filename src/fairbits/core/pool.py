"""Pools: something that does tasks. One works in this process; the other is a Ray cluster."""

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fairbits.core.errors import FairbitsError, InputError
from fairbits.core.progress import Progress
from fairbits.core.task import Resources, Watch, Work

Item = TypeVar("Item")
Result = TypeVar("Result")
OnError = Callable[[str, FairbitsError], None]

NEEDS_RAY = "--ray needs Ray, which is not installed here; install it with: pip install 'fairbits[ray]'"
AUTO, LOCAL = "auto", "local"
"""The addresses of the cluster that this machine belongs to, and of one that a command starts here for itself."""
START_CLUSTER = "start one with `ray start --head`, or give --ray local"
CONNECT_SECONDS = 5.0
"""How long a machine may take to accept a connection."""
RETRIES = 3
"""How often Ray begins a task again whose process or machine has died."""


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster and what every task gets there.

    `address`  host:port of the cluster's head; "auto" for the cluster that this machine belongs to; "local" to start
               one on this machine
    `cpus`     processors of a task, and as many threads
    `gpus`     GPUs of a task that computes on one; 0.5 puts two tasks on a GPU
    `retries`  how often a task is begun again whose process or machine has died
    `watch`    called about once a second with the states of all tasks
    """

    address: str = LOCAL
    cpus: float = 1.0
    gpus: float = 1.0
    retries: int = RETRIES
    watch: Watch | None = None

    def __post_init__(self) -> None:
        """Checks the values."""
        if not self.address.strip():
            raise InputError("the address of the Ray cluster is empty; give host:port, auto or local")
        for name, value in (("cpus", self.cpus), ("gpus", self.gpus)):
            if not value > 0 or (value > 1 and value != int(value)):
                raise InputError(f"{name} of a task is {value:g}; it must be a fraction of 1, or a whole number")


class Pool(Protocol):
    """Does tasks."""

    @property
    def cluster(self) -> Cluster | None:
        """The cluster; None if tasks are done in this process."""

    @property
    def has_gpus(self) -> bool:
        """Whether a cluster has any GPU."""

    def run(
        self,
        tasks: Mapping[str, Item],
        work: Work[Item, Result],
        *,
        resources: Mapping[str, Resources],
        on_result: Callable[[str, Result], object],
        on_error: OnError | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Does the tasks, which are given by name, and calls `on_result` in this process with each result.

        `resources` is what each task needs, by name.

        An error that the user can act on is raised, or goes to `on_error`, and the other tasks are done all the same.
        """


class ThisProcess:
    """The pool without a cluster: tasks are done in their order, one after the other."""

    cluster: Cluster | None = None
    has_gpus = False

    def run(
        self,
        tasks: Mapping[str, Item],
        work: Work[Item, Result],
        *,
        resources: Mapping[str, Resources],  # noqa: ARG002  # this process takes what it needs
        on_result: Callable[[str, Result], object],
        on_error: OnError | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Does the tasks; see `Pool.run`."""
        if not tasks:
            return
        with work.open(progress) as do:
            for name, item in tasks.items():
                try:
                    result = do(item, progress)
                except FairbitsError as problem:
                    if on_error is None:
                        raise
                    on_error(name, problem)
                else:
                    on_result(name, result)


def check_reachable(address: str) -> None:
    """Raises unless a machine accepts connections at the address of a cluster; needs no Ray."""
    if "://" in address:
        raise InputError(
            f"the Ray address is {address}; it must be host:port, auto or local. Run the command on a machine of the "
            "cluster, because that machine reads text and writes results"
        )
    if address in (AUTO, LOCAL):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(
            f"the Ray address is {address!r:.80}; it must be host:port, such as 10.0.0.1:6379, auto or local"
        )
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as problem:
        raise InputError(f"no Ray cluster answers at {address} ({problem}); {START_CLUSTER}") from None


@contextmanager
def open_pool(ray: str | Cluster | None) -> Iterator[Pool]:
    """Yields the pool of a Ray cluster, or of this process if `ray` is None; the connection is closed afterwards."""
    if ray is None:
        yield ThisProcess()
        return
    cluster = ray if isinstance(ray, Cluster) else Cluster(_address(ray))
    from fairbits.core.ray_pool import connect  # imports Ray, which is optional and takes seconds

    with connect(cluster) as pool:
        yield pool


def _address(ray: Any) -> str:
    if not isinstance(ray, str):
        raise InputError(f"ray is a {type(ray).__name__}; it must be the address of a cluster, such as local or auto")
    return ray
