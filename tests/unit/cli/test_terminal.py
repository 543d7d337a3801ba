import io
import os
import subprocess
import sys

import pytest
from rich.console import Console

from fairbits.cli import terminal
from fairbits.core.progress import StageName


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch) -> io.StringIO:
    """What a terminal of 80 columns has been sent on stderr."""
    file = Terminal()
    console = Console(file=file, width=80, force_terminal=True, color_system=None, _environ={"TERM": "xterm"})
    monkeypatch.setattr(terminal, "err", console)
    return file


@pytest.fixture
def log(monkeypatch) -> io.StringIO:
    """What the log of a CI system has been sent on stderr, where colour is wanted all the same."""
    file = io.StringIO()
    monkeypatch.setattr(terminal, "err", Console(file=file, width=80, force_terminal=True, color_system=None))
    return file


def test_stages_show_what_is_done_how_much_and_how_fast(screen) -> None:
    with terminal.stages("opening") as show:
        show("reading text", 500, 2000)
        show("reading weights", 13_000_000, 26_000_000)
    sent = screen.getvalue()
    assert "reading weights" in sent
    assert "13 MB of 26 MB" in sent
    assert not sent.rstrip().endswith("M")  # the line is taken away in the end


def test_what_is_done_cannot_steer_the_terminal(screen) -> None:
    with terminal.stages("opening") as show:
        show("[red]a\x1b[2Jb", 1, 2)
    assert r"[red]a\u001b[2Jb" in screen.getvalue()


def test_a_log_has_one_line_per_stage(log) -> None:
    with terminal.stages("opening") as show:
        for done in range(3):
            show("reading text", done, 2)
        show("reading\x1b[2J weights", 1, 2)
    assert log.getvalue() == "opening …\nreading text …\nreading\\u001b[2J weights …\n"


def test_a_dumb_terminal_has_lines_too(monkeypatch) -> None:
    file = Terminal()
    monkeypatch.setattr(terminal, "err", Console(file=file, force_terminal=True, _environ={"TERM": "dumb"}))
    with terminal.stages("opening") as show:
        show("reading text", 1, 2)
    assert file.getvalue() == "opening …\nreading text …\n"


def test_a_long_stage_says_every_half_minute_how_far_it_is(log) -> None:
    times = iter([0.0, 10.0, 31.0, 40.0, 62.0])
    show = terminal.line_printer(clock=lambda: next(times))
    for done in (0, 100, 310, 400, 620):
        show("reading text", done, 1240)
    assert log.getvalue().splitlines() == [
        "reading text …",
        "reading text, 310 of 1.2k tokens, 10 tokens/s, about 2 min left",
        "reading text, 620 of 1.2k tokens, 10 tokens/s, about 62 s left",
    ]


def test_a_slow_stage_says_the_time_of_one_and_what_is_left_in_all() -> None:
    stage = StageName.after("stage 2 of 5", "rounding blocks", later=2.0)
    pace = terminal.Pace(stage, began=0.0, done=1)  # an earlier run has done one
    assert pace.words(1.4, 18, 0.5) == "1 of 18 blocks"
    assert pace.words(4, 18, 36.0) == ("4 of 18 blocks, 12 s per block, about 3 min left in this stage, 10 min in all")
    assert terminal.Pace("measuring", 0.0).words(30, 60, 10.0) == "30 of 60, 3/s, about 10 s left"
    assert terminal.Pace("measuring", 0.0).words(0, 0, 10.0) == ""


@pytest.mark.parametrize("kind", ["screen", "log"])
def test_quiet_leaves_errors_alone(kind, request, capsys) -> None:
    file = request.getfixturevalue(kind)
    terminal.hush(True)
    with terminal.stages("opening") as show:
        show("reading text", 1, 2)
    terminal.print_done("audit.json", 3.0)
    terminal.print_notes(["a note"])
    assert file.getvalue() == ""
    terminal.print_error("it [red]broke\x1b[2J")
    assert capsys.readouterr().err == "error: it [red]broke\\u001b[2J\n"
    terminal.hush(False)
    terminal.print_notes(["a note"])
    assert file.getvalue() == "a note\n"


def test_done_says_how_long_it_took(log) -> None:
    terminal.print_done("audit.json", 38.4)
    assert log.getvalue() == "audit.json               38 s\n"


def test_notes_go_to_stderr_in_one_line_each(capsys) -> None:
    terminal.print_notes(["[red]" + "long " * 40, "two\nlines"])
    printed, errors = capsys.readouterr()
    assert printed == ""
    assert errors == "[red]" + "long " * 40 + "\ntwo\\u000alines\n"


@pytest.mark.parametrize("printing", ["terminal.print_json(list(range(99999)))", "terminal.out.print('a\\n' * 99999)"])
def test_a_reader_that_goes_ends_it_without_a_word(printing) -> None:
    code = f"from fairbits.cli import terminal\n{printing}"
    reader, writer = os.pipe()
    settings = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}  # which loses half writes
    with subprocess.Popen([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, env=settings) as process:
        os.close(writer)
        os.read(reader, 10)
        os.close(reader)
        assert process.communicate()[1] == b""
    assert process.returncode == terminal.BROKEN_PIPE


@pytest.mark.parametrize("number_and_text", [(0, "0"), (999, "999"), (1000, "1.0k"), (2.5e9, "2.5G"), (0.034, "0.034")])
def test_short_numbers(number_and_text) -> None:
    number, written = number_and_text
    assert terminal.short_number(number) == written
