"""The figures and the table of a report in a real Chromium: every number is there."""

import copy
from typing import Any

import pytest

UNIT = "changed_of_100"
DIGITS = 1e-5
"""The page carries six digits of every number."""


def value(row: dict[str, Any], method: int = 0, unit: str = UNIT) -> float:
    return row["methods"][method]["damage"][unit]["value"]


def test_the_page_is_quiet_and_asks_for_nothing(show, measured) -> None:
    opened = show(measured)
    opened.page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    for control in ("#intervals", "#theme"):
        opened.page.click(control)
    opened.page.wait_for_timeout(200)
    assert opened.messages == []
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
    summary = opened.page.locator("#summary").inner_text()
    first, *others = measured["headline"]["sentences"]
    assert first.partition(" That is ")[0].replace(" %", "\xa0%") in summary
    assert " ".join(others) in summary
    level = measured["headline"]["meaning"]["level"]
    assert opened.page.locator("#summary .level").inner_text()[2:].lower() == level
    summary = opened.page.locator("#overall").inner_text()
    for name in ("worst", "gap", "mean"):
        for side in ("baseline", "quantized"):
            assert f"{measured['headline'][name][side]['value']:.4f}".replace("-", "−") in summary
        assert f"{measured['headline']['changed'][name]['quantized']['value']:.1f}\n" in summary


@pytest.mark.long
def test_the_table_has_what_stands_next_to_damage(show, measured) -> None:
    opened = show(measured)
    head, *lines = opened.downloaded("languages")
    rows = {row["code"]: row["methods"][0] for row in measured["languages"]}
    columns = {
        "added loss, bits per byte": lambda scores: scores["damage"]["loss_bits_per_byte"]["value"],
        "changed, of 100 tokens": lambda scores: 100 * scores["flips"]["value"],
        "perplexity, ×": lambda scores: 1 + scores["relative_perplexity"]["value"],
        "divergence, bits per byte": lambda scores: scores["damage"]["divergence_bits_per_byte"]["value"],
        "added words, of 100": lambda scores: scores["added_words"]["value"],
        "KL median, nats": lambda scores: scores["kl_p50"],
        "KL 95 %": lambda scores: scores["kl_p95"],
        "KL 99 %": lambda scores: scores["kl_p99"],
        "KL 99.9 %": lambda scores: scores["kl_p99_9"],
        "margin median, nats": lambda scores: scores["margin_p50"],
        "margin 1 %": lambda scores: scores["margin_p1"],
    }
    for line in lines:
        scores = rows[line[head.index("Code")]]
        expected = [of(scores) for of in columns.values()]
        assert [float(line[head.index(name)]) for name in columns] == pytest.approx(expected, rel=DIGITS, abs=1e-6)
    opened.page.check("#wide")
    texts = opened.page.locator("table#languages tbody tr").first.locator("td").all_text_contents()
    first = rows[opened.rows()[0]]
    assert f"{first['kl_p50']:.4f}" in texts


@pytest.mark.long
def test_scores_of_version_1_leave_their_percentiles_blank(show, measured) -> None:
    modified = copy.deepcopy(measured)
    for row in modified["languages"]:
        for method in row["methods"]:
            method |= dict.fromkeys(("kl_p50", "kl_p95", "kl_p99_9", "margin_p50", "margin_p1"))
    opened = show(modified)
    head, *lines = opened.downloaded("languages")
    assert {line[head.index(name)] for line in lines for name in ("KL median, nats", "margin 1 %")} == {""}
    assert all(float(line[head.index("KL 99 %")]) > 0 for line in lines)
    assert opened.quiet()


@pytest.mark.long
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


@pytest.mark.long
def test_all_blocks_are_within_the_axis_where_all_kappas_are_negative(show, measured) -> None:
    modified = copy.deepcopy(measured)
    for kappas in ([-0.5, -0.2], [0.0, 0.0]):
        for block, kappa in zip(modified["blocks"]["blocks"], kappas, strict=True):
            block["kappa"] = kappa
        opened = show(modified)
        low, high = opened.page.evaluate("document.querySelector('#fig-kappa .plot').layout.yaxis.range")
        assert low <= min(kappas)
        assert max(kappas) <= high
        assert low <= 0 <= high
        assert low < high
        assert opened.page.locator("#fig-kappa .scatterlayer .point").count() == len(kappas)
        assert opened.quiet()


