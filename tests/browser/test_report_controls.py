"""Orders, filters, units, keys and downloads of a report in a real Chromium."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.long

UNIT = "changed_of_100"
DIGITS = 1e-5
"""The page carries six digits of every number."""


def value(row: dict[str, Any], method: int = 0, unit: str = UNIT) -> float:
    return row["methods"][method]["damage"][unit]["value"]


def codes(content: dict[str, Any], key: Callable[[dict[str, Any]], Any]) -> list[str]:
    return [row["code"] for row in sorted(content["languages"], key=key)]


ORDERS = {
    "after": lambda row: -value(row),
    "before": lambda row: -value(row, 1),
    "difference": lambda row: row["difference"][UNIT]["value"],
    "name": lambda row: row["name"],
}


def test_the_order_is_that_of_the_data_in_plot_and_table(show, measured) -> None:
    opened = show(measured)
    names = {row["code"]: row["name"] for row in measured["languages"]}
    seen = set()
    for order, key in ORDERS.items():
        opened.page.select_option("#sort", order)
        expected = codes(measured, key)
        assert opened.rows() == expected
        for figure in ("languages", "patterns", "causes"):
            assert [names[code] in label for code, label in zip(expected, opened.labels(figure), strict=True)] == [
                True
            ] * len(expected)
        seen.add(tuple(expected))
    assert len(seen) > 2
    for order in ("script", "family"):
        opened.page.select_option("#sort", order)
        assert sorted(opened.rows()) == sorted(names)
    assert opened.quiet()


def test_a_header_orders_and_orders_the_other_way_round(show, measured) -> None:
    opened = show(measured)
    assert opened.page.locator("button[data-key=tokens]").count() == 0
    opened.page.check("#wide")
    header = opened.page.locator("table#languages th", has=opened.page.locator("button[data-key=tokens]"))
    assert header.get_attribute("aria-sort") == "none"
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    tokens = {row["code"]: row["tokens"] for row in measured["languages"]}
    assert [tokens[code] for code in opened.rows()] == sorted(tokens.values(), reverse=True)
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    assert [tokens[code] for code in opened.rows()] == sorted(tokens.values())
    assert opened.page.evaluate("document.activeElement.dataset.key") == "tokens"


def shown(opened: Any) -> set[int]:
    """Returns how many languages table, plot and map show."""
    marks = next(trace for trace in opened.plotted("languages") if trace["mode"] == "markers")
    return {len(opened.rows()), len(marks["x"]), len(opened.plotted("patterns")[0]["z"])}


def test_filters_apply_to_table_plot_and_maps(show, measured) -> None:
    opened = show(measured)
    assert shown(opened) == {4}
    opened.page.select_option("#script", "Latn")
    assert sorted(opened.rows()) == ["eng_Latn", "swh_Latn"]
    assert shown(opened) == {2}
    opened.type("swahili")
    assert opened.rows() == ["swh_Latn"]
    assert shown(opened) == {1}
    assert opened.page.locator("#status").text_content() == "1 of 4 languages"
    opened.page.select_option("#script", "")
    opened.type("עברית")
    assert opened.rows() == ["heb_Hebr"]
    opened.type("")
    family = next(row["family"] for row in measured["languages"] if row["code"] == "jpn_Jpan")
    opened.page.select_option("#family", family)
    assert opened.rows() == ["jpn_Jpan"]
    opened.type("no such language")
    assert opened.rows() == []
    assert "No language matches" in opened.page.locator("#fig-languages").text_content()
    assert opened.quiet()


def test_the_scale_changes_the_numbers(show, measured) -> None:
    opened = show(measured)
    assert len(measured["units"]) == 7
    for unit in measured["units"]:
        opened.page.select_option("#unit", unit)
        marks = [trace for trace in opened.plotted("languages") if trace["mode"] == "markers"]
        rows = sorted(measured["languages"], key=lambda row, unit=unit: -value(row, unit=unit))
        assert opened.rows() == [row["code"] for row in rows]
        assert marks[0]["x"] == pytest.approx([value(row, unit=unit) for row in rows], rel=DIGITS)
        assert marks[1]["x"] == pytest.approx([value(row, 1, unit) for row in rows], rel=DIGITS)
        digits = 1 if unit == UNIT else 2 if unit.endswith("nats_per_section") else 4
        first = opened.page.locator("table#languages tbody tr").first.locator("td").first.inner_text()
        assert first.startswith(f"{value(rows[0], unit=unit):.{digits}f}".replace("-", "−"))


def marks(opened: Any) -> list[str]:
    """Returns what stands at the ends of the lines of the languages, and what the table says is significant."""
    ends = opened.page.locator("#fig-languages .annotation").all_text_contents()
    return [*ends, *opened.page.locator("table#languages :is(.less, .more)").all_text_contents()]


def test_verdicts_are_those_of_the_unit_and_of_methods_that_are_shown(show, measured) -> None:
    opened = show(measured)
    significant = ["▲ more", "▲ more", "▼ less", "▼ less"]
    assert sorted(marks(opened)) == significant
    opened.page.select_option("#unit", "loss_nats_per_token")
    assert marks(opened) == []
    head, *lines = opened.downloaded("languages")
    place = head.index("difference, added loss, nats per token")
    expected = {row["code"]: row["difference"]["loss_nats_per_token"]["value"] for row in measured["languages"]}
    differences = {line[head.index("Code")]: float(line[place]) for line in lines}
    assert differences == pytest.approx(expected, rel=DIGITS)
    opened.page.select_option("#unit", UNIT)
    for method in ("0", "1"):
        opened.page.uncheck(f"input[name=method][value='{method}']")
        assert sorted(marks(opened)) == ["▲ more", "▼ less"]
        opened.page.check(f"input[name=method][value='{method}']")
    assert sorted(marks(opened)) == significant


def test_the_axis_names_the_measure_and_the_unit(show, measured) -> None:
    opened = show(measured)
    title = opened.page.locator("#fig-languages .g-xtitle, #fig-languages .g-x2title")
    assert title.all_text_contents() == ["changed, of 100 tokens"]
    assert opened.page.locator("#unit option:checked").inner_text() == "changed, of 100 tokens"
    assert opened.page.evaluate("document.querySelector('#fig-languages .plot').layout.xaxis.range[0]") == 0
    opened.page.select_option("#unit", label="added loss, bits per byte")
    assert title.all_text_contents() == ["added loss, bits per byte"]
    marks = [trace for trace in opened.plotted("languages") if trace["mode"] == "markers"]
    expected = sorted(value(row, unit="loss_bits_per_byte") for row in measured["languages"])
    assert sorted(marks[0]["x"]) == pytest.approx(expected, rel=DIGITS)
    widths = opened.page.locator("#fig-widths .g-ytitle").text_content()
    assert widths == "divergence, bits per byte, log scale"  # the sweep has a scale of its own
    assert opened.quiet()


def test_intervals_and_methods_are_shown_when_asked_for(show, measured) -> None:
    opened = show(measured)
    bars, points = "#fig-languages .errorbar path", "#fig-languages .scatterlayer .point"
    assert opened.page.locator(bars).count() >= 8
    opened.page.click("#intervals")
    assert opened.page.locator(bars).count() == 0
    opened.page.check("input[name=method][value='2']")
    assert opened.page.locator(points).count() == 12
    opened.page.uncheck("input[name=method][value='0']")
    assert opened.page.locator(points).count() == 8
    before = opened.plotted("patterns")[0]["z"]
    opened.page.check("input[name=patterns][value=share]")
    share = opened.plotted("patterns")[0]["z"]
    assert share != before
    assert [sum(row) for row in share] == [pytest.approx(100)] * 4
    opened.page.check("input[name=causes][value=share]")
    assert [sum(row) for row in opened.plotted("causes")[0]["z"]] == [pytest.approx(100)] * 4
    assert opened.quiet()


def test_tables_are_downloaded_as_csv(show, measured) -> None:
    opened = show(measured)
    opened.page.select_option("#sort", "name")
    head, *lines = opened.downloaded("languages")
    rows = sorted(measured["languages"], key=lambda row: row["name"])
    assert [line[head.index("Code")] for line in lines] == [row["code"] for row in rows]
    assert [float(line[1]) for line in lines] == pytest.approx([value(row) for row in rows], rel=DIGITS)
    assert [line[head.index("Autonym")] for line in lines] == [row["autonym"] for row in rows]
    head, *lines = opened.downloaded("kappa")
    kappas = [block["kappa"] for block in measured["blocks"]["blocks"]]
    assert [float(line[head.index("kappa")]) for line in lines] == pytest.approx(kappas, rel=DIGITS)
    for table in ("patterns", "causes", "widths", "prediction"):
        assert len(opened.downloaded(table)) == 5
    assert len(opened.downloaded("bits")) == len(measured["allocation"]["roles"]) + 2


def test_arrow_keys_step_through_the_points_of_every_plot(show, measured) -> None:
    opened = show(measured)
    for name in ("languages", "kappa", "patterns", "causes", "bits", "widths", "prediction"):
        opened.page.locator(f"#fig-{name} .plot").focus()
        heard = set()
        for key in ("ArrowDown", "ArrowRight", "ArrowDown"):
            opened.page.keyboard.press(key)
            heard.add(opened.page.locator("#status").text_content())
            opened.page.locator(f"#fig-{name} .hoverlayer .hovertext").wait_for()
        assert len(heard) >= 2, name
    opened.page.locator("#fig-languages .plot").focus()
    opened.page.keyboard.press("ArrowDown")
    status = opened.page.locator("#status").text_content()
    assert measured["languages"][0]["name"] in status
    assert f"{value(measured['languages'][0]):.1f} (" in status
    assert opened.quiet()
