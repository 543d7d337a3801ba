"""The figures and the table of a report in a real Chromium: every number, orders, filters, units, files."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

UNIT = "divergence_bits_per_byte"
DIGITS = 1e-5
"""The page carries six digits of every number."""


def value(row: dict[str, Any], method: int = 0, unit: str = UNIT) -> float:
    return row["methods"][method]["damage"][unit]["value"]


def codes(content: dict[str, Any], key: Callable[[dict[str, Any]], Any]) -> list[str]:
    return [row["code"] for row in sorted(content["languages"], key=key)]


def test_the_page_is_quiet_and_asks_for_nothing(show, measured) -> None:
    opened = show(measured)
    opened.page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    for control in ("#intervals", "#theme"):
        opened.page.click(control)
    opened.page.wait_for_timeout(200)
    assert opened.said == []
    assert opened.asked == []


def test_every_figure_shows_every_number(show, measured) -> None:
    opened = show(measured)
    for name in ("languages", "kappa", "patterns", "causes", "bits", "widths", "prediction"):
        assert opened.page.locator(f"figure#fig-{name} .plot svg.main-svg").first.is_visible()
    count, blocks = len(measured["languages"]), len(measured["blocks"]["blocks"])
    points = {name: opened.page.locator(f"#fig-{name} .scatterlayer .point").count() for name in ("languages", "kappa")}
    assert points == {"languages": 2 * count, "kappa": blocks}
    assert opened.page.locator("#fig-prediction .scatterlayer .point").count() == count
    curves = measured["curves"]["damage"]
    assert opened.page.locator("#fig-widths .scatterlayer .point").count() == len(curves) * len(curves[0])
    shares = opened.plotted("patterns")[0]["z"]
    assert (len(shares), len(shares[0])) == (count, blocks)
    assert opened.plotted("causes")[0]["z"] == [pytest.approx(row, rel=DIGITS) for row in measured["causes"]["damage"]]
    assert opened.plotted("bits")[0]["z"] == measured["allocation"]["bits"]
    assert opened.page.locator("#fig-bits .barlayer .point").count() == blocks
    for name in ("patterns", "causes", "bits"):
        assert opened.page.locator(f"#fig-{name} .heatmaplayer image").count() > 0
    assert opened.quiet()


def test_the_headline_is_in_the_page(show, measured) -> None:
    opened = show(measured)
    assert opened.page.locator("h1").inner_text() == measured["model"]
    said = opened.page.locator("#summary").inner_text()
    assert " ".join(measured["headline"]["sentences"]) in said
    for name in ("worst", "gap", "mean"):
        for side in ("before", "after"):
            assert f"{measured['headline'][name][side]['value']:.4f}".replace("-", "−") in said


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
    marks = next(each for each in opened.plotted("languages") if each["mode"] == "markers")
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
    assert len(measured["units"]) == 6
    for unit in measured["units"]:
        opened.page.select_option("#unit", unit)
        marks = [each for each in opened.plotted("languages") if each["mode"] == "markers"]
        rows = sorted(measured["languages"], key=lambda row, unit=unit: -value(row, unit=unit))
        assert opened.rows() == [row["code"] for row in rows]
        assert marks[0]["x"] == pytest.approx([value(row, unit=unit) for row in rows], rel=DIGITS)
        assert marks[1]["x"] == pytest.approx([value(row, 1, unit) for row in rows], rel=DIGITS)
        digits = 2 if unit.endswith("nats_per_section") else 4
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
    found = {line[head.index("Code")]: float(line[place]) for line in lines}
    assert found == pytest.approx(expected, rel=DIGITS)
    opened.page.select_option("#unit", UNIT)
    for method in ("0", "1"):
        opened.page.uncheck(f"input[name=method][value='{method}']")
        assert sorted(marks(opened)) == ["▲ more", "▼ less"]
        opened.page.check(f"input[name=method][value='{method}']")
    assert sorted(marks(opened)) == significant


def test_the_axis_names_the_measure_and_the_unit(show, measured) -> None:
    opened = show(measured)
    title = opened.page.locator("#fig-languages .g-xtitle, #fig-languages .g-x2title")
    assert title.all_text_contents() == ["divergence, bits per byte"]
    assert opened.page.locator("#unit option:checked").inner_text() == "divergence, bits per byte"
    opened.page.select_option("#unit", label="added loss, bits per byte")
    assert title.all_text_contents() == ["added loss, bits per byte"]
    marks = [each for each in opened.plotted("languages") if each["mode"] == "markers"]
    found = sorted(value(row, unit="loss_bits_per_byte") for row in measured["languages"])
    assert sorted(marks[0]["x"]) == pytest.approx(found, rel=DIGITS)
    widths = opened.page.locator("#fig-widths .g-ytitle").text_content()
    assert widths == "divergence, bits per byte, log scale"  # the sweep has a scale of its own
    assert opened.quiet()


def test_the_table_has_what_stands_next_to_damage(show, measured) -> None:
    opened = show(measured)
    head, *lines = opened.downloaded("languages")
    rows = {row["code"]: row["methods"][0] for row in measured["languages"]}
    columns = {
        "added loss, bits per byte": lambda own: own["damage"]["loss_bits_per_byte"]["value"],
        "same top token": lambda own: 1 - own["flips"]["value"],
        "recovery": lambda own: own["recovery"],
        "KL median, nats": lambda own: own["kl_p50"],
        "KL 95 %": lambda own: own["kl_p95"],
        "KL 99 %": lambda own: own["kl_p99"],
        "KL 99.9 %": lambda own: own["kl_p99_9"],
        "margin median, nats": lambda own: own["margin_p50"],
        "margin 1 %": lambda own: own["margin_p1"],
    }
    for line in lines:
        own = rows[line[head.index("Code")]]
        expected = [of(own) for of in columns.values()]
        assert [float(line[head.index(name)]) for name in columns] == pytest.approx(expected, rel=DIGITS, abs=1e-6)
    texts = opened.page.locator("table#languages tbody tr").first.locator("td").all_text_contents()
    first = rows[opened.rows()[0]]
    assert f"{first['kl_p50']:.4f}" in texts
    assert f"{first['recovery']:.3f}" in texts


def test_scores_of_version_1_leave_their_percentiles_blank(show, measured) -> None:
    own = copy.deepcopy(measured)
    for row in own["languages"]:
        for method in row["methods"]:
            method |= dict.fromkeys(("kl_p50", "kl_p95", "kl_p99_9", "margin_p50", "margin_p1"))
    opened = show(own)
    head, *lines = opened.downloaded("languages")
    assert {line[head.index(name)] for line in lines for name in ("KL median, nats", "margin 1 %")} == {""}
    assert all(float(line[head.index("KL 99 %")]) > 0 for line in lines)
    assert opened.quiet()


def test_what_a_log_scale_cannot_show_stands_open_at_its_foot(show, measured) -> None:
    opened = show(measured)
    values = [point["value"] for curve in measured["curves"]["damage"] for point in curve]
    lines = opened.page.evaluate(
        "document.querySelector('#fig-widths .plot').data"
        ".map(({y, marker}) => ({y, symbol: marker.symbol, edge: marker.line.width}))"
    )
    points = [point for line in lines for point in zip(line["y"], line["symbol"], strict=True)]
    shown = [y for y, symbol in points if not symbol.endswith("-open")]
    at_foot = [y for y, symbol in points if symbol.endswith("-open")]
    assert sorted(shown) == pytest.approx(sorted(value for value in values if value > 0), rel=DIGITS)
    assert len(at_foot) == sum(value <= 0 for value in values) > 0
    assert 0 < max(at_foot) < min(shown)
    edges = [point for line in lines for point in zip(line["edge"], line["symbol"], strict=True)]
    assert all((edge > 0) == symbol.endswith("-open") for edge, symbol in edges)
    bottom = opened.page.evaluate("document.querySelector('#fig-widths .plot').layout.yaxis.range[0]")
    assert 10**bottom < min(at_foot)
    assert "≤ 0" in opened.labels("widths")
    caption = opened.page.locator("#fig-widths figcaption").inner_text()
    assert f"{len(at_foot)} of {len(values)} points " in caption
    assert opened.quiet()


def test_all_blocks_are_within_the_axis_where_all_kappas_are_negative(show, measured) -> None:
    own = copy.deepcopy(measured)
    for kappas in ([-0.5, -0.2], [0.0, 0.0]):
        for each, kappa in zip(own["blocks"]["blocks"], kappas, strict=True):
            each["kappa"] = kappa
        opened = show(own)
        low, high = opened.page.evaluate("document.querySelector('#fig-kappa .plot').layout.yaxis.range")
        assert low <= min(kappas)
        assert max(kappas) <= high
        assert low <= 0 <= high
        assert low < high
        assert opened.page.locator("#fig-kappa .scatterlayer .point").count() == len(kappas)
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
    kappas = [each["kappa"] for each in measured["blocks"]["blocks"]]
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
    said = opened.page.locator("#status").text_content()
    assert measured["languages"][0]["name"] in said
    assert f"{value(measured['languages'][0]):.4f}".replace("-", "−") in said
    assert opened.quiet()


def test_a_page_of_scores_alone_says_what_was_not_measured(show, measured) -> None:
    own = copy.deepcopy(measured)
    absent = ("blocks", "patterns", "causes", "prediction", "checklist", "certificate", "allocation", "curves")
    own |= dict.fromkeys(absent)
    own["methods"] = own["methods"][:1]
    own["headline"] |= {"better": [], "worse": []}
    for name in ("worst", "mean", "gap", "size"):
        own["headline"][name]["before"] = None
    for row in own["languages"]:
        row["methods"] = row["methods"][:1]
        row |= dict.fromkeys(("difference", "p_holm", "verdict", "predicted", "reference_loss", "kappa_weighted"))
        row["bytes_per_token"] = None
    opened = show(own)
    assert opened.page.locator("figure").count() == 1
    assert opened.page.locator("#fig-languages .scatterlayer .point").count() == 4
    assert opened.page.get_by_text("Not measured.").count() == 7
    opened.page.select_option("#sort", "name")
    assert opened.rows() == codes(own, lambda row: row["name"])
    assert len(opened.downloaded("languages")) == 5
    assert opened.quiet()


def test_a_language_without_an_interval_is_shown_as_a_point(show, measured) -> None:
    content = copy.deepcopy(measured)
    row = max(content["languages"], key=value)
    own = row["methods"][0]["damage"][UNIT]
    i = content["prediction"]["languages"].index(row["code"])
    for each in (own, content["headline"]["worst"]["after"], content["prediction"]["measured"][i]):
        each.update(low=None, high=None)
    opened = show(content)
    line = opened.page.locator("table#languages tbody tr").nth(opened.rows().index(row["code"]))
    assert line.locator("td.number small").first.inner_text() == "no interval"
    assert "no interval" in opened.page.locator("#summary .card").first.inner_text()
    bars = opened.page.evaluate(
        "() => document.querySelector('#fig-languages .plot').data.filter(each => each.error_x)"
        ".map(({error_x}) => [[...error_x.array], [...error_x.arrayminus]])"
    )
    assert sum(pair == (0, 0) for above, below in bars for pair in zip(above, below, strict=True)) == 1
    head, *lines = opened.downloaded("languages")
    cells = next(each for each in lines if row["code"] in each)
    column = head.index(next(title for title in head if title.endswith("bits per byte, low")))
    assert cells[column : column + 2] == ["", ""]
    assert opened.quiet()
