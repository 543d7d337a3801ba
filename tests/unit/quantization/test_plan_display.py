"""A plan shows what was decided, not every layer."""

from pathlib import Path

from fairbits.quantization.plan import Plan

FILE = Path(__file__).parents[2] / "data" / "0.1.0" / "plan.json"


def test_blocks_that_are_treated_alike_share_a_row() -> None:
    plan = Plan.load(FILE)
    lines = repr(plan).splitlines()
    assert lines[0] == f"{plan.model}  {plan.policy}"
    assert "MB in total" in lines[1]
    header = next(i for i, line in enumerate(lines) if line.startswith("block"))
    assert len(lines) - header - 1 < len(plan.layers)
    assert len(repr(plan)) < 2000
    assert "<table" in plan._repr_html_()
