"""Draws the figures of docs/research/experiments.md: `python data/research_figures.py docs/assets/research`."""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from fairbits_research.experiments.result import ResultFigure, Series
from fairbits_research.experiments.stored_results import all_records

COLOURS = ("#3b5bdb", "#e8590c", "#2b8a3e", "#862e9c", "#868e96", "#c2255c", "#1098ad", "#5c940d", "#000000")
MARKS = "osD^vPXd*"
LABELLED = 30
"""Points up to which each is labelled."""
STYLE = {
    "svg.hashsalt": "fairbits",  # the same bytes every time
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e9ecef",
    "figure.figsize": (7.2, 4.2),
}


def draw(figure: ResultFigure, path: Path) -> None:
    """Writes a figure as SVG."""
    with pyplot.rc_context(STYLE):
        canvas, axes = pyplot.subplots(layout="constrained")
        for i, series in enumerate(figure.series):
            _series(axes, series, lines=figure.lines, look=i)
        axes.set(title=figure.title, xlabel=figure.x, ylabel=figure.y)
        if "x" in figure.log:
            axes.set_xscale("log")
        if "y" in figure.log:
            axes.set_yscale("log")
        if len(figure.series) > 1:
            axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
        canvas.savefig(path, metadata={"Date": None})
        pyplot.close(canvas)


def _series(axes: Axes, series: Series, *, lines: bool, look: int) -> None:
    colour, mark = COLOURS[look % len(COLOURS)], MARKS[look % len(MARKS)]
    if series.low:
        below = [max(y - low, 0) for y, low in zip(series.y, series.low, strict=True)]
        above = [max(high - y, 0) for y, high in zip(series.y, series.high, strict=True)]
        axes.errorbar(series.x, series.y, yerr=(below, above), fmt="none", ecolor=colour, alpha=0.4, capsize=2)
    axes.plot(
        series.x,
        series.y,
        mark,
        color=colour,
        label=series.name,
        markersize=4,
        linestyle="-" if lines else "",
        alpha=0.9,
    )
    if series.labels and len(series.labels) <= LABELLED:
        for x, y, label in zip(series.x, series.y, series.labels, strict=True):
            axes.annotate(label.split("_")[0], (x, y), xytext=(4, 2), textcoords="offset points", fontsize=7)


def main(out: Path) -> None:
    """Draws every figure."""
    out.mkdir(parents=True, exist_ok=True)
    for name, results in all_records().items():
        for where, result in results.items():
            draw(result.figure, out / f"{where}-{name}.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
