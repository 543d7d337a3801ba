"""The page of a report as a reader has it: drawn, sorted, filtered, with the keyboard, in both themes, on a phone."""

import base64
import copy
import csv
import io
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

UNIT = "bits_per_byte"
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


def test_the_unit_changes_the_numbers(show, measured) -> None:
    opened = show(measured)
    for unit in measured["units"]:
        opened.page.select_option("#unit", unit)
        marks = [each for each in opened.plotted("languages") if each["mode"] == "markers"]
        rows = sorted(measured["languages"], key=lambda row, unit=unit: -value(row, unit=unit))
        assert opened.rows() == [row["code"] for row in rows]
        assert marks[0]["x"] == pytest.approx([value(row, unit=unit) for row in rows], rel=DIGITS)
        assert marks[1]["x"] == pytest.approx([value(row, 1, unit) for row in rows], rel=DIGITS)
        digits = 2 if unit == "nats_per_section" else 4
        first = opened.page.locator("table#languages tbody tr").first.locator("td").first.inner_text()
        assert first.startswith(f"{value(rows[0], unit=unit):.{digits}f}".replace("-", "−"))


def marks(opened: Any) -> list[str]:
    """Returns what stands at the ends of the lines of the languages, and what the table says is beyond doubt."""
    ends = opened.page.locator("#fig-languages .annotation").all_text_contents()
    return [*ends, *opened.page.locator("table#languages :is(.less, .more)").all_text_contents()]


def test_verdicts_are_those_of_the_unit_and_of_methods_that_are_shown(show, measured) -> None:
    opened = show(measured)
    beyond_doubt = ["▲ loses more", "▲ more", "▼ less", "▼ loses less"]
    assert sorted(marks(opened)) == beyond_doubt
    opened.page.select_option("#unit", "nats_per_token")
    assert marks(opened) == []
    head, *lines = downloaded(opened, "languages")
    place = head.index("difference, nats per token")
    expected = {row["code"]: row["difference"]["nats_per_token"]["value"] for row in measured["languages"]}
    found = {line[head.index("Code")]: float(line[place]) for line in lines}
    assert found == pytest.approx(expected, rel=DIGITS)
    opened.page.select_option("#unit", UNIT)
    for method in ("0", "1"):
        opened.page.uncheck(f"input[name=method][value='{method}']")
        assert sorted(marks(opened)) == ["▲ loses more", "▼ loses less"]
        opened.page.check(f"input[name=method][value='{method}']")
    assert sorted(marks(opened)) == beyond_doubt


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


def downloaded(opened: Any, table: str) -> list[list[str]]:
    with opened.page.expect_download() as waiting:
        opened.page.click(f"button.csv[data-table={table}]")
    text = Path(waiting.value.path()).read_text(encoding="utf-8-sig")
    return list(csv.reader(io.StringIO(text, newline="")))


def test_tables_are_downloaded_as_csv(show, measured) -> None:
    opened = show(measured)
    opened.page.select_option("#sort", "name")
    head, *lines = downloaded(opened, "languages")
    rows = sorted(measured["languages"], key=lambda row: row["name"])
    assert [line[head.index("Code")] for line in lines] == [row["code"] for row in rows]
    assert [float(line[1]) for line in lines] == pytest.approx([value(row) for row in rows], rel=DIGITS)
    assert [line[head.index("Autonym")] for line in lines] == [row["autonym"] for row in rows]
    head, *lines = downloaded(opened, "kappa")
    kappas = [each["kappa"] for each in measured["blocks"]["blocks"]]
    assert [float(line[head.index("kappa")]) for line in lines] == pytest.approx(kappas, rel=DIGITS)
    for table in ("patterns", "causes", "widths", "prediction"):
        assert len(downloaded(opened, table)) == 5
    assert len(downloaded(opened, "bits")) == len(measured["allocation"]["roles"]) + 2


