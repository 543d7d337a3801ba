import io

import pytest
from rich.console import Console

from fairbits import terminal


@pytest.fixture
def screen(monkeypatch) -> io.StringIO:
    """What a terminal of 80 columns has been sent on stderr."""
    file = io.StringIO()
    monkeypatch.setattr(terminal, "err", Console(file=file, width=80, force_terminal=True, color_system=None))
    return file


def test_stages_show_what_is_done_how_much_and_how_fast(screen) -> None:
    with terminal.stages("opening") as show:
        show("passing text", 500, 2000)
        show("reading weights", 13_000_000, 26_000_000)
    sent = screen.getvalue()
    assert "reading weights" in sent
    assert "13.0M of 26.0M, " in sent
    assert not sent.rstrip().endswith("M")  # the line is taken away in the end


def test_what_is_done_cannot_steer_the_terminal(screen) -> None:
    with terminal.stages("opening") as show:
        show("[red]a\x1b[2Jb", 1, 2)
    assert r"[red]a\u001b[2Jb" in screen.getvalue()


def test_nothing_is_shown_where_there_is_no_terminal(capsys) -> None:
    with terminal.stages("opening") as show:
        show("passing text", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_notes_go_to_stderr_in_one_line_each(capsys) -> None:
    terminal.print_notes(["[red]" + "long " * 40, "two\nlines"])
    printed, errors = capsys.readouterr()
    assert printed == ""
    assert errors == "[red]" + "long " * 40 + "\ntwo\\u000alines\n"


@pytest.mark.parametrize(("number", "written"), [(0, "0"), (999, "999"), (1000, "1.0k"), (2.5e9, "2.5G")])
def test_short_numbers(number, written) -> None:
    assert terminal.short(number) == written
