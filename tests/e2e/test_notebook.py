"""The notebook of the examples is stored with its results; test_wheel.py runs it."""

import ast
import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "in_memory.ipynb"


def test_it_is_stored_with_results_that_name_no_file_of_this_machine() -> None:
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for count, cell in enumerate(cells, 1):
        ast.parse(cell.source)
        assert cell.execution_count == count
        assert {output.output_type for output in cell.outputs} <= {"execute_result", "stream"}
    shown = [output.data for cell in cells for output in cell.outputs if "data" in output]
    assert len(shown) == 5
    for data in shown:
        assert "<table" in data["text/html"]
        assert "array(" not in data["text/plain"]
    content = NOTEBOOK.read_text("utf-8")
    assert not re.search(r"/tmp/|/home/|/work/|site-packages|docs/|\.venv", content)
    assert len(content) < 100_000
