"""A figure as a notebook shows it: in a frame, drawn by what it brings itself."""

from pathlib import Path
from typing import Any

from fairbits.core.figure import dots


def test_a_notebook_draws_the_figure_and_asks_for_nothing(browser: Any, tmp_path: Path) -> None:
    series = {"rtn": {"heb": (3.0, 2.0, 4.5), "deu": (1.0, 0.5, 1.5)}}
    file = tmp_path / "notebook.html"
    file.write_text(dots("damage", series, axis="bits per byte", order=["heb", "deu"])._repr_html_(), encoding="utf-8")
    page = browser.new_page()
    asked: list[str] = []
    messages: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(file.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator(".scatterlayer .point").first.wait_for()
    assert frame.locator(".scatterlayer .point").count() == 2
    assert frame.locator(".ytick").all_text_contents() == ["heb", "deu"]
    assert (asked, messages) == ([file.as_uri()], [])
    page.close()
