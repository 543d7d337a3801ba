"""Figure: a plot in the form of plotly that a notebook shows without plotly and without a network."""

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fairbits.core.files import check_writable, write_files

PLOTLY = "assets/plotly/plotly-cartesian.min.js"
COLOURS = ("#3b5bdb", "#e8590c", "#2b8a3e", "#9c36b5", "#0b7285", "#c2255c")
HIDDEN_IN_SCRIPT = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}  # could end a script element
ROW, FRAME = 22, 130  # pixels of a row, and of everything around the rows
PAGE = """<!doctype html><meta charset="utf-8"><title>{title}</title>
<style>html,body{{margin:0;background:#fff}}</style><div id="plot"></div>
<script>{plotly}</script>
<script>Plotly.newPlot("plot",{data},{layout},{{displaylogo:false,responsive:true}})</script>"""


@dataclass(frozen=True, eq=False, repr=False)
class Figure:
    """Traces and layout as plotly reads them; the last value of a cell shows them."""

    title: str
    data: tuple[Mapping[str, Any], ...]
    layout: Mapping[str, Any]

    def __repr__(self) -> str:
        return f'Figure({self.title!r}): shown in a notebook; save("figure.html") writes it'

    def to_dict(self) -> dict[str, Any]:
        """Returns what `plotly.graph_objects.Figure` takes."""
        return {"data": [dict(trace) for trace in self.data], "layout": dict(self.layout)}

    def html(self) -> str:
        data, layout = (script_json(self.to_dict()[name]) for name in ("data", "layout"))
        return PAGE.format(title=html.escape(self.title), plotly=plotly_script(), data=data, layout=layout)

    def save(self, path: str | Path) -> None:
        write_files({check_writable(path, example="figure.html"): self.html().encode()})

    def _repr_html_(self) -> str:
        height = int(self.layout.get("height", 400)) + 10
        style = f"width:100%;height:{height}px;border:0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(self.html())}"></iframe>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:  # noqa: ARG002
        return {
            "text/plain": repr(self),
            "text/html": self._repr_html_(),
            "application/vnd.plotly.v1+json": self.to_dict(),
        }


def dots(
    title: str, series: Mapping[str, Mapping[str, tuple[float, float, float]]], *, axis: str, order: Sequence[str]
) -> Figure:
    """Returns a figure with a row for each name in `order`, and a dot per series (value, low, high by name)."""
    traces = []
    step = 0.6 / max(1, len(series))
    for i, (name, points) in enumerate(series.items()):
        shift = (i - (len(series) - 1) / 2) * step
        shown = [(row, points[label]) for row, label in enumerate(order) if label in points]
        values = [value for _, (value, _, _) in shown]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": values,
                "y": [row + shift for row, _ in shown],
                "text": [order[row] for row, _ in shown],
                "hovertemplate": "%{text}: %{x:.4g}<extra>%{fullData.name}</extra>",
                "marker": {"size": 8, "color": COLOURS[i % len(COLOURS)]},
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [_length(high - value) for _, (value, _, high) in shown],
                    "arrayminus": [_length(value - low) for _, (value, low, _) in shown],
                    "thickness": 1.5,
                    "width": 3,
                },
            }
        )
    rows = {"tickvals": list(range(len(order))), "ticktext": list(order), "autorange": "reversed", "zeroline": False}
    return Figure(title, tuple(traces), _layout(title, axis, rows, len(order), legend=len(series) > 1))


def heatmap(
    title: str, values: Sequence[Sequence[float | None]], *, rows: Sequence[str], columns: Sequence[str], axis: str
) -> Figure:
    """Returns a figure of a matrix, its first row on top."""
    trace = {
        "type": "heatmap",
        "z": [list(row) for row in values],
        "x": list(columns),
        "y": list(rows),
        "colorscale": "Blues",
        "reversescale": True,
        "hovertemplate": "%{y}, %{x}: %{z:.4g}<extra></extra>",
    }
    layout = _layout(title, axis, {"autorange": "reversed", "type": "category"}, len(rows), legend=False)
    layout["xaxis"]["type"] = "category"
    return Figure(title, (trace,), layout)


def _layout(title: str, axis: str, rows: Mapping[str, Any], count: int, *, legend: bool) -> dict[str, Any]:
    return {
        "title": {"text": title, "font": {"size": 15}},
        "height": FRAME + ROW * max(count, 4),
        "margin": {"l": 90, "r": 20, "t": 50, "b": 50},
        "xaxis": {"title": {"text": axis}, "automargin": True, "zeroline": True},
        "yaxis": {"automargin": True, **rows},
        "showlegend": legend,
        "font": {"family": "system-ui, sans-serif"},
    }


def _length(side: float) -> float:
    return side if 0 <= side < float("inf") else 0.0


def script_json(content: Any) -> str:
    """Returns content as JSON that is safe within a script element."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(HIDDEN_IN_SCRIPT)


@cache
def plotly_script() -> str:
    """Returns the part of plotly.js that comes with fairbits."""
    return files("fairbits").joinpath(PLOTLY).read_text(encoding="utf-8")
