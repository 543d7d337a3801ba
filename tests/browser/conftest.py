"""Reports in a real Chromium: pages that are opened from disk, and what they say and ask for meanwhile."""

import copy
import csv
import io
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fairbits.api.report import report
from fairbits.reports.content import Report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

DRAWN = "[...document.querySelectorAll('.plot')].every(plot => plot.querySelector('.main-svg'))"
"""What is true when every figure has been drawn."""
PAUSE = 500
"""Milliseconds after which the figures have followed what was typed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", metavar="DIR", help="where to keep the screenshots of the report")


@dataclass
class Opened:
    """A page of a report, what its console said, and what it asked for beside itself."""

    page: Any
    address: str
    messages: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def quiet(self) -> bool:
        """Returns whether nothing was said and nothing was asked for."""
        return not self.messages and not self.asked

    def type(self, text: str) -> None:
        """Types into the search field, and waits until the figures have followed."""
        self.page.fill("#search", text)
        self.page.wait_for_timeout(PAUSE)

    def rows(self) -> list[str]:
        """Returns the codes of the languages in the table, from the top."""
        return self.page.locator("table#languages tbody tr").evaluate_all("all => all.map(row => row.dataset.code)")

    def plotted(self, figure: str) -> list[dict[str, Any]]:
        """Returns the numbers that plotly was given for a figure."""
        return self.page.evaluate(
            "name => document.querySelector(`#fig-${name} .plot`).data.map(({x, y, z, mode, type}) => "
            "({x: x && [...x], y: y && [...y], z: z && z.map(row => [...row]), mode, type}))",
            figure,
        )

    def downloaded(self, table: str) -> list[list[str]]:
        """Returns the rows of the file that a button gives."""
        with self.page.expect_download() as waiting:
            self.page.click(f"button.csv[data-table={table}]")
        text = Path(waiting.value.path()).read_text(encoding="utf-8-sig")
        return list(csv.reader(io.StringIO(text, newline="")))

    def labels(self, figure: str) -> list[str]:
        """Returns the names beside the rows of a figure, from the top, as they are shown."""
        labels = self.page.evaluate(
            "name => [...document.querySelectorAll(`#fig-${name} .ytick text`)]"
            ".map(tick => [tick.getBoundingClientRect().top, tick.textContent])",
            figure,
        )
        return [text for _, text in sorted(labels)]


@pytest.fixture
def keep(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Returns the directory that screenshots are put into."""
    directory = Path(request.config.getoption("--screenshots", default=None) or tmp_path)
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Returns Chromium; without it, or without playwright, there is nothing to test with."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    executable = next(filter(None, map(shutil.which, NAMES)), None)
    if executable is None:
        pytest.skip(f"there is no Chromium among the commands ({', '.join(NAMES)}): install one")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def measured(finished_run: Path) -> dict[str, Any]:
    """Returns the content of the report of a small run, in which one language is significantly better and one worse.

    By added loss per token, nothing is significant; one point of the curves is below 0.
    """
    content = copy.deepcopy(dict(report(finished_run).content))
    content["headline"] |= {"better": ["heb_Hebr"], "worse": ["swh_Latn"]}
    verdicts = {"heb_Hebr": "less", "swh_Latn": "more"}
    for row in content["languages"]:
        row["verdict"] = dict.fromkeys(content["units"]) | {"changed_of_100": verdicts.get(row["code"])}
    content["curves"]["damage"][0][-1] = {"value": -0.001, "low": -0.002, "high": 0.001}
    return content


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Returns the function that writes the page of some content, opens it with its details, and waits until drawn."""
    contexts = []

    def show(content: dict[str, Any], *, width: int = 1280, folded: bool = False, **settings: Any) -> Opened:
        file = tmp_path / f"report-{len(contexts)}.html"
        Report(content).save(file)
        context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce", **settings)
        contexts.append(context)
        context.add_init_script("window.executed = false; window.alert = () => { window.executed = true; };")
        context.set_default_timeout(15_000)
        opened = Opened(context.new_page(), file.as_uri())
        page = opened.page
        page.on("console", lambda message: opened.messages.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: opened.messages.append(str(error)))
        page.on("request", lambda request: opened.asked.append(request.url))
        page.goto(opened.address)
        wait(page)
        if not folded:
            page.click("#details > summary")
            while not page.evaluate(DRAWN):
                page.wait_for_timeout(50)
            page.evaluate("scrollTo(0, 0)")
        opened.asked.remove(opened.address)
        return opened

    yield show
    for context in contexts:
        context.close()


def wait(page: Any) -> None:
    """Waits until every figure is drawn; the page lets nobody evaluate text, so this asks for an element."""
    page.locator("html[data-ready=true]").wait_for(state="attached")


@pytest.fixture
def hostile() -> Callable[[dict[str, Any], str], dict[str, Any]]:
    """Returns the function that puts an odd text wherever a model or a user has a say."""
    return _hostile


def _hostile(content: dict[str, Any], odd: str) -> dict[str, Any]:
    """Returns the content with hostile text wherever a model or a user can put some."""
    modified = copy.deepcopy(content)
    code = modified["languages"][0]["code"]
    modified["model"] = modified["family"] = odd
    for method in modified["methods"]:
        method |= {"name": odd, "target": odd}
    modified["headline"]["sentences"][0] = odd
    modified["languages"][0] |= dict.fromkeys(("code", "name", "autonym", "bcp47", "script", "family"), odd)
    for number in (modified["headline"]["worst"], modified["headline"]["changed"]["worst"]):
        for side in ("baseline", "quantized"):
            if number[side]["language"] == code:
                number[side]["language"] = odd
    for name in ("patterns", "causes", "prediction", "curves"):
        modified[name]["languages"] = [
            odd if language == code else language for language in modified[name]["languages"]
        ]
    for rule in modified["blocks"]["outliers"].values():
        rule["remark"] = odd
    modified["prediction"] |= {"like": False, "made_with": odd}
    modified["causes"]["scheme"] = modified["prediction"]["scheme"] = odd
    modified["curves"]["policy"] = modified["curves"]["unit"] = odd
    modified["curves"]["verdict"] = [odd]
    modified["curves"]["critical_width"] = [odd] * 4
    modified["allocation"]["roles"][0] = odd
    modified["allocation"]["outside"] = [{"role": odd, "name": odd, "bits": None, "bytes": None}]
    modified["checklist"] |= {"risk": odd, "strategy": odd}
    for entry in (*modified["checklist"]["checks"], *modified["checklist"]["conditions"]):
        entry |= {name: odd for name, was in entry.items() if isinstance(was, str)}
    modified["certificate"] |= {"worse": odd, "better": odd}
    for model in modified["provenance"]["models"]:
        model |= dict.fromkeys(("name", "target", "fingerprint"), odd)
    modified["provenance"]["evaluation"] |= {"text": odd, "hashes": {odd: odd}}
    modified["provenance"] |= {"run": {odd: odd}, "files": {odd: odd}, "versions": {odd: odd}}
    modified["notes"] = [{"from": odd, "text": odd}]
    return modified
