"""What a report is made from is read whole, or refused with a word on what is wrong."""

from dataclasses import replace
from pathlib import Path

import pytest

from fairbits.api.report import run_sources
from fairbits.core.errors import InputError
from fairbits.evaluation.scores import Scores
from fairbits.quantization.plan import Plan
from fairbits.reports.sources import Method, Sources


@pytest.fixture(scope="module")
def scores(finished_run: Path) -> Scores:
    return Scores.load(finished_run / "scores.json")


def test_the_first_method_is_after_and_the_second_before(scores: Scores) -> None:
    alone = Sources((Method("gptq", scores),))
    assert (alone.after, alone.before, alone.contrast) == (scores, None, None)
    other = replace(scores, notes=("other",))
    both = Sources((Method("gptq", scores), Method("rtn", other)))
    assert both.before is other
    assert both.contrast is both.contrast  # drawn once
    assert all(difference.value == 0 for difference in both.contrast.differences.values())


def test_parts_of_another_model_are_refused(scores: Scores, finished_run: Path) -> None:
    stranger = replace(scores, reference=replace(scores.reference, fingerprint="0" * 64))
    planned = replace(Plan.load(finished_run / "model" / "plan.json"), fingerprint="0" * 64)
    run = run_sources(finished_run)
    audit = replace(run.audit, model=replace(run.audit.model, fingerprint="0" * 64))
    gptq = Method("gptq", scores)
    for part, arguments in (
        ("rtn", {"methods": (gptq, Method("rtn", stranger))}),
        ("the plan", {"methods": (gptq,), "plan": planned}),
        ("the audit", {"methods": (gptq,), "audit": audit}),
        ("the sweep", {"methods": (gptq,), "sweep": replace(run.sweep, fingerprint="0" * 64)}),
    ):
        with pytest.raises(InputError, match=f"^{part} is about a different model") as refusal:
            Sources(**arguments)
        if part in ("the audit", "the sweep"):
            command = part.removeprefix("the ")
            codes = ",".join(scores.languages)
            wanted = f"fairbits {command} {scores.reference.target} --languages {codes} --out {command}.json"
            assert str(refusal.value).endswith(f"make {command}.json with {wanted}")


def test_scores_of_another_text_are_refused(scores: Scores) -> None:
    other = replace(scores, setting=replace(scores.setting, seed=1))
    with pytest.raises(InputError, match=r"different text \(seed differs\)"):
        Sources((Method("gptq", scores), Method("rtn", other)))
