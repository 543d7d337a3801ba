"""Commands are imported when they are called, and run in one process or several."""

import sys
from importlib.metadata import EntryPoint

import pytest
import typer

from fairbits.cli import app, lazy_group, terminal
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


def test_commands_of_one_process_are_refused_by_the_first(started) -> None:
    lazy_group._check_processes("audit")
    started(0)
    lazy_group._check_processes("quantize")
    with pytest.raises(InputError, match="audit runs in one process, and torchrun has started 2; start it without"):
        lazy_group._check_processes("audit")
    started(1)
    with pytest.raises(AlreadyReportedError):
        lazy_group._check_processes("audit")


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


def test_every_command_is_listed_with_the_first_lines_of_its_docstring() -> None:
    points = [point for entry_points in lazy_group.find_commands().values() for point in entry_points]
    assert len(points) == len({point.name for point in points}) > 20
    assert {"research", "theory"} <= {point.name for point in points}  # of another package
    for point in points:
        assert lazy_group.docstring(point).partition("\n\n")[0].endswith(".")


def test_a_docstring_is_read_without_an_import(tmp_path, monkeypatch) -> None:
    (tmp_path / "slow_module.py").write_text(
        'raise ImportError\n\ndef tool() -> None:\n    """Do it.\n\n    More."""\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert lazy_group.docstring(EntryPoint("tool", "slow_module:tool", "fairbits.commands")) == "Do it.\n\nMore."
    assert lazy_group.docstring(EntryPoint("tool", "slow_module:other", "fairbits.commands")) == ""


def test_a_command_that_cannot_be_imported_ends_in_one_line(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "broken_module.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    group = typer.main.get_command(app)
    group.commands["tool"] = lazy_group.LazyCommand(EntryPoint("tool", "broken_module:tool", ""), "Research")
    with pytest.raises(SystemExit) as ended:
        group(["tool"], obj={})
    assert ended.value.code == 3
    assert "No module named 'no_such_package'" in capsys.readouterr().err
