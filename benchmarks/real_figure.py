"""The figure of docs/results.md: the divergence of every language under every policy, one panel for each model."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from fairbits.stats.frame import LanguageFrame
from fairbits.text.language_codes import language_from_code

COLOURS = ("#868e96", "#e8590c", "#3b5bdb", "#2b8a3e", "#862e9c", "#c2255c")
STYLE = {
    "svg.hashsalt": "fairbits",  # the same bytes every time
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e9ecef",
}
APART = 0.18
"""Rows between the points of two policies in one language."""

Frames = Mapping[str, LanguageFrame]


def draw(models: Mapping[str, Frames], path: Path, *, order: str) -> None:
    """Writes the figure as SVG; languages are in the order of their divergence under the policy `order`."""
    rows = max(len(frame.languages) for frames in models.values() for frame in frames.values())
    with pyplot.rc_context(STYLE):
        size = (3.2 * len(models) + 1.2, 0.24 * rows + 1.4)
        canvas, panels = pyplot.subplots(1, len(models), squeeze=False, figsize=size, layout="constrained")
        for axes, (title, frames) in zip(panels[0], models.items(), strict=True):
            _panel(axes, frames, order)
            axes.set(title=title, xlabel="KL, bits per byte", xlim=(0, None))
        panels[0][-1].legend(frameon=False, fontsize=8, loc="lower right")
        canvas.savefig(path, metadata={"Date": None})
        pyplot.close(canvas)


def _panel(axes: Axes, frames: Frames, order: str) -> None:
    first = frames[order].by_language()
    codes = sorted(first, key=lambda code: first[code].value)
    for i, (name, frame) in enumerate(frames.items()):
        estimates = frame.by_language()
        values = np.array([estimates[code].value for code in codes])
        limits = np.array([(estimates[code].low, estimates[code].high) for code in codes]).T
        axes.errorbar(
            values,
            np.arange(len(codes)) + APART * ((len(frames) - 1) / 2 - i),
            xerr=np.abs(limits - values),
            fmt="o",
            markersize=3,
            linewidth=0.8,
            color=COLOURS[i % len(COLOURS)],
            label=name.strip("`"),
        )
    axes.set_yticks(range(len(codes)), [language_from_code(code).name for code in codes])
