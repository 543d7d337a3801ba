"""Tasks: the same work on many items, in this process or as Ray tasks, whose results come as they are finished.

Work is opened once in each process, with its model, and then does one task after the other. Ray starts a task again if
its process or machine dies; an error of the task itself would come again, so it is raised here.
"""

import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

from fairbits.core.errors import FairbitsError, InputError
from fairbits.core.progress import Progress
from fairbits.core.units import gigabytes
from fairbits.core.version import __version__

NEEDS_RAY = "--ray needs Ray, which is not installed here; install it: pip install ray"
AUTO, LOCAL = "auto", "local"
"""The addresses of the cluster that this machine belongs to, and of one that a command starts here for itself."""
START_CLUSTER = "start one with `ray start --head`, or give --ray local"
CONNECT_SECONDS, HEALTH_SECONDS = 5.0, 10.0
"""How long a machine may take to accept a connection, and a cluster to say that it works."""
POLL_SECONDS, READ_SECONDS, REPORT_SECONDS = 1.0, 5.0, 0.5
"""Seconds between two looks at the tasks, for which the states are waited, and between two reports of a task."""

Item = TypeVar("Item", contravariant=True)
Result = TypeVar("Result", covariant=True)


class Work(Protocol[Item, Result]):
    """What all tasks share, such as a model in memory. It must be picklable before it is opened."""

    def open(
        self, progress: Progress | None = None
    ) -> AbstractContextManager[Callable[[Item, Progress | None], Result]]:
        """Returns a context that yields the function from an item to its result."""


@dataclass(frozen=True)
class Resources:
    """What one task needs: processors (and as many threads), GPUs or a part of one, and bytes of memory."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory: int = 0


@dataclass(frozen=True)
class TaskState:
    """How far a task is: where it runs, its stage, how often it was begun, the seconds since then, why it failed."""

    name: str
    status: Literal["waiting", "running", "done", "failed"] = "waiting"
    host: str = ""
    stage: str = ""
    done: float = 0.0
    total: float = 0.0
    seconds: float = 0.0
    attempts: int = 0
    problem: str = ""


Results = Generator[tuple[str, Any], None, None]
"""Names and results of tasks, or errors that the user can act on."""
Watch = Callable[[Sequence[TaskState]], None]
"""Called about once a second with the states of all tasks, in their order."""
OnError = Callable[[str, FairbitsError], None]


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster and what every task gets there.

    `address`  host:port of the cluster's head; "auto" for the cluster that this machine belongs to; "local" to start
               one on this machine
    `cpus`     processors of a task, and as many threads
    `gpus`     GPUs of a task that computes on one; 0.5 puts two tasks on a GPU
    `retries`  how often a task is begun again whose process or machine has died
    """

    address: str = LOCAL
    cpus: float = 1.0
    gpus: float = 1.0
    retries: int = 3
    watch: Watch | None = None

    def __post_init__(self) -> None:
        """Checks the values."""
        if not self.address.strip():
            raise InputError("the address of the Ray cluster is empty; give host:port, auto or local")
        for name, value in (("cpus", self.cpus), ("gpus", self.gpus)):
            if not value > 0 or (value > 1 and value != int(value)):
                raise InputError(f"{name} of a task is {value:g}; it must be a fraction of 1, or a whole number")


