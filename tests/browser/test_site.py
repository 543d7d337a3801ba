"""The site builds without a warning or a network, and its first page shows the report of the demo."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
import typer

from fairbits.cli import app
from fairbits.reports.content import Report

ROOT = Path(__file__).parents[2]
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(measured, tmp_path_factory) -> Path:
    """Returns the directory of the site, with the report of a small run as that of the demo."""
    pytest.importorskip("mkdocs")
    out = tmp_path_factory.mktemp("site")
    Report(measured).save(out / "demo.html")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", out / "site"]
    environment = {**os.environ, "DEMO_REPORT": str(out / "demo.html")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    return out / "site"


@pytest.fixture(scope="module")
def address(site) -> Iterator[str]:
    """Returns where a web server of this machine serves the site."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_pages_ask_nothing_of_the_network(site) -> None:
    pages = {page.relative_to(site).as_posix(): page.read_text("utf-8") for page in site.rglob("*.html")}
    for page, html in pages.items():
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="([^"]*)"', html)
        loaded += re.findall(r'<link[^>]* rel="(?:stylesheet|preconnect|icon)"[^>]*>', html)
        assert not [resource for resource in loaded if "//" in resource], page
    for command in typer.main.get_command(app).commands:
        assert f'<h2 id="{command}">' in pages["reference/cli/index.html"]
    assert "fairbits.evaluate" in pages["reference/python/index.html"]
    assert "<blockquote>" not in pages["reference/python/index.html"], "a doctest is shown as a quotation"


def test_no_site_without_the_report(tmp_path) -> None:
    exceptions = pytest.importorskip("mkdocs.exceptions")
    demo_report = runpy.run_path(str(ROOT / "docs" / "hooks.py"))["demo_report"]
    config = SimpleNamespace(config_file_path=tmp_path / "mkdocs.yml", extra={"demo_report": "missing.html"})
    with pytest.raises(exceptions.PluginError, match=r"missing\.html is not there.*`make demo` writes it"):
        demo_report(config)


@pytest.mark.parametrize("width", [1280, 390])
def test_first_page_shows_the_report_without_scrolling_sideways(browser, address, width) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    frame = page.frame_locator("iframe.report")
    frame.locator("html[data-ready=true]").wait_for(state="attached")
    assert frame.locator("#fig-languages .plot .main-svg").first.is_visible()
    box = page.locator("iframe.report").bounding_box()
    assert box["y"] < 600, "the report begins above the fold"
    assert box["width"] > 0.95 * width
    assert [opened.evaluate(OVERFLOW) for opened in page.frames] == [0, 0]
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    page.close()
