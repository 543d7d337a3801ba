"""Pictures of a report, for the README: `python data/report_pictures.py REPORT.html OUT_DIR`.

Writes report-light.png and report-dark.png: the top of the page, 1280 pixels wide, to the end of the first figure.
Needs playwright and a Chromium among the commands.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

WIDTH = 1280
MOST_ROWS = 8
"""Of the figure, as a README has little room."""
LARGEST = 300_000
"""Bytes of a picture."""


def picture(browser: Any, address: str, theme: str) -> bytes:
    """Returns the top of a page in a theme as PNG."""
    page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme=theme, reduced_motion="reduce")
    page.goto(address)
    page.locator("html[data-ready=true]").wait_for(state="attached")
    end = page.evaluate(
        "count => { const rows = [...document.querySelectorAll('#fig-languages .ytick text')]"
        ".map(each => each.getBoundingClientRect().bottom).sort((a, b) => a - b);"
        " return rows[Math.min(count, rows.length) - 1] + scrollY; }",
        MOST_ROWS,
    )
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": round(end) + 8}
    taken: bytes = page.screenshot(clip=clip, full_page=True)
    page.close()
    return taken


def main(report: str, out: str) -> None:
    """Writes both pictures."""
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for theme in ("light", "dark"):
            taken = picture(browser, Path(report).resolve().as_uri(), theme)
            if len(taken) > LARGEST:
                sys.exit(f"the {theme} picture has {len(taken):,} bytes; it must have at most {LARGEST:,}")
            file = Path(out) / f"report-{theme}.png"
            file.write_bytes(taken)
            print(f"{file}: {len(taken):,} bytes")
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
