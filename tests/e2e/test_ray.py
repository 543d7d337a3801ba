"""Tasks on a real Ray cluster of two nodes on this machine, of which one is killed; needs Ray: make test-ray."""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from fairbits.api.compare import compare
from fairbits.core.errors import FairbitsError, InputError
from fairbits.core.progress import Progress
from fairbits.core.task_pool import Cluster, Resources, TaskState, open_pool

ray = pytest.importorskip("ray", reason="Ray is not installed: make test-ray")
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]  # the warnings are those of Ray itself

SMALL = {"languages": ["eng", "heb"], "group": 16, "tokens": 64, "evaluation_tokens": 64, "sequence": 64}
NEEDS = Resources(cpus=1, memory=1_000_000)
BAD, FATAL = "bad", "fatal"


@dataclass
class LoggedWork:
    """Work that writes a line at the beginning and at the end of every task, with the node that does it."""

    log: str
    seconds: float = 0.0

    @contextmanager
    def open(self, progress: Progress | None = None) -> Iterator[Callable[[str, Progress | None], str]]:
        del progress

        def do(item: str, progress: Progress | None) -> str:
            self.write("begin", item)
            if progress is not None:
                progress("sleeping", 1, 2)
            time.sleep(self.seconds)
            if item == BAD:
                raise InputError("bad is not good; give another")
            if item == FATAL:
                os._exit(1)
            self.write("end", item)
            return f"result of {item}"

        yield do

    def write(self, event: str, item: str) -> None:
        line = f"{event} {item} {ray.get_runtime_context().get_node_id()}\n"
        with open(self.log, "a") as file:  # one write: lines of two processes do not mix
            file.write(line)


def lines_of(log: Path) -> list[tuple[str, ...]]:
    return [tuple(line.split()) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of two nodes with one processor each; the test process belongs to the first."""
    from ray.cluster_utils import Cluster as Nodes

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # which workers cannot import
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node = {"num_cpus": 1, "memory": 4 * 10**9, "object_store_memory": 10**8, "include_dashboard": False}
    nodes = Nodes(initialize_head=True, head_node_args=node)
    nodes.second = nodes.add_node(num_cpus=1, memory=4 * 10**9, object_store_memory=10**8)
    yield nodes
    nodes.shutdown()


def run(address: str, work: LoggedWork, items: list[str], **options: Any) -> list[tuple[str, str]]:
    results: list[tuple[str, str]] = []
    with open_pool(
        Cluster(address, **{key: options.pop(key) for key in ("retries", "watch") if key in options})
    ) as pool:
        pool.run(
            {item: item for item in items},
            work,
            resources=dict.fromkeys(items, options.pop("needs", NEEDS)),
            on_result=lambda name, result: results.append((name, result)),
            **options,
        )
    return results


def test_a_node_is_killed_in_the_middle_and_nothing_is_lost_or_done_twice(cluster, tmp_path, capfd) -> None:
    log, items = tmp_path / "log", [f"task-{i}" for i in range(8)]
    second = cluster.second.node_id
    killed: list[str] = []

    def kill() -> None:
        """Kills the second node while it does its second task."""
        while len(there := [item for event, item, node in lines_of(log) if (event, node) == ("begin", second)]) < 2:
            time.sleep(0.05)
        time.sleep(0.3)
        cluster.remove_node(cluster.second, allow_graceful=False)
        killed.append(there[-1])

    seen: list[list[TaskState]] = []
    killer = Thread(target=kill, daemon=True)
    killer.start()
    results = run(cluster.address, LoggedWork(str(log), 1.5), items, watch=lambda states: seen.append(list(states)))
    killer.join(60)

    assert sorted(results) == [(item, f"result of {item}") for item in items]  # each once
    begun = Counter(item for event, item, _ in lines_of(log) if event == "begin")
    ended = Counter(item for event, item, _ in lines_of(log) if event == "end")
    assert ended == Counter(items)
    assert begun == Counter(items) + Counter(killed)  # the one that the node was doing was begun again, and no other
    assert len({node for _, _, node in lines_of(log)}) == 2
    final = {state.name: state for state in seen[-1]}
    assert all(state.status == "done" for state in final.values())
    assert {name for name, state in final.items() if state.attempts == 2} == set(killed)
    assert any(state.stage == "sleeping" for states in seen for state in states)
    assert capfd.readouterr().out == ""  # where only results belong


def test_errors_are_those_of_the_task_and_what_is_done_is_kept(cluster, tmp_path) -> None:
    problems: dict[str, FairbitsError] = {}
    work = LoggedWork(str(tmp_path / "log"))
    with pytest.raises(InputError, match=r"^bad is not good; give another$"):
        run(cluster.address, work, [BAD])
    results = run(cluster.address, work, [BAD, FATAL, "good"], retries=1, on_error=problems.__setitem__)
    assert results == [("good", "result of good")]
    assert str(problems[BAD]) == "bad is not good; give another"
    assert "its process died 2 times" in str(problems[FATAL])
    assert Counter(item for _, item, _ in lines_of(tmp_path / "log"))[FATAL] == 2
    with pytest.raises(InputError, match=r"needs 1 CPU, 1 GPU and 0\.00 GB of memory, but no machine .*: 1 CPU, 0 GPU"):
        run(cluster.address, work, ["good"], needs=Resources(gpus=1))


def test_a_comparison_is_the_same_as_without_ray(cluster, tmp_path, reading_model) -> None:
    model = reading_model("llama").directory
    options = {"policies": ["rtn", "gptq"], "bits": [4, 3], **SMALL}
    here = compare(model, **options)
    there = compare(model, **options, ray=Cluster(cluster.address), results=tmp_path / "trials")
    for mine, other in zip(here.entries, there.entries, strict=True):
        assert (mine.policy, mine.bits, mine.size_bytes) == (other.policy, other.bits, other.size_bytes)
        assert [plan.digest for plan in mine.plans] == [plan.digest for plan in other.plans]
        assert other.frame.values == pytest.approx(mine.frame.values, rel=1e-3, abs=1e-6)  # other threads, other sums
    assert there.notes == here.notes
    assert sum(path.is_dir() for path in (tmp_path / "trials").iterdir()) == 4