def test_the_theme_is_changed_and_remembered(show, measured) -> None:
    opened = show(measured, color_scheme="light")
    page = opened.page

    def colours() -> list[str]:
        return page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,"
            " document.querySelector('#fig-languages .ytick text').style.fill]"
        )

    light = colours()
    page.click("#theme")
    dark = colours()
    assert all(one != other for one, other in zip(light, dark, strict=True))
    page.reload()
    page.locator("html[data-ready=true]").wait_for(state="attached")
    assert colours() == dark
    assert show(measured, color_scheme="dark").page.evaluate("getComputedStyle(document.body).color") == dark[1]


def test_everything_is_reached_with_the_keyboard(show, measured) -> None:
    opened = show(measured)
    page, reached = opened.page, set()
    wanted = page.evaluate(
        "[...document.querySelectorAll('button, select, input:not([type=radio]), input[type=radio]:checked, .plot')]"
        ".map((each, i) => (each.dataset.stop = String(i)))"
    )
    for _ in range(len(wanted) + 60):
        page.keyboard.press("Tab")
        at = page.evaluate(
            "(() => { const own = document.activeElement, style = getComputedStyle(own);"
            " return [own.dataset.stop, style.outlineStyle, parseFloat(style.outlineWidth)]; })()"
        )
        if at[0] is not None:
            reached.add(at[0])
            assert at[1] != "none"
            assert at[2] >= 2
    assert reached == set(wanted)


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


HOSTILE = (
    "<img src=x onerror='window.executed = true'></script><script>window.executed = true</script>",
    "<a href='javascript:window.executed=true'>a</a><a href='https://e.example/'>b</a><b>c</b>{{ 7 * 7 }}",
)


@pytest.mark.parametrize("odd", HOSTILE)
def test_hostile_text_is_shown_and_does_nothing(show, measured, odd) -> None:
    own = hostile(measured, odd)
    opened = show(own)
    page = opened.page
    assert page.locator("h1").inner_text() == odd
    assert odd in page.locator("#summary .lead").inner_text()
    assert odd in page.locator("#notes").inner_text()
    assert odd in opened.rows()
    start = odd[:8]  # long names are cut short beside a figure
    assert sum(start in label for label in opened.labels("languages")) == 1
    assert sum(start in label for label in opened.labels("bits")) == 1
    for name in ("languages", "patterns", "widths", "prediction"):
        page.locator(f"#fig-{name} .plot").focus()
        page.keyboard.press("ArrowDown")
    opened.type(odd[:12])
    injected = "img, iframe, object, embed, a[href^='javascript'], a[href^='http'], svg[onload], [onerror], [onload]"
    assert page.locator(injected).count() == 0
    assert page.locator(".plot a, .plot b, main b:not(.measure b):not(.checks b)").count() == 0
    assert page.locator("script").count() == 4
    assert page.evaluate("window.executed") is False
    assert opened.quiet()


def hostile(content: dict[str, Any], odd: str) -> dict[str, Any]:
    """Returns the content with hostile text wherever a model or a user can put some."""
    own = copy.deepcopy(content)
    code = own["languages"][0]["code"]
    own["model"] = own["family"] = odd
    for method in own["methods"]:
        method |= {"name": odd, "target": odd}
    own["headline"]["sentences"][0] = odd
    own["languages"][0] |= dict.fromkeys(("code", "name", "autonym", "bcp47", "script", "family"), odd)
    for side in ("before", "after"):
        if own["headline"]["worst"][side]["language"] == code:
            own["headline"]["worst"][side]["language"] = odd
    for name in ("patterns", "causes", "prediction", "curves"):
        own[name]["languages"] = [odd if each == code else each for each in own[name]["languages"]]
    for rule in own["blocks"]["outliers"].values():
        rule["remark"] = odd
    own["prediction"] |= {"like": False, "made_with": odd}
    own["causes"]["scheme"] = own["prediction"]["scheme"] = own["curves"]["policy"] = own["curves"]["unit"] = odd
    own["curves"]["verdict"] = [odd]
    own["curves"]["critical_width"] = [odd] * 4
    own["allocation"]["roles"][0] = odd
    own["allocation"]["outside"] = [{"role": odd, "name": odd, "bits": None, "bytes": None}]
    own["checklist"] |= {"risk": odd, "strategy": odd}
    for each in (*own["checklist"]["checks"], *own["checklist"]["conditions"]):
        each |= {name: odd for name, was in each.items() if isinstance(was, str)}
    own["certificate"] |= {"worse": odd, "better": odd}
    for each in own["provenance"]["models"]:
        each |= dict.fromkeys(("name", "target", "fingerprint"), odd)
    own["provenance"]["evaluation"] |= {"text": odd, "hashes": {odd: odd}}
    own["provenance"] |= {"run": {odd: odd}, "files": {odd: odd}, "versions": {odd: odd}}
    own["notes"] = [{"from": odd, "text": odd}]
    return own


