"""A plan shows what was decided, not every layer."""

from pathlib import Path

from fairbits.quantization.plan import Plan

FILE = Path(__file__).parents[2] / "data" / "records" / "plan.json"


def test_layers_are_counted_by_their_scheme() -> None:
    plan = Plan.load(FILE)
    lines = repr(plan).splitlines()
    assert lines[0].startswith(f"Plan of {plan.policy} for {plan.model}: ")
    counts = [line.split() for line in lines[2:] if line.split()[-1].isdigit()]
    assert sum(int(cells[-1]) for cells in counts) == len(plan.layers)
    kept = [cells for cells in counts if cells[0] == "kept"]
    assert [int(cells[-1]) for cells in kept] == [len(plan.layers) - len(plan.quantized)] * bool(kept)
    assert len(repr(plan)) < 2000
    assert "<table" in plan._repr_html_()
