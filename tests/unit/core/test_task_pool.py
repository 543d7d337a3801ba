"""The pool that works in this process, and what is said where Ray cannot be used."""

import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec

import pytest

from fairbits.core.errors import FairbitsError, InputError
from fairbits.core.progress import Progress
from fairbits.core.task_pool import Cluster, Resources, _Board, open_pool

HAS_RAY = find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed: make test-ray")
WITHOUT_RAY = "import sys; sys.modules['ray'] = None; from fairbits.cli import main; sys.argv[1:] = {}; main()"


@dataclass
class Squares:
    """Work that squares numbers, and cannot square 3."""

    events: list[str] = field(default_factory=list)

    @contextmanager
    def open(self, progress: Progress | None = None) -> Iterator[Callable[[int, Progress | None], int]]:
        self.events.append("open" if progress is None else "open, with progress")

        def square(number: int, progress: Progress | None) -> int:
            self.events.append(str(number))
            if progress is not None:
                progress("squaring", 1, 2)
            if number == 3:
                raise InputError("3 cannot be squared")
            return number * number

        yield square
        self.events.append("close")


def test_tasks_are_done_in_order_with_the_work_opened_once() -> None:
    work, results, stages = Squares(), [], []
    with open_pool(None) as pool:
        pool.run(
            {"two": 2, "one": 1},
            work,
            resources={},
            on_result=lambda *result: results.append(result),
            progress=lambda *stage: stages.append(stage),
        )
    assert (pool.cluster, pool.has_gpus) == (None, False)
    assert results == [("two", 4), ("one", 1)]
    assert work.events == ["open, with progress", "2", "1", "close"]
    assert stages == [("squaring", 1, 2)] * 2


def test_an_error_ends_the_work_unless_it_is_taken() -> None:
    results: list[tuple[str, int]] = []
    problems: list[tuple[str, FairbitsError]] = []
    tasks = {str(number): number for number in (2, 3, 4)}
    with open_pool(None) as pool:
        with pytest.raises(InputError, match=r"^3 cannot be squared$"):
            pool.run(tasks, Squares(), resources={}, on_result=lambda *result: results.append(result))
        assert results == [("2", 4)]
        pool.run(
            tasks,
            Squares(),
            resources={},
            on_result=lambda *result: results.append(result),
            on_error=lambda *problem: problems.append(problem),
        )
    assert results[1:] == [("2", 4), ("4", 16)]
    assert [(name, str(problem)) for name, problem in problems] == [("3", "3 cannot be squared")]


def test_work_is_not_opened_for_nothing() -> None:
    work = Squares()
    with open_pool(None) as pool:
        pool.run({}, work, resources={}, on_result=print)
    assert work.events == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cluster(" "), "address of the Ray cluster is empty"),
        (lambda: Cluster(cpus=0), "cpus of a task is 0"),
        (lambda: Cluster(gpus=1.5), r"gpus of a task is 1\.5; it must be a fraction of 1, or a whole number"),
        (lambda: Cluster(gpus=float("nan")), "gpus of a task is nan"),
        (lambda: open_pool(3).__enter__(), "ray is a int; it must be the address"),
    ],
)
def test_clusters_that_cannot_be(make, message) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.long
def test_without_ray_the_error_says_how_to_install_it() -> None:
    arguments = ["compare", "embedded:tiny", "--policies", "rtn", "--ray", "local"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RAY.format(arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "pip install ray" in done.stderr
    assert "Traceback" not in done.stderr


@needs_ray
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://there:10001", "it must be host:port, auto or local"),
        ("there", "it must be host:port, such as"),
        ("there:", "it must be host:port, such as"),
    ],
)
def test_addresses_that_are_none(address, message) -> None:
    with pytest.raises(InputError, match=message), open_pool(address):
        pass


@needs_ray
def test_an_address_that_does_not_answer_is_an_error_at_once() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{server.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(InputError, match=rf"no Ray cluster answers at {address} .*ray start --head"):
            open_pool(address).__enter__()
        assert time.monotonic() - start < 20


@needs_ray
@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("ray.exceptions.AuthenticationError: RPC error", "answers, but refuses this command: it requires an auth"),
        ("ray.exceptions.RpcError: Timed out", "no Ray cluster answers at auto"),
    ],
)
def test_a_cluster_that_refuses_is_told_from_one_that_does_not_answer(monkeypatch, output, message) -> None:
    refused = subprocess.CompletedProcess([], 1, "", output)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: refused)
    with pytest.raises(InputError, match=message):
        open_pool("auto").__enter__()


def test_the_board_counts_attempts() -> None:
    board = _Board()
    board.begin("a")
    board.write("a", "here", "rounding", 1, 4)
    board.begin("a")
    (state,) = board.read().values()
    assert (state.status, state.host, state.stage, state.done, state.attempts) == ("running", "here", "rounding", 1, 2)
    assert 0 <= state.seconds < 10


def test_states_travel() -> None:
    resources = Resources(2, 0.5, 10)
    assert pickle.loads(pickle.dumps(resources)) == resources