def test_changes_of_direction_and_formulas_are_disarmed(show, measured) -> None:
    own = hostile(measured, '=HYPERLINK("x")\u202eevil\x1b')
    opened = show(own)
    text = '=HYPERLINK("x")\\u202eevil\\u001b'
    assert opened.page.locator("h1").inner_text() == text
    assert "\u202e" not in opened.page.content()
    head, *lines = downloaded(opened, "languages")
    cells = [cell for line in (head, *lines) for cell in line]
    assert f"'{text}" in cells
    assert not any(cell.startswith(("=", "@", "+")) for cell in cells)


def test_cells_of_a_file_are_quoted(show, measured) -> None:
    own = copy.deepcopy(measured)
    odd = ["a;b", "a,b", 'a "b"', "ab"]
    for row, name in zip(own["languages"], odd, strict=True):
        row["name"] = name
    opened = show(own)
    with opened.page.expect_download() as waiting:
        opened.page.click("button.csv[data-table=languages]")
    text = Path(waiting.value.path()).read_text(encoding="utf-8-sig")
    for cell in ('"a;b"', '"a,b"', '"a ""b"""'):
        assert f"\n{cell}," in text
    assert [line[0] for line in downloaded(opened, "languages")[1:]] == odd


def test_autonyms_keep_their_direction(show, measured) -> None:
    opened = show(measured)
    bdi = opened.page.locator("table#languages bdi", has_text="עברית")
    assert bdi.get_attribute("lang") == "he"
    assert bdi.evaluate("each => each.matches(':dir(rtl)')") is True
    label = next(each for each in opened.labels("languages") if "עברית" in each)
    assert "\u2067עברית\u2069" in label
    assert opened.page.locator("table#languages bdi", has_text="Kiswahili").evaluate("e => e.matches(':dir(ltr)')")


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
    assert opened.page.get_by_text("Not measured;").count() == 7
    opened.page.select_option("#sort", "name")
    assert opened.rows() == codes(own, lambda row: row["name"])
    assert len(downloaded(opened, "languages")) == 5
    assert opened.quiet()


@pytest.fixture
def many(measured) -> dict[str, Any]:
    """Returns the content of a report on 100 languages and 80 blocks."""
    own = copy.deepcopy(measured)
    count, blocks = 100, 80
    made = [f"l{i:02d}_Latn" for i in range(count)]
    own["languages"] = [copy.deepcopy(own["languages"][i % 4]) | {"code": code} for i, code in enumerate(made)]
    for row in own["languages"]:
        row["verdict"] = dict.fromkeys(own["units"], "less" if row["code"] < "l50" else None)
    for side in ("before", "after"):
        own["headline"]["worst"][side]["language"] = made[0]
    own["blocks"]["blocks"] = [{"block": i, "kappa": 1.0 + i, "sigma": 1.0, "largest": 2.0} for i in range(blocks)]
    wave = [[1 / blocks + (i * j % 7) / 9000 for j in range(blocks)] for i in range(count)]
    own["patterns"] = {"blocks": list(range(blocks)), "languages": made, "share": wave}
    own["causes"] |= {"blocks": list(range(blocks)), "languages": made, "damage": wave}
    for name, keys in (("curves", ("damage", "critical_width")), ("prediction", ("predicted", "measured"))):
        own[name] |= {key: [own[name][key][i % 4] for i in range(count)] for key in keys} | {"languages": made}
    roles = own["allocation"]["roles"]
    own["allocation"] |= {"blocks": list(range(blocks)), "bits": [[4] * blocks for _ in roles], "bytes": [9] * blocks}
    return own


