"""Verbs in several processes of torchrun."""

import sys

import pytest

from fairbits.cli import command, terminal
from fairbits.core.errors import AlreadyReportedError, InputError
from fairbits.core.torchrun import Process, this_process


@pytest.fixture
def started(monkeypatch):
    """Returns the function that makes this the process of a rank, of two."""

    def started(rank: int) -> None:
        place = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        for name, value in {**place, "RANK": str(rank), "LOCAL_RANK": str(rank)}.items():
            monkeypatch.setenv(name, value)

    return started


def test_a_process_knows_its_rank(started, monkeypatch) -> None:
    assert this_process() == Process()
    started(1)
    assert this_process() == Process(1, 2, 1, 2)
    monkeypatch.delenv("MASTER_PORT")
    assert this_process() == Process()
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("RANK", "first")
    assert this_process() == Process()


def test_verbs_of_one_process_are_refused_by_the_first(started) -> None:
    command._check_processes("audit")
    started(0)
    command._check_processes("quantize")
    with pytest.raises(InputError, match="audit runs in one process, and torchrun has started 2; start it without"):
        command._check_processes("audit")
    started(1)
    with pytest.raises(AlreadyReportedError):
        command._check_processes("audit")


def test_other_processes_print_nothing_but_the_error_that_they_report(started, monkeypatch, capfd) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))  # restored in the end
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    started(1)
    terminal.silence()
    print("result")
    terminal.print_notes(["note"])
    terminal.print_error("cause")
    sys.stderr.close()
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "error: cause\n")
