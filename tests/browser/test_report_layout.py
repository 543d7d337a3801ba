"""How a report looks in a real Chromium: many languages, a phone, contrast, screenshots."""

import base64
import copy
from itertools import pairwise
from typing import Any

import pytest

pytestmark = pytest.mark.long


@pytest.fixture
def many(measured) -> dict[str, Any]:
    """Returns the content of a report on 100 languages and 80 blocks."""
    content = copy.deepcopy(measured)
    count, blocks = 100, 80
    codes = [f"l{i:02d}_Latn" for i in range(count)]
    content["languages"] = [copy.deepcopy(content["languages"][i % 4]) | {"code": code} for i, code in enumerate(codes)]
    for row in content["languages"]:
        row["verdict"] = dict.fromkeys(content["units"], "less" if row["code"] < "l50" else None)
    for side in ("baseline", "quantized"):
        content["headline"]["worst"][side]["language"] = codes[0]
        content["headline"]["changed"]["worst"][side]["language"] = codes[0]
    content["blocks"]["blocks"] = [{"block": i, "kappa": 1.0 + i, "sigma": 1.0, "largest": 2.0} for i in range(blocks)]
    wave = [[1 / blocks + (i * j % 7) / 9000 for j in range(blocks)] for i in range(count)]
    content["patterns"] = {"blocks": list(range(blocks)), "languages": codes, "share": wave}
    content["causes"] |= {"blocks": list(range(blocks)), "languages": codes, "damage": wave}
    for name, keys in (("curves", ("damage", "critical_width")), ("prediction", ("predicted", "measured", "trusted"))):
        content[name] |= {key: [content[name][key][i % 4] for i in range(count)] for key in keys} | {"languages": codes}
    roles = content["allocation"]["roles"]
    content["allocation"] |= {
        "blocks": list(range(blocks)),
        "bits": [[4] * blocks for _ in roles],
        "bytes": [9] * blocks,
    }
    return content


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
    page = show(measured, folded=True).page
    assert page.title() == f"{measured['model']}: fairbits report"
    assert page.locator("html").get_attribute("lang") == "en"
    assert measured["headline"]["sentences"][0] in page.locator("meta[name=description]").get_attribute("content")
    names = page.locator("h1, h2, h3, h4, h5, h6").evaluate_all("all => all.map(heading => heading.tagName)")
    levels = [int(name[1]) for name in names]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def overflow(opened: Any) -> int:
    return opened.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def test_a_phone_never_scrolls_sideways(show, measured, hostile) -> None:
    opened = show(measured, width=390)
    assert overflow(opened) == 0
    widths = opened.page.evaluate("[...document.querySelectorAll('.plot .main-svg')].map(e => e.clientWidth)")
    assert max(widths) <= 390
    long = hostile(measured, "a-very-long-name-without-any-space/" * 6)
    assert overflow(show(long, width=390)) == 0
    opened.page.set_viewport_size({"width": 800, "height": 900})
    opened.page.wait_for_timeout(600)
    assert opened.page.locator("#fig-languages .main-svg").first.evaluate("svg => svg.clientWidth") > 600


PIXELS = """async (address) => {
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  const { data } = canvas.getImageData(0, 0, image.width, image.height);
"""
EDGE = (
    PIXELS
    + """
  const rows = Array.from({ length: image.height }, (_, y) => data[4 * (y * image.width + 1)]);
  return rows.sort((a, b) => a - b)[Math.floor(rows.length / 2)];
}"""
)