DRAWN = """async () => {
  const before = performance.now();
  const drawn = new Promise((done) => document.querySelector("#fig-languages .plot").once("plotly_afterplot", done));
  const order = document.querySelector("#sort");
  order.value = "name";
  order.dispatchEvent(new Event("change"));
  await drawn;
  return performance.now() - before;
}"""
PATIENCE = 15_000
"""Milliseconds; a busy machine is slow, a page that draws a hundred times what it should is slower."""


def test_many_languages_and_blocks_are_drawn_in_time(show, many) -> None:
    opened = show(many)
    assert opened.page.evaluate("performance.now()") < PATIENCE
    assert opened.page.locator("#fig-languages .scatterlayer .point").count() == 200
    shares = opened.plotted("patterns")[0]["z"]
    assert (len(shares), len(shares[0])) == (100, 80)
    assert opened.page.evaluate(DRAWN) < PATIENCE
    assert opened.labels("languages")[0].endswith(sorted(row["name"] for row in many["languages"])[0])
    assert opened.quiet()


def test_the_page_says_what_it_is_to_those_who_do_not_see_it(show, measured) -> None:
    page = show(measured).page
    assert page.title() == f"{measured['model']}: fairbits report"
    assert page.locator("html").get_attribute("lang") == "en"
    assert measured["headline"]["sentences"][0] in page.locator("meta[name=description]").get_attribute("content")
    names = page.locator("h1, h2, h3, h4, h5, h6").evaluate_all("all => all.map(each => each.tagName)")
    levels = [int(name[1]) for name in names]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def overflow(opened: Any) -> int:
    return opened.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def test_a_phone_never_scrolls_sideways(show, measured) -> None:
    opened = show(measured, width=390)
    assert overflow(opened) == 0
    widths = opened.page.evaluate("[...document.querySelectorAll('.plot .main-svg')].map(e => e.clientWidth)")
    assert max(widths) <= 390
    long = hostile(measured, "a-very-long-name-without-any-space/" * 6)
    assert overflow(show(long, width=390)) == 0
    opened.page.set_viewport_size({"width": 800, "height": 900})
    opened.page.wait_for_timeout(600)
    assert opened.page.locator("#fig-languages .main-svg").first.evaluate("each => each.clientWidth") > 600


EDGE = """async (address) => {
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  const { data } = canvas.getImageData(0, 0, image.width, image.height);
  const rows = Array.from({ length: image.height }, (_, y) => data[4 * (y * image.width + 1)]);
  return rows.sort((a, b) => a - b)[Math.floor(rows.length / 2)];
}"""


def edge(opened: Any) -> int:
    """Returns how light the right edge of the table of languages is, from 0 to 255."""
    body = opened.page.locator("#languages tbody tr").first.bounding_box()
    box = opened.page.locator("#languages-box").bounding_box()
    clip = {"x": box["x"] + box["width"] - 3, "y": body["y"], "width": 2, "height": body["height"]}
    address = "data:image/png;base64," + base64.b64encode(opened.page.screenshot(clip=clip, full_page=True)).decode()
    blank = opened.page.context.new_page()
    found = blank.evaluate(EDGE, address)
    blank.close()
    return found


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_table_shows_where_it_goes_on_and_keeps_the_names_in_sight(show, measured, theme, width) -> None:
    opened = show(measured, width=width, color_scheme=theme)
    paper = {"light": 252, "dark": 20}[theme]
    cut = edge(opened)
    name = opened.page.locator("#languages tbody th").first
    before = name.bounding_box()
    assert before["width"] >= 110
    assert opened.page.locator("#languages-box").evaluate("box => (box.scrollLeft = 1e6, box.scrollLeft)") > 100
    assert name.bounding_box()["x"] == before["x"]
    assert abs(cut - paper) > 15
    assert abs(edge(opened) - paper) <= 2


