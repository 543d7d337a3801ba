"""Tables that results show of themselves, and pandas on request."""

import builtins
import io
from typing import Any

import pytest
from rich.console import Console

from fairbits.core.errors import InputError
from fairbits.core.table import (
    ROWS,
    NumberFormat,
    Shown,
    Table,
    bar,
    data_frame,
    escape_markdown,
    plain,
    render_tables,
    short_unit,
)
from fairbits.stats.intervals import Estimate


class Result(Shown):
    def tables(self) -> list[Table]:
        rows = (("heb", "1"), ("deu", ["<", ("i>", "red")]))
        return [Table("a <b>", ("\nlanguage", "x"), rows, ("below\x1b[2J",)), Table("Notes", below=("seen",))]


def test_text_and_html_are_the_same_table() -> None:
    shown = Result()
    assert repr(shown) == "a <b>\nlanguage    x\nheb         1\ndeu       <i>\nbelow\\u001b[2J"
    page = shown._repr_html_()
    assert "a <b>" not in page
    assert "<i>" not in page
    assert page.count("<tr>") == 3
    assert "a &lt;b&gt;" in page
    assert "seen" in page  # the page has all tables, the text the first
    assert "\x1b" not in page


def test_the_terminal_shows_all_tables_with_styles_and_escapes_control_characters() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard", emoji=False)
    console.print(render_tables(Result().tables()))
    text = console.file.getvalue()
    assert "\x1b[31mi>" in text
    assert r"below\u001b[2J" in text
    assert "\n  seen" in text  # all but the first table are indented
    assert "\x1b[2J" not in text


def test_markdown_is_a_pipe_table_in_which_nothing_is_marked_up() -> None:
    first, *_ = Result().tables()
    lines = first.markdown().splitlines()
    assert lines[0] == "**a &lt;b&gt;**"
    assert lines[2:6] == ["| language | x |", "|:--|--:|", "| heb | 1 |", "| deu | &lt;i&gt; |"]
    assert escape_markdown("*a* www.b.c") == r"\*a\* www&#8288;.b.c"


def test_columns_are_aligned_right_unless_they_are_named() -> None:
    table = Table("", ("a", "b", "c"), (("1", "2", "3"),), left=(1,))
    assert "|:--|:--|--:|" in table.markdown()
    assert Table("", rows=(("only", "rows"),)).text() == "only  rows"


def test_a_long_table_is_cut_in_a_terminal_only() -> None:
    table = Table("long", ("n",), tuple((str(i),) for i in range(100)))
    assert len(table.text().splitlines()) == ROWS + 1
    assert table.text().endswith("… and 90 more")
    assert table.html().count("<tr>") == 101
    whole = Table("just", ("n",), tuple((str(i),) for i in range(ROWS)))
    assert "more" not in whole.text()
    assert Table("no rows").text() == "no rows"


def test_pandas_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_frame({"a": [1, 2], "b": [3, 4]}, index="a").loc[2, "b"] == 4
    real = builtins.__import__

    def without_pandas(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(InputError, match="pip install pandas"):
        data_frame({"a": [1]})


def test_numbers_of_a_column_are_written_alike_and_short() -> None:
    assert plain(bar(0.0, 1.0)).strip() == plain(bar(1.0, 0.0)).strip() == ""
    assert plain(bar(1.0, 16.0)).strip() == "▌"
    assert short_unit(0.5) == (1.0, "")
    assert short_unit(2e-6) == (1e6, "10⁻⁶ ")
    assert short_unit(0.0) == (1.0, "")
    assert [NumberFormat(top)(top) for top in (0.0, 0.0765, 3.25, 123.4, 123456.0)] == [
        *("0.000", "0.0765", "3.250", "123.4", "123456"),
    ]
    number = NumberFormat(0.02)
    assert plain(number.estimate(Estimate(0.02, 0.01, 0.03, 9), " heb")) == "0.0200 (0.010–0.030) heb"
    assert number.limits(Estimate.without_interval(0.2, 1)) == "(–)"