def edge(opened: Any) -> int:
    """Returns how light the right edge of the table of languages is, from 0 to 255."""
    body = opened.page.locator("#languages tbody tr").first.bounding_box()
    box = opened.page.locator("#languages-box").bounding_box()
    clip = {"x": box["x"] + box["width"] - 3, "y": body["y"], "width": 2, "height": body["height"]}
    address = "data:image/png;base64," + base64.b64encode(opened.page.screenshot(clip=clip, full_page=True)).decode()
    blank = opened.page.context.new_page()
    lightness = blank.evaluate(EDGE, address)
    blank.close()
    return lightness


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_table_shows_where_it_goes_on_and_keeps_the_names_in_sight(show, measured, theme, width) -> None:
    opened = show(measured, width=width, color_scheme=theme)
    hidden = "box => box.scrollWidth - box.clientWidth"
    assert opened.page.locator("#languages-box").evaluate(hidden) == 0
    opened.page.check("#wide")
    opened.page.evaluate("scrollTo(0, 0)")
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
    modified = copy.deepcopy(measured)
    modified["methods"][1]["name"] = "rtn:group=32"
    opened = show(modified, width=390)
    opened.page.check("#wide")
    header = opened.page.locator("#languages thead button[data-key=before]")
    assert header.evaluate("button => button.firstElementChild.previousSibling.data") == "rtn:"
    assert header.text_content().startswith("rtn:group=32, ")
    assert opened.page.locator("#languages tbody th span").first.evaluate("span => span.getClientRects().length") == 1
    heights = opened.page.locator("#languages tbody th").evaluate_all("all => all.map(cell => cell.clientHeight)")
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
    text = page.evaluate("document.querySelector('main').textContent").lower()
    assert "founding" not in text
    assert "(001-03)" not in text
    assert page.locator("#fig-kappa figcaption").get_by_text("Rule of the research notes").count() == 1


def test_details_are_closed_until_they_are_wanted(show, measured) -> None:
    opened = show(measured, folded=True)
    page = opened.page
    assert not page.locator("#checks h2").is_visible()
    assert not page.locator("nav a[href='#checks']").is_visible()
    assert page.locator("#fig-kappa .main-svg").count() == 0
    page.evaluate("location.hash = 'use'")
    page.locator("#fig-prediction .main-svg").first.wait_for()
    page.wait_for_timeout(300)
    assert page.locator("nav a[href='#checks']").is_visible()
    assert abs(page.locator("#use").bounding_box()["y"]) < 200
    page.click("#details > summary")
    assert not page.locator("#checks h2").is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#checks h2").is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert not page.locator("#checks h2").is_visible()
    assert opened.quiet()


@pytest.mark.parametrize("width", [1280, 390])
def test_bars_stay_in_their_cards(show, measured, width) -> None:
    modified = copy.deepcopy(measured)
    sizes = modified["headline"]["size"]
    sizes |= {"quantized": 2.86 * sizes["reference"], "why": "the embedding is not quantized"}
    opened = show(modified, width=width)
    assert "286 % of the reference model, so it is larger" in opened.page.locator(".card").last.inner_text()
    bars = opened.page.locator(".bulk i").evaluate_all(
        "all => all.map(bar => parseFloat(getComputedStyle(bar, '::after').width) - bar.clientWidth)"
    )
    assert max(bars) <= 0.5
    assert overflow(opened) == 0


def test_the_size_says_what_was_not_quantized(show, measured) -> None:
    modified = copy.deepcopy(measured)
    modified["allocation"]["outside"] = [
        {"role": role, "name": role, "bits": bits, "bytes": None} for role, bits in (("embedding", None), ("head", 8))
    ]
    card = show(modified).page.locator(".card").last
    assert "all tensors, as stored; embedding not quantized" in card.inner_text()
    assert "head" not in card.inner_text()
    for entry in modified["allocation"]["outside"]:
        entry["bits"] = 8
    assert "not quantized" not in show(modified).page.locator(".card").last.inner_text()


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
      const background = rgb(getComputedStyle(at).backgroundColor);
      if (background[3] === 255) return background;
    }
    return [255, 255, 255];
  };
  const ratios = {};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
    if (node.closest("script, style, .heatmaplayer")) continue;
    const style = getComputedStyle(node);
    const [a, b] = [light(rgb(node.closest("svg") ? style.fill : style.color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const key = `${node.tagName} ${node.className.baseVal ?? node.className} ${style.color}`;
    ratios[key] = Math.min(ratios[key] ?? 99, ratio);
  }
  return ratios;
}"""


COLOURS = f"{PIXELS} return new Set(new Uint32Array(data.buffer)).size; }}"


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