def test_names_are_broken_after_colons_and_nowhere_else(show, measured) -> None:
    opened = show(measured, width=390)
    header = opened.page.locator("#languages thead button", has_text="mix=english")
    assert header.evaluate("each => each.firstElementChild.previousSibling.data") == "gptq:"
    assert header.text_content().startswith("gptq:mix=english, ")
    assert opened.page.locator("#languages tbody th span").first.evaluate("each => each.getClientRects().length") == 1
    heights = opened.page.locator("#languages tbody th").evaluate_all("all => all.map(each => each.clientHeight)")
    assert max(heights) < 90


def test_only_a_long_table_is_limited_in_height(show, measured, many) -> None:
    hidden = "box => box.scrollHeight - box.clientHeight"
    assert show(measured).page.locator("#languages-box").evaluate(hidden) <= 0
    assert show(many).page.locator("#languages-box").evaluate(hidden) > 1000


def test_the_theory_is_folded_and_needs_no_knowledge_of_the_project(show, measured) -> None:
    page = show(measured).page
    assert page.locator("#checks h2").text_content() == "Theory"
    assert page.locator("nav a[href='#checks']").text_content() == "Theory"
    assert "fairbits theory" in page.locator("#checks > p").first.text_content()
    check = page.get_by_text(measured["checklist"]["checks"][0]["text"], exact=False).first
    assert not check.is_visible()
    page.click("#checks summary")
    assert check.is_visible()
    said = page.evaluate("document.querySelector('main').textContent").lower()
    assert "founding" not in said
    assert "(001-03)" not in said
    assert page.locator("#fig-kappa figcaption").get_by_text("Rule of the research notes").count() == 1


def test_the_size_says_what_was_kept(show, measured) -> None:
    own = copy.deepcopy(measured)
    own["allocation"]["outside"] = [
        {"role": role, "name": role, "bits": bits, "bytes": None} for role, bits in (("embedding", None), ("head", 8))
    ]
    card = show(own).page.locator(".card").last
    assert "all tensors, as stored; embedding kept" in card.inner_text()
    assert "head" not in card.inner_text()
    for each in own["allocation"]["outside"]:
        each["bits"] = 8
    assert "kept" not in show(own).page.locator(".card").last.inner_text()


CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => {
    const part = (c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const found = rgb(getComputedStyle(at).backgroundColor);
      if (found[3] === 255) return found;
    }
    return [255, 255, 255];
  };
  const found = {};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
    if (node.closest("script, style, .heatmaplayer")) continue;
    const style = getComputedStyle(node);
    const [a, b] = [light(rgb(node.closest("svg") ? style.fill : style.color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const key = `${node.tagName} ${node.className.baseVal ?? node.className} ${style.color}`;
    found[key] = Math.min(found[key] ?? 99, ratio);
  }
  return found;
}"""


COLOURS = """async (address) => {
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  const { data } = canvas.getImageData(0, 0, image.width, image.height);
  return new Set(new Uint32Array(data.buffer)).size;
}"""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_and_screenshots_are_not_blank(show, measured, browser, keep, theme, width) -> None:
    opened = show(measured, width=width, color_scheme=theme)
    ratios = opened.page.evaluate(CONTRAST)
    assert len(ratios) > 20
    assert {key: ratio for key, ratio in ratios.items() if ratio < 4.5} == {}
    file = keep / f"report-{theme}-{width}.png"
    opened.page.screenshot(path=file, full_page=True)
    address = "data:image/png;base64," + base64.b64encode(file.read_bytes()).decode()
    blank = browser.new_page()
    assert blank.evaluate(COLOURS, address) > 500
    blank.close()
