"""The notebook of the examples runs as it is, and shows a table and a figure."""

import ast
import os
from pathlib import Path

import pytest

from fairbits import __file__ as package

NOTEBOOK = Path(__file__).parents[2] / "examples" / "in_memory.ipynb"


def test_it_is_stored_without_results() -> None:
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            ast.parse(cell.source)
            assert not cell.outputs
            assert cell.execution_count is None


@pytest.mark.long
@pytest.mark.filterwarnings("default")  # of what runs notebooks
def test_it_runs_and_shows_a_table_and_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    nbformat = pytest.importorskip("nbformat")
    source = str(Path(package).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")])))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute(cwd=str(tmp_path))
    shown = {
        cell.source.splitlines()[-1]: output.data
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "data" in output
    }
    for name in ("plan", "scores", "fb.gate(scores, max_worst=0.1)"):
        assert "<table" in shown[name]["text/html"]
        assert "array(" not in shown[name]["text/plain"]
    assert "swh_Latn" in shown["scores"]["text/plain"]
    assert shown["scores.plot()"]["text/html"].startswith("<iframe")
    trace = shown["scores.plot()"]["application/vnd.plotly.v1+json"]["data"][0]
    assert sorted(trace["text"]) == ["eng_Latn", "heb_Hebr", "swh_Latn"]
    assert "divergence_bits_per_byte" in next(
        data["text/html"] for source, data in shown.items() if "to_pandas" in source
    )
    assert not list(tmp_path.iterdir())
