"""The one way to report progress."""

import re
from pathlib import Path

import fairbits
from fairbits.core.progress import ASKING, COMPARING, UNITS, NumberedProgress, begin, part, unit_of, within


def test_stages_get_a_prefix() -> None:
    seen: list[tuple[str, float, float]] = []
    progress = within(lambda *call: seen.append(call), "gptq, 4 bits")
    assert progress is not None
    progress("rounding blocks", 1, 3)
    assert seen == [("gptq, 4 bits: rounding blocks", 1, 3)]


def test_rounds_are_parts_of_one_stage() -> None:
    seen: list[tuple[str, float, float]] = []
    for number in range(2):
        progress = part(lambda *call: seen.append(call), "trying mixes", number=number, count=2)
        assert progress is not None
        progress("rounding blocks", 1, 2)
        progress("rounding blocks", 2, 2)
    assert seen == [("trying mixes", done, 4) for done in (1, 2, 3, 4)]


def test_nobody_listens() -> None:
    assert within(None, "a") is None
    assert part(None, "a", number=0, count=1) is None


def test_stages_of_a_job_are_numbered_in_their_order() -> None:
    seen: list[tuple[str, float | None]] = []
    stages = [("rounding blocks", 10.0), ("evaluating", 20.0), ("rtn: evaluating", 20.0)]
    progress = NumberedProgress(lambda stage, *_: seen.append((stage, getattr(stage, "later", None))), stages)
    for stage in ("opening", "rounding blocks", "writing weights", "evaluating, again", "rtn: evaluating"):
        begin(within(progress, "rtn") if stage.startswith("rtn") else progress, stage.removeprefix("rtn: "))
    assert seen == [
        ("opening", None),
        ("stage 1 of 3: rounding blocks", 4.0),
        ("stage 1 of 3: writing weights", None),  # whose speed says nothing of what follows
        ("stage 2 of 3: evaluating, again", 1.0),
        ("stage 3 of 3: rtn: evaluating", 0.0),
    ]
    assert progress.stage == "rtn: evaluating"


def test_every_stage_that_says_how_far_it_is_has_a_unit() -> None:
    sources = "".join(path.read_text("utf-8") for path in Path(fairbits.__file__).parent.rglob("*.py"))
    reported = set(re.findall(r'progress\("([a-z ]+)", (?!0, )', sources))
    assert {"reading weights", "computing thresholds"} <= reported
    assert reported - {"generating text"} <= UNITS.keys()
    assert [unit_of(f"stage 2 of 3: {stage}") for stage in (ASKING, COMPARING)] == ["request", "token"]
