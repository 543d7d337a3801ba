"""The table of tasks on a cluster, and the lines where there is no terminal."""

import io

import pytest
from rich.console import Console

from fairbits.cli import task_progress as module
from fairbits.cli.task_progress import ROWS, line_watch, state_table, summary
from fairbits.core.task_pool import TaskState

STATES = [
    TaskState("rtn, 4 bits", "done", "one", "", 0, 0, 12.0, 1),
    TaskState("gptq, 4 bits", "running", "two", "rounding blocks", 3, 12, 4.5, 2),
    TaskState("gptq, 3 bits", "failed", "two", problem="too little text\x1b[2J", attempts=1),
    TaskState("fair, 4 bits"),
]


def shown(states: list[TaskState]) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(state_table(states))
    return console.export_text()


def test_each_task_has_a_row_with_where_it_is_and_how_far() -> None:
    _, done, running, failed, waiting = shown(STATES).splitlines()
    assert done.split()[:5] == ["rtn,", "4", "bits", "done", "one"]
    for part in ("two", "rounding blocks (attempt 2)", "25%", "4.5 s"):
        assert part in running
    assert r"too little text\u001b[2J" in failed
    assert waiting.split() == ["fair,", "4", "bits", "waiting"]


def test_of_many_tasks_those_that_run_are_shown_and_all_are_counted() -> None:
    many = [TaskState(f"task {i}", "done") for i in range(300)] + [TaskState("last", "running", attempts=1)]
    assert len(shown(many).splitlines()) == ROWS + 1
    assert "last" in shown(many)
    assert summary(many) == "300 of 301 done, 1 running"


def test_without_a_terminal_lines_say_what_begins_begins_again_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(module, "print_notes", lines.extend)
    show = line_watch()
    for each in (
        TaskState("a"),
        TaskState("a", "running", "one", attempts=1),
        TaskState("a", "running", "one", attempts=1, seconds=3),
        TaskState("a", "running", "two", attempts=2),
        TaskState("a", "done", "two", attempts=2, seconds=4.0),
        TaskState("a", "done", "two", attempts=2, seconds=4.0),
    ):
        show([each])
    assert lines == [
        "a: begun on one",
        "a: its process died; begun again on two",
        "a: done in 4.0 s (1 of 1)",
    ]
