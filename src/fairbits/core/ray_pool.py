"""The pool of a Ray cluster: it connects, submits tasks, collects results, and turns Ray's errors into ours."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fairbits.core.errors import FairbitsError, InputError
from fairbits.core.pool import AUTO, LOCAL, NEEDS_RAY, START_CLUSTER, Cluster, OnError, check_reachable
from fairbits.core.progress import Progress
from fairbits.core.ray_worker import Board, Job, do_task
from fairbits.core.task import Resources, TaskState, Work
from fairbits.core.units import gigabytes
from fairbits.core.version import __version__

try:
    import ray
    from ray import cloudpickle
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError:
    raise InputError(NEEDS_RAY) from None

Item = TypeVar("Item")
Result = TypeVar("Result")

HEALTH_SECONDS = 10.0
"""How long a cluster may take to say that it works."""
POLL_SECONDS = 1.0
READ_SECONDS = 5.0


@contextmanager
def connect(cluster: Cluster) -> Iterator["RayPool"]:
    """Yields the pool of a cluster; a cluster on this machine is started and stopped. Raises if none answers.

    If the caller has called `ray.init`, that connection is used, and stays.
    """
    if ray.is_initialized():
        yield RayPool(cluster)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anyone unless the user wants it
    options: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
    if cluster.address == LOCAL:
        options["include_dashboard"] = False
    else:
        _check_answers(cluster.address)
    try:
        ray.init(cluster.address, **options)
    except Exception as problem:  # each way to fail has its own class
        reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        raise InputError(f"the Ray cluster {cluster.address} cannot be used ({reason}); {START_CLUSTER}") from None
    try:
        # the thread that prints on stdout, where only results belong, what happens to machines; the watch shows it
        ray._private.worker._worker_logs_enabled = False
        yield RayPool(cluster)
    finally:
        ray.shutdown()


@dataclass
class RayPool:
    """A cluster that is connected; see `Pool`."""

    cluster: Cluster
    has_gpus: bool = field(init=False)
    _remote: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.has_gpus = ray.cluster_resources().get("GPU", 0) > 0
        # an error of a task would come again; only a task whose process has died is done again
        self._remote = ray.remote(max_retries=self.cluster.retries, retry_exceptions=False)(do_task)

    def run(
        self,
        tasks: Mapping[str, Item],
        work: Work[Item, Result],
        *,
        resources: Mapping[str, Resources],
        on_result: Callable[[str, Result], object],
        on_error: OnError | None = None,
        progress: Progress | None = None,  # noqa: ARG002  # the cluster has its own `watch`, as tasks run together
    ) -> None:
        """Submits all tasks at once, and hands over results as they come; see `Pool.run`."""
        if not tasks:
            return
        for needs in dict.fromkeys(resources[name] for name in tasks):
            _check_fits(needs)
        job = _job(work)
        names = {self._submit(job, name, item, resources[name]): name for name, item in tasks.items()}
        states = {name: TaskState(name) for name in tasks}
        try:
            for reference in _as_completed(list(names), lambda: self._refresh(job, states)):
                name = names[reference]
                self._refresh(job, states)
                try:
                    result = cloudpickle.loads(_result_of(reference, name, self.cluster.retries))
                except FairbitsError as problem:
                    states[name] = replace(states[name], status="failed", problem=str(problem))
                    if on_error is None:
                        raise
                    on_error(name, problem)
                else:
                    on_result(name, result)
                    states[name] = replace(states[name], status="done")
                self._show(states)
        except BaseException:
            for reference in names:
                with suppress(Exception):
                    ray.cancel(reference, force=True)
            raise
        finally:
            ray.kill(job.board)

    def _submit(self, job: Job, name: str, item: Any, needs: Resources) -> Any:
        """Returns a reference to the result of a task."""
        options = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "memory": needs.memory or None, "name": name}
        return self._remote.options(**options).remote(job, name, cloudpickle.dumps(item))

    def _refresh(self, job: Job, states: dict[str, TaskState]) -> None:
        """Brings the states up to date and shows them; without them the work goes on."""
        if self.cluster.watch is None:
            return
        with suppress(ray.exceptions.RayError):
            found = ray.get(job.board.read.remote(), timeout=READ_SECONDS)
            for name, (host, stage, done, total, attempts, seconds) in found.items():
                if states[name].status in ("waiting", "running"):
                    states[name] = TaskState(name, "running", host, stage, done, total, seconds, attempts)
        self._show(states)

    def _show(self, states: dict[str, TaskState]) -> None:
        if self.cluster.watch is not None:
            self.cluster.watch(list(states.values()))


def _as_completed(references: list[Any], meanwhile: Callable[[], None]) -> Iterator[Any]:
    """Yields references as their results arrive here, and calls `meanwhile` about once a second."""
    while references:
        ready, references = ray.wait(references, num_returns=1, timeout=POLL_SECONDS)
        if not ready:
            meanwhile()
        yield from ready


def _job(work: Work[Any, Any]) -> Job:
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)  # it lives as long as we
    board = ray.remote(Board).options(num_cpus=0, scheduling_strategy=here).remote()
    return Job(uuid.uuid4().hex, ray.put(cloudpickle.dumps(work)), board, os.getcwd(), __version__)


def _result_of(reference: Any, name: str, retries: int) -> bytes:
    """Returns the pickled result of a task; raises the error that the task raised, or an error that explains Ray's."""
    try:
        found: bytes = ray.get(reference)
        return found
    except ray.exceptions.RayTaskError as problem:
        if isinstance(problem.cause, Exception):
            raise problem.cause from problem
        raise
    except ray.exceptions.OutOfMemoryError as problem:
        raise FairbitsError(
            f"{name}: Ray stopped it because its machine ran out of memory ({_first_line(problem)}); use machines with "
            "more memory, or give each task more processors, so that fewer run at a time"
        ) from None
    except ray.exceptions.RayError as problem:
        raise FairbitsError(
            f"{name}: its process died {retries + 1} times, or its result was lost with its machine "
            f"({_first_line(problem)}); see Ray's logs on that machine, and run the same command again"
        ) from None


def _first_line(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0][:200]


def _check_answers(address: str) -> None:
    """Raises unless a Ray cluster answers at an address; `ray.init` alone would wait for minutes."""
    check_reachable(address)
    named = [] if address == AUTO else ["--address", address]
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", *named]
    start = time.monotonic()
    said = ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=HEALTH_SECONDS, check=False)
        if done.returncode == 0:
            return
        said = done.stderr
    except subprocess.TimeoutExpired:
        pass
    if "AuthenticationError" in said:
        raise InputError(
            f"the Ray cluster at {address} answers, but refuses this command: it requires an authentication token. "
            "Give this machine the token (see Ray's documentation on token authentication), or ask who runs the cluster"
        )
    waited = time.monotonic() - start
    raise InputError(f"no Ray cluster answers at {address} (waited {waited:.0f} s); {START_CLUSTER}")


def _check_fits(resources: Resources) -> None:
    """Raises if no machine of the cluster can take one task; Ray would wait for such a machine for ever."""
    found = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = {"CPU": resources.cpus, "GPU": resources.gpus, "memory": resources.memory}
    if any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in found):
        return
    machines = "; ".join(
        f"{node.get('CPU', 0):g} CPU, {node.get('GPU', 0):g} GPU, {gigabytes(node.get('memory', 0))}" for node in found
    )
    raise InputError(
        f"a task needs {resources.cpus:g} CPU, {resources.gpus:g} GPU and {gigabytes(resources.memory)} of memory, "
        f"but no machine of the Ray cluster has that much (machines: {machines[:300]}); add a larger one"
    )
