"""A report as a self-contained HTML page that makes no network requests.

The page carries its style, its scripts and its numbers. Its Content-Security-Policy lets only those scripts run, by
their hashes: text from a model or a user is escaped, and could not run even if it were not.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from fairbits.core.errors import printable
from fairbits.core.figure import plotly_script, script_json
from fairbits.core.units import readable_size
from fairbits.evaluation.meaning import SIGNIFICANT, SUGGESTED
from fairbits.reports.headline import SAME_SIZE, in_words, origin
from fairbits.reports.report_languages import CHANGED

EARLY = "theme.js"  # runs before anything is painted, so that a dark page does not flash
SCRIPTS = ("content.js", "table.js", "figure.js", "languages.js", "blocks.js", "heatmaps.js", "curves.js", "main.js")
"""They share one scope, in this order."""
DIGITS = 6  # significant digits of a number in the page and its tables; report.json has all of them


def page(content: Mapping[str, Any]) -> str:
    """Returns the page: HTML with everything inlined."""
    shown = _shown(content)
    policy_used = shown["provenance"]["policy"]
    for place, method in enumerate(shown["methods"]):
        method["name"] = in_words(method["name"], policy_used["settings"] if policy_used and place == 0 else None)
    early, plotly, late = _scripts()
    return _template().render(
        report=shown,
        names={row["code"]: row["name"] for row in shown["languages"]},
        groups=group_notes(shown["notes"]),
        content=Markup(script_json(shown)),
        policy=policy([early, plotly, late]),
        style=Markup(_asset("reports/templates/style.css")),
        early=Markup(early),
        plotly=Markup(plotly),
        late=Markup(late),
        significant=SIGNIFICANT,
        same_size=SAME_SIZE,
        suggested=SUGGESTED,
        changed=CHANGED,
        origin=origin(shown),
    )


def policy(scripts: Iterable[str]) -> str:
    """Returns the Content-Security-Policy of a page: these scripts, its own style and drawn images, nothing else."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def group_notes(notes: Iterable[Mapping[str, str]]) -> list[list[Mapping[str, str]]]:
    """Returns notes in groups of those that differ only in their numbers."""
    groups: dict[str, list[Mapping[str, str]]] = {}
    for note in notes:
        groups.setdefault(re.sub(r"\S*\d\S*", "0", note["text"]), []).append(note)
    return list(groups.values())


def signed(value: float, decimals: int = 4) -> str:
    """Returns a number with a typographic minus sign."""
    return f"{value:.{decimals}f}".replace("-", "−")


def times(ratio: Mapping[str, Any] | None, is_first: bool) -> str:
    """Returns the ratio of a group's damage to that of the first group; a dash if there is none."""
    if ratio is None:
        return "1" if is_first else "–"
    low, high = limits(ratio)
    return f"{ratio['value']:.2f} ({low:.2f} to {high:.2f})"


def change(number: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how a number differs from the baseline's, by the paired difference if there is one."""
    after, before, paired = number["quantized"], number["baseline"], number["difference"]
    moved = after["value"] - before["value"]
    way = "lower" if moved < 0 else "higher"
    words = f"{abs(moved) / before['value']:.0%} {way}".replace("%", " %") if before["value"] > 0 else way
    if any(estimate is not None and estimate["low"] is None for estimate in (after, before, paired)):
        sure, doubt = False, "no interval"
    elif paired is None:
        sure, doubt = after["high"] < before["low"] or after["low"] > before["high"], "intervals overlap"
    else:
        sure, doubt = paired["high"] < 0 or paired["low"] > 0, "not significant"
    kind = ("less" if moved < 0 else "more") if sure else ""
    return {"words": words, "doubt": "" if sure else f"; {doubt}", "sign": "▼" if moved < 0 else "▲", "kind": kind}


def limits(estimate: Mapping[str, Any]) -> tuple[float, float]:
    """Returns the ends of the bar that shows an estimate: its limits, or its value if it has no interval."""
    value, low, high = estimate["value"], estimate["low"], estimate["high"]
    return (value, value) if low is None else (low, high)


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {printable(str(key)): _shown(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(member) for member in value]
    return value


def _asset(path: str) -> str:
    return files("fairbits").joinpath(path).read_text(encoding="utf-8")


@cache
def _scripts() -> tuple[str, str, str]:
    late = "\n".join(_asset(f"reports/templates/{name}") for name in SCRIPTS)
    return _asset(f"reports/templates/{EARLY}"), plotly_script(), late


def templates(*, autoescape: bool) -> Environment:
    """Returns the environment of the templates."""
    return Environment(
        loader=PackageLoader("fairbits", "reports/templates"),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not autoescape,
    )


@cache
def _template() -> Template:
    environment = templates(autoescape=True)
    environment.filters.update(size=readable_size, signed=signed, times=times)
    environment.globals.update(change=change, limits=limits)
    return environment.get_template("page.html")
