"""Tables that results show of themselves, and pandas on request."""

import builtins
from typing import Any

import pytest

from fairbits.core.errors import InputError
from fairbits.core.table import ROWS, Shown, Table, data_frame


class Result(Shown):
    def _table(self) -> Table:
        return Table("a <b>", ("language", "x"), (("heb", "1"), ("deu", "<i>")), ("below\x1b[2J",))


def test_text_and_html_are_the_same_table() -> None:
    shown = Result()
    assert repr(shown) == "a <b>\nlanguage    x\nheb         1\ndeu       <i>\nbelow\\u001b[2J"
    page = shown._repr_html_()
    assert "<b>" not in page
    assert "<i>" not in page
    assert page.count("<tr>") == 3
    assert "a &lt;b&gt;" in page


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