@dataclass(frozen=True)
class TaskPool:
    """Does tasks: in this process, or on a cluster that is connected; `has_gpus` is of the cluster."""

    cluster: Cluster | None = None
    has_gpus: bool = False

    def run(
        self,
        tasks: Mapping[str, Any],
        work: Work[Any, Any],
        *,
        resources: Mapping[str, Resources],
        on_result: Callable[[str, Any], object],
        on_error: OnError | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Does the tasks, which are given by name, and calls `on_result` in this process with each result.

        `resources` is what each task needs on a cluster, by name; `progress` is for tasks in this process. An error
        that the user can act on is raised, or goes to `on_error`, and the other tasks are done all the same.
        """
        if not tasks:
            return
        cluster = self.cluster
        done = _here(tasks, work, progress) if cluster is None else _on_ray(tasks, work, resources, cluster)
        with closing(done) as results:
            for name, result in results:
                if not isinstance(result, FairbitsError):
                    on_result(name, result)
                elif on_error is None:
                    raise result
                else:
                    on_error(name, result)


def _here(tasks: Mapping[str, Any], work: Work[Any, Any], progress: Progress | None) -> Results:
    """Yields the results of the tasks, done one after the other."""
    with work.open(progress) as do:
        for name, item in tasks.items():
            try:
                result = do(item, progress)
            except FairbitsError as problem:
                result = problem
            yield name, result


def _on_ray(
    tasks: Mapping[str, Any], work: Work[Any, Any], resources: Mapping[str, Resources], cluster: Cluster
) -> Results:
    """Submits all tasks at once, and yields results as they come; tasks are cancelled if not all are wanted."""
    ray, watch = _import_ray(), cluster.watch or (lambda _states: None)
    for needs in dict.fromkeys(resources[name] for name in tasks):
        _check_fits(ray, needs)
    # on the machine of this process, with which it must end
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=False
    )
    board = ray.remote(_Board).options(num_cpus=0, scheduling_strategy=here).remote()
    pickled = ray.put(ray.cloudpickle.dumps(work))
    job = _SharedWork(uuid.uuid4().hex, pickled, board, os.getcwd(), __version__)
    remote = ray.remote(max_retries=cluster.retries, retry_exceptions=False)(_do_task)
    names = {}
    for name, item in tasks.items():
        needs = resources[name]
        options = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "memory": needs.memory or None, "name": name}
        names[remote.options(**options).remote(job, name, ray.cloudpickle.dumps(item))] = name
    states, waiting = {name: TaskState(name) for name in tasks}, list(names)
    try:
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=POLL_SECONDS)
            with suppress(ray.exceptions.RayError):  # without states the work goes on
                for name, state in ray.get(board.read.remote(), timeout=READ_SECONDS).items():
                    if states[name].status in ("waiting", "running"):
                        states[name] = state
            for reference in ready:
                name = names[reference]
                result = _result(ray, reference, name, cluster.retries)
                problem = str(result) if isinstance(result, FairbitsError) else ""
                yield name, result
                states[name] = replace(states[name], status="failed" if problem else "done", problem=problem)
            watch(list(states.values()))
    finally:
        for reference in waiting:
            with suppress(Exception):
                ray.cancel(reference, force=True)
        ray.kill(board)


@contextmanager
def open_pool(ray: str | Cluster | None) -> Iterator[TaskPool]:
    """Yields the pool of a Ray cluster, or of this process if `ray` is None; the connection is closed afterwards.

    A cluster on this machine is started and stopped. If the caller has called `ray.init`, that connection is used, and
    stays.
    """
    if ray is None:
        yield TaskPool()
        return
    if not isinstance(ray, str | Cluster):
        raise InputError(f"ray is a {type(ray).__name__}; it must be the address of a cluster, such as local or auto")
    cluster, library = ray if isinstance(ray, Cluster) else Cluster(ray), _import_ray()
    with ExitStack() as stack:
        if not library.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anyone unless the user wants it
            if cluster.address != LOCAL:
                _check_answers(cluster.address)
            options = {"include_dashboard": False} if cluster.address == LOCAL else {}
            try:
                library.init(cluster.address, logging_level="error", log_to_driver=False, **options)
            except Exception as problem:  # each way to fail has its own class
                reason = _first_line(problem)
                raise InputError(
                    f"the Ray cluster {cluster.address} cannot be used ({reason}); {START_CLUSTER}"
                ) from None
            stack.callback(library.shutdown)
            # the thread that prints on stdout, where only results belong, what happens to machines; the watch shows it
            library._private.worker._worker_logs_enabled = False
        yield TaskPool(cluster, library.cluster_resources().get("GPU", 0) > 0)


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


def _import_ray() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise InputError(NEEDS_RAY) from None
    return ray


def _check_answers(address: str) -> None:
    """Raises unless a Ray cluster answers at an address; `ray.init` alone would wait for minutes."""
    check_reachable(address)
    named = [] if address == AUTO else ["--address", address]
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", *named]
    start, errors = time.monotonic(), ""
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=HEALTH_SECONDS, check=False)
        if done.returncode == 0:
            return
        errors = done.stderr
    if "AuthenticationError" in errors:
        raise InputError(
            f"the Ray cluster at {address} answers, but refuses this command: it requires an authentication token. "
            "Give this machine the token (see Ray's documentation on token authentication), or ask who runs the cluster"
        )
    waited = time.monotonic() - start
    raise InputError(f"no Ray cluster answers at {address} (waited {waited:.0f} s); {START_CLUSTER}")


def _check_fits(ray: Any, resources: Resources) -> None:
    """Raises if no machine of the cluster can take one task; Ray would wait for such a machine for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = {"CPU": resources.cpus, "GPU": resources.gpus, "memory": resources.memory}
    if any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes):
        return
    machines = "; ".join(
        f"{node.get('CPU', 0):g} CPU, {node.get('GPU', 0):g} GPU, {gigabytes(node.get('memory', 0))}" for node in nodes
    )
    raise InputError(
        f"a task needs {resources.cpus:g} CPU, {resources.gpus:g} GPU and {gigabytes(resources.memory)} of memory, "
        f"but no machine of the Ray cluster has that much (machines: {machines[:300]}); add a larger one"
    )