@pytest.mark.long
def test_a_page_of_scores_alone_says_what_was_not_measured(show, measured) -> None:
    modified = copy.deepcopy(measured)
    absent = ("blocks", "patterns", "causes", "prediction", "checklist", "certificate", "allocation", "curves")
    modified |= dict.fromkeys(absent)
    modified["methods"] = modified["methods"][:1]
    modified["headline"] |= {"better": [], "worse": []}
    modified["headline"]["sentences"] = modified["headline"]["sentences"][:1]
    changed = modified["headline"]["changed"]
    for numbers in (*(modified["headline"][name] for name in ("worst", "mean", "gap", "size")), *changed.values()):
        numbers["baseline"] = None
    for row in modified["languages"]:
        row["methods"] = row["methods"][:1]
        row |= dict.fromkeys(("difference", "p_holm", "verdict", "predicted", "reference_loss", "kappa_weighted"))
        row["bytes_per_token"] = None
    opened = show(modified)
    assert opened.page.locator("figure").count() == 1
    assert opened.page.locator("#fig-languages .scatterlayer .point").count() == 4
    assert opened.page.get_by_text("Not measured, so not shown").count() == 1
    opened.page.select_option("#sort", "name")
    assert opened.rows() == [row["code"] for row in sorted(modified["languages"], key=lambda row: row["name"])]
    assert len(opened.downloaded("languages")) == 5
    assert opened.quiet()


@pytest.mark.long
def test_a_language_without_an_interval_is_shown_as_a_point(show, measured) -> None:
    content = copy.deepcopy(measured)
    row = max(content["languages"], key=value)
    damage = row["methods"][0]["damage"][UNIT]
    i = content["prediction"]["languages"].index(row["code"])
    worst = content["headline"]["changed"]["worst"]["quantized"]
    for estimate in (damage, worst, content["prediction"]["measured"][i]):
        estimate.update(low=None, high=None)
    opened = show(content)
    line = opened.page.locator("table#languages tbody tr").nth(opened.rows().index(row["code"]))
    assert line.locator("td.number small").first.inner_text() == "no interval"
    assert "no interval" in opened.page.locator("#overall .card").first.inner_text()
    bars = opened.page.evaluate(
        "() => document.querySelector('#fig-languages .plot').data.filter(trace => trace.error_x)"
        ".map(({error_x}) => [[...error_x.array], [...error_x.arrayminus]])"
    )
    assert sum(pair == (0, 0) for above, below in bars for pair in zip(above, below, strict=True)) == 1
    head, *lines = opened.downloaded("languages")
    cells = next(csv_row for csv_row in lines if row["code"] in csv_row)
    column = head.index(next(title for title in head if title.endswith("of 100 tokens, low")))
    assert cells[column : column + 2] == ["", ""]
    assert opened.quiet()


def test_experts_are_shown_where_the_model_has_some(show, measured) -> None:
    modified = copy.deepcopy(measured)
    codes = [row["code"] for row in modified["languages"]]
    modified["experts"] = {
        "least": 32,
        "blocks": [1, 3],
        "experts": [8, 16],
        "per_position": [2, 2],
        "unreached": [0, 1],
        "languages": codes,
        "few": [[2, 4 + i] for i in range(len(codes))],
        "empty": [[0, 1] for _ in codes],
        "mean": [[50.0, 25.0] for _ in codes],
    }
    opened = show(modified)
    assert "1 expert gets no text of any language." in opened.page.locator("#experts").inner_text()
    assert opened.plotted("experts")[0]["x"] == [1, 3]
    assert opened.plotted("experts")[0]["z"] == [[25.0, 100 * (4 + i) / 16] for i in range(len(codes))]
    opened.page.locator("#fig-experts .plot").focus()
    opened.page.keyboard.press("ArrowDown")
    opened.page.keyboard.press("ArrowRight")
    status = opened.page.locator("#status").text_content()
    assert "block 3: 4 of 16 experts below 32 positions, 1 without text; mean 25 positions" in " ".join(status.split())
    opened.page.check("input[name=experts][value=empty]")
    assert opened.plotted("experts")[0]["z"] == [[0.0, 6.25]] * len(codes)
    head, *lines = opened.downloaded("experts")
    assert head[2:] == ["block 1, under 32", "block 1, none", "block 3, under 32", "block 3, none"]
    assert lines[1][2:] == ["2", "0", "5", "1"]
    assert opened.quiet()
