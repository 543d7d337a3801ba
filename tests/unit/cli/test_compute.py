"""The device a command computes on; the table of tasks on a cluster, and the lines where there is no terminal."""

import io

import pytest
import torch
from rich.console import Console

from fairbits.cli import compute, terminal
from fairbits.cli.compute import ROWS, line_watch, state_table, summary
from fairbits.core.errors import InputError
from fairbits.core.task_pool import TaskState

STATES = [
    TaskState("rtn, 4 bits", "done", "one", "", 0, 0, 12.0, 1),
    TaskState("gptq, 4 bits", "running", "two", "rounding blocks", 3, 12, 4.5, 2),
    TaskState("gptq, 3 bits", "failed", "two", problem="too little text\x1b[2J", attempts=1),
    TaskState("fair, 4 bits"),
]


def shown(states: list[TaskState]) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(state_table(states).terminal())
    return console.export_text()


def test_each_task_has_a_row_with_where_it_is_and_how_far() -> None:
    _, done, running, failed, waiting, count = shown(STATES).splitlines()
    assert done.split()[:5] == ["rtn,", "4", "bits", "done", "one"]
    for part in ("two", "rounding blocks (attempt 2)", "25%", "4.5 s"):
        assert part in running
    assert r"too little text\u001b[2J" in failed
    assert waiting.split() == ["fair,", "4", "bits", "waiting"]
    assert count.strip() == "1 of 4 done, 1 running, 1 waiting, 1 failed, 1 restarted"


def test_of_many_tasks_those_that_run_are_shown_and_all_are_counted() -> None:
    many = [TaskState(f"task {i}", "done") for i in range(300)] + [TaskState("last", "running", attempts=1)]
    assert len(shown(many).splitlines()) == ROWS + 2
    assert "last" in shown(many)
    assert summary(many) == "300 of 301 done, 1 running"


def test_without_a_terminal_lines_say_what_starts_restarts_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(compute, "print_notes", lines.extend)
    show = line_watch()
    for state in (
        TaskState("a"),
        TaskState("a", "running", "one", attempts=1),
        TaskState("a", "running", "one", attempts=1, seconds=3),
        TaskState("a", "running", "two", attempts=2),
        TaskState("a", "done", "two", attempts=2, seconds=4.0),
        TaskState("a", "done", "two", attempts=2, seconds=4.0),
    ):
        show([state])
    assert lines == [
        "a: started on one",
        "a: its process died; restarted on two",
        "a: done in 4.0 s (1 of 1)",
    ]


@pytest.fixture
def log(monkeypatch) -> io.StringIO:
    """What the log of a CI system has been sent on stderr, where colour is wanted all the same."""
    file = io.StringIO()
    monkeypatch.setattr(terminal, "err", Console(file=file, width=80, force_terminal=True, color_system=None))
    return file


def test_a_gpu_is_named_on_stderr_and_the_processor_is_not(log, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    assert compute.choose_device("cpu") == "cpu"
    assert compute.choose_device("auto", earlier="cpu") == "cpu"
    assert log.getvalue() == ""
    assert compute.choose_device("auto") == "cuda"
    assert "device: cuda (NVIDIA H200)" in log.getvalue()


COMMANDS = {
    "compare": ("fairbits.api.compare.compare", ["embedded:tiny", "--policies", "rtn"]),
    "evaluate": ("fairbits.api.evaluate.evaluate", ["embedded:tiny", "--reference", "embedded:tiny"]),
    "generate": ("fairbits.serve.overlays.adaptive_model.AdaptiveModel", ["embedded:tiny", "All"]),
    "overlay": ("fairbits.api.overlay.overlay", ["embedded:tiny", "--base", "embedded:tiny"]),
    "plan": ("fairbits.api.make_plan.plan", ["embedded:tiny"]),
    "quantize": ("fairbits.api.quantize.check_quantize", ["embedded:tiny", "--out", "no-such-directory"]),
    "research": ("fairbits_research.experiments.all_experiments.Laboratory", ["bounds"]),
    "run": ("fairbits.api.run.many_models.run_many", ["--out", "no-such-directory"]),
    "serve": ("fairbits.serve.overlays.adaptive_model.AdaptiveModel", ["embedded:tiny", "--port", "0"]),
    "sweep": ("fairbits.api.sweep.sweep", ["embedded:tiny"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_computes_on_the_gpu_by_default_and_says_so_on_stderr(name, command, monkeypatch) -> None:
    """And on stdout there is nothing of it, so that --json stays JSON."""
    asked = []

    def stop(*arguments, device=None, **_):
        asked.append(device if device is not None else arguments[0].device)
        raise InputError("far enough")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    target, arguments = COMMANDS[name]
    monkeypatch.setattr(target, stop)
    code, printed, errors = command(name, *arguments, "--json")
    assert (code, printed) == (2, ""), errors
    assert "device: cuda (NVIDIA H200)\n" in errors
    assert "far enough" in errors
    assert asked == ["cuda"]
