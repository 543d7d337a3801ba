"""Figures are plotly's own form, in a page that asks for nothing."""

import html
import json
import math
import re
from pathlib import Path

from fairbits.core.figure import dots, heatmap

SERIES = {
    "rtn": {"heb": (3.0, 2.0, 4.5), "<deu>": (1.0, -math.inf, math.inf)},
    "gptq": {"heb": (1.5, 1.0, 2.0)},
}


def test_a_dot_and_an_interval_for_every_name() -> None:
    figure = dots("damage", SERIES, axis="bits per byte", order=["heb", "<deu>"]).to_dict()
    first, second = figure["data"]
    assert (first["x"], first["text"]) == ([3.0, 1.0], ["heb", "<deu>"])
    assert (first["error_x"]["array"], first["error_x"]["arrayminus"]) == ([1.5, 0.0], [1.0, 0.0])
    assert second["x"] == [1.5]
    assert first["y"][0] < second["y"][0] < first["y"][1]
    assert figure["layout"]["yaxis"]["ticktext"] == ["heb", "<deu>"]
    assert figure["layout"]["showlegend"]


def test_the_page_holds_everything_and_runs_nothing_else(tmp_path: Path) -> None:
    figure = dots("damage </script>", SERIES, axis="bits per byte", order=["heb", "<deu>"])
    figure.save(tmp_path / "figure.html")
    page = (tmp_path / "figure.html").read_text(encoding="utf-8")
    assert page.count("</script>") == 2
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", page)
    arguments = re.search(r'Plotly\.newPlot\("plot",(\[.*\]),(\{.*\}),\{displaylogo', page)
    assert arguments is not None
    assert json.loads(arguments[1])[0]["x"] == [3.0, 1.0]


def test_a_notebook_gets_a_frame_and_plotlys_form() -> None:
    figure = heatmap("bits", [[4, None], [8, 4]], rows=["q", "k"], columns=["0", "1"], axis="block")
    bundle = figure._repr_mimebundle_()
    assert bundle["application/vnd.plotly.v1+json"]["data"][0]["z"] == [[4, None], [8, 4]]
    framed = re.fullmatch(
        r'<iframe sandbox="allow-scripts" style="[^"]*" srcdoc="([^"]*)"></iframe>', bundle["text/html"]
    )
    assert framed is not None
    assert html.unescape(framed[1]) == figure.html()
    assert bundle["text/plain"] == repr(figure)
    assert len(repr(figure)) < 100
