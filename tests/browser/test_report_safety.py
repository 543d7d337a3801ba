"""A report in a real Chromium: themes, the keyboard, and text that means harm."""

import copy
from pathlib import Path

import pytest


@pytest.mark.long
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
    page.wait_for_timeout(1000)  # Chromium stores it a moment later
    page.reload()
    page.locator("html[data-ready=true]").wait_for(state="attached")
    assert colours() == dark
    assert show(measured, color_scheme="dark").page.evaluate("getComputedStyle(document.body).color") == dark[1]


@pytest.mark.long
def test_everything_is_reached_with_the_keyboard(show, measured) -> None:
    opened = show(measured)
    page, reached = opened.page, set()
    wanted = page.evaluate(
        "[...document.querySelectorAll('button, select, input:not([type=radio]), input[type=radio]:checked, .plot')]"
        ".map((element, i) => (element.dataset.stop = String(i)))"
    )
    for _ in range(len(wanted) + 60):
        page.keyboard.press("Tab")
        at = page.evaluate(
            "(() => { const focused = document.activeElement, style = getComputedStyle(focused);"
            " return [focused.dataset.stop, style.outlineStyle, parseFloat(style.outlineWidth)]; })()"
        )
        if at[0] is not None:
            reached.add(at[0])
            assert at[1] != "none"
            assert at[2] >= 2
    assert reached == set(wanted)


HOSTILE = (
    "<img src=x onerror='window.executed = true'></script><script>window.executed = true</script>",
    "<a href='javascript:window.executed=true'>a</a><a href='https://e.example/'>b</a><b>c</b>{{ 7 * 7 }}",
)


@pytest.mark.parametrize("odd", HOSTILE)
def test_hostile_text_is_shown_and_does_nothing(show, measured, hostile, odd) -> None:
    modified = hostile(measured, odd)
    opened = show(modified)
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


def test_changes_of_direction_and_formulas_are_disarmed(show, measured, hostile) -> None:
    modified = hostile(measured, '=HYPERLINK("x")\u202eevil\x1b')
    opened = show(modified)
    text = '=HYPERLINK("x")\\u202eevil\\u001b'
    assert opened.page.locator("h1").inner_text() == text
    assert "\u202e" not in opened.page.content()
    head, *lines = opened.downloaded("languages")
    cells = [cell for line in (head, *lines) for cell in line]
    assert f"'{text}" in cells
    assert not any(cell.startswith(("=", "@", "+")) for cell in cells)


def test_cells_of_a_file_are_quoted(show, measured) -> None:
    modified = copy.deepcopy(measured)
    odd = ["a;b", "a,b", 'a "b"', "ab"]
    for row, name in zip(modified["languages"], odd, strict=True):
        row["name"] = name
    opened = show(modified)
    with opened.page.expect_download() as waiting:
        opened.page.click("button.csv[data-table=languages]")
    text = Path(waiting.value.path()).read_text(encoding="utf-8-sig")
    for cell in ('"a;b"', '"a,b"', '"a ""b"""'):
        assert f"\n{cell}," in text
    assert [line[0] for line in opened.downloaded("languages")[1:]] == odd


def test_autonyms_keep_their_direction(show, measured) -> None:
    opened = show(measured)
    bdi = opened.page.locator("table#languages bdi", has_text="עברית")
    assert bdi.get_attribute("lang") == "he"
    assert bdi.evaluate("element => element.matches(':dir(rtl)')") is True
    label = next(text for text in opened.labels("languages") if "עברית" in text)
    assert "\u2067עברית\u2069" in label
    assert opened.page.locator("table#languages bdi", has_text="Kiswahili").evaluate("e => e.matches(':dir(ltr)')")
