"""Writes the table of model classes in docs/models.md: python tests/architectures/table.py, after make test-classes."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build/architectures"
PAGE = ROOT / "docs/models.md"
START, END = "<!-- classes: written by tests/architectures/table.py -->", "<!-- end of classes -->"
ENOUGH = 0.9
"""The share of causal classes that must work, of those that could be built."""
PARTLY, BITS = 0.9, 4
"""Below this share of the weights in its blocks, or in more bits, a class is quantized only in part."""


def table(outcomes: list[dict[str, Any]]) -> str:
    """Returns the counts by kind, and the classes that do not work or only in part."""
    lines = ["| kind | classes | work | in part | refused | not built here |", "|---|---|---|---|---|---|"]
    for kind in dict.fromkeys(outcome["kind"] for outcome in outcomes):
        of_kind = [outcome for outcome in outcomes if outcome["kind"] == kind]
        counts = [
            sum(_state(outcome) == state for outcome in of_kind)
            for state in ("works", "in part", "refused", "not built")
        ]
        lines.append(f"| {kind} | {len(of_kind)} | " + " | ".join(map(str, counts)) + " |")
    lines += ["", "| class | model_type | kind | |", "|---|---|---|---|"]
    for outcome in sorted(outcomes, key=lambda outcome: (outcome["kind"], outcome["name"])):
        if (state := _state(outcome)) != "works":
            what = _part(outcome) if state == "in part" else _reason(outcome)
            lines.append(f"| {outcome['name']} | {outcome['family']} | {outcome['kind']} | {what} |")
    return "\n".join(lines)


def _state(outcome: dict[str, Any]) -> str:
    if outcome["stage"] == "works":
        return "works" if outcome["quantized"] >= PARTLY and outcome["bits"] == BITS else "in part"
    return "not built" if outcome["stage"] == "not built" else "refused"


def _part(outcome: dict[str, Any]) -> str:
    share = f"{outcome['quantized']:.0%} of the weights in its blocks are quantized; the rest is kept"
    return ("" if outcome["bits"] == BITS else f"{outcome['bits']} bits only; ") + share


def _reason(outcome: dict[str, Any]) -> str:
    what = "not built: " if outcome["stage"] == "not built" else f"refused at `{outcome['stage']}`: "
    return what + outcome["reason"].split(";")[0].replace("|", "\\|")[:200]


def main() -> None:
    """Writes the table into the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(START)
    _, after = rest.split(END)
    outcomes = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*.json"))]
    built = [outcome for outcome in outcomes if outcome["kind"] == "causal" and outcome["stage"] != "not built"]
    works = sum(outcome["stage"] == "works" for outcome in built)
    PAGE.write_text(f"{before}{START}\n\n{table(outcomes)}\n\n{END}{after}", encoding="utf-8")
    if not built or works < ENOUGH * len(built):
        raise SystemExit(f"only {works} of {len(built)} causal classes work")


if __name__ == "__main__":
    main()