def _result(ray: Any, reference: Any, name: str, retries: int) -> Any:
    """Returns the result of a task, or an error that the user can act on: its own, or one that explains Ray's."""
    try:
        return ray.cloudpickle.loads(ray.get(reference))
    except ray.exceptions.RayTaskError as problem:
        if isinstance(problem.cause, FairbitsError):
            return problem.cause
        if isinstance(problem.cause, Exception):
            raise problem.cause from problem
        raise
    except ray.exceptions.OutOfMemoryError as problem:
        return FairbitsError(
            f"{name}: Ray stopped it because its machine ran out of memory ({_first_line(problem)}); use machines with "
            "more memory, or give each task more processors, so that fewer run at a time"
        )
    except ray.exceptions.RayError as problem:
        return FairbitsError(
            f"{name}: its process died {retries + 1} times, or its result was lost with its machine "
            f"({_first_line(problem)}); see Ray's logs on that machine, and run the same command again"
        )


def _first_line(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0][:200]


# what happens in a process that Ray has started


@dataclass(frozen=True)
class _SharedWork:
    """What all tasks share: the pickled work in Ray's object store, and where and by whom it was begun."""

    number: str
    work: Any  # a reference to bytes; nested, so that Ray does not fetch it before the function is called
    board: Any
    directory: str
    version: str


_opened: dict[str, tuple[Callable[[Any, Progress | None], Any], ExitStack]] = {}
"""The work that this process has open, by its number."""


def _do_task(job: _SharedWork, name: str, item: bytes) -> bytes:
    """Returns the pickled result of a task, after opening the work if this process has not done so."""
    ray = _import_ray()
    if job.version != __version__:
        raise InputError(
            f"{socket.gethostname()} has fairbits {__version__}, but the command was given to fairbits {job.version}; "
            "every machine of the cluster must have the same version"
        )
    with suppress(OSError):  # this machine may not have the directory of the command, which is for relative paths
        os.chdir(job.directory)
    if threads := os.environ.get("OMP_NUM_THREADS"):  # Ray sets it to the processors of the task
        os.environ.setdefault("NUMBA_NUM_THREADS", threads)
    job.board.begin.remote(name)
    host, last, last_stage = socket.gethostname(), 0.0, ""

    def report(stage: str, done: float, total: float) -> None:
        nonlocal last, last_stage
        now = time.monotonic()
        if stage != last_stage or now - last >= REPORT_SECONDS:
            last, last_stage = now, stage
            job.board.write.remote(name, host, stage, done, total)

    report("starting", 0, 0)
    if job.number not in _opened:
        for _, stack in _opened.values():
            stack.close()  # first, so that two models are never in memory
        _opened.clear()
        stack = ExitStack()
        do = stack.enter_context(ray.cloudpickle.loads(ray.get(job.work)).open(report))
        _opened[job.number] = do, stack
    do, _ = _opened[job.number]
    result: bytes = ray.cloudpickle.dumps(do(ray.cloudpickle.loads(item), report))  # not NumPy arrays in Ray's memory
    return result


class _Board:
    """How far all tasks are, in a process of its own: workers write, and the process that gave the tasks reads."""

    def __init__(self) -> None:
        self._states: dict[str, TaskState] = {}
        self._begun: dict[str, float] = {}

    def begin(self, name: str) -> None:
        """Counts an attempt."""
        state = self._states.get(name, TaskState(name, "running"))
        self._states[name] = replace(state, attempts=state.attempts + 1)
        self._begun[name] = time.time()

    def write(self, name: str, host: str, stage: str, done: float, total: float) -> None:
        """Keeps where a task runs and how far it is."""
        self._states[name] = replace(self._states[name], host=host, stage=stage, done=done, total=total)

    def read(self) -> dict[str, TaskState]:
        """Returns the states of the tasks that have begun, with the seconds since their last attempt."""
        now = time.time()
        return {name: replace(state, seconds=now - self._begun[name]) for name, state in self._states.items()}
