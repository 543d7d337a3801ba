"""The figures of a report: audit, prediction, bits and curves as they were measured."""

from dataclasses import replace

import numpy as np
import pytest

from fairbits.reports.content import content
from fairbits.reports.figures import LEAST_LANGUAGES, prediction
from fairbits.reports.sources import Method
from fairbits.stats.correlation import spearman

METHODS = ("gptq", "gptq:mix=english", "rtn")
FIRST = "divergence_bits_per_byte"


def test_figures_of_the_audit_are_those_of_its_file(found, sources) -> None:
    audit = sources.audit
    codes = [row["code"] for row in found["languages"]]
    assert [each["kappa"] for each in found["blocks"]["blocks"]] == [each.kappa for each in audit.blocks]
    for name in ("founders", "robust"):
        assert found["blocks"]["outliers"][name]["blocks"] == list(getattr(audit.outliers, name).blocks or ())
    assert found["patterns"]["languages"] == found["causes"]["languages"] == codes
    shares = np.array(found["patterns"]["share"])
    assert shares.shape == (4, 2)
    assert shares.sum(axis=1) == pytest.approx(1)
    by_block = audit.predicted.by_block
    assert found["causes"]["damage"] == [list(by_block[code]) for code in codes]
    assert len(found["checklist"]["checks"]) == len(audit.founders.checklist)
    assert [each["passed"] for each in found["checklist"]["checks"]] == [
        each.passed for each in audit.founders.checklist
    ]
    assert [each["holds"] for each in found["checklist"]["conditions"]] == [
        each.holds for each in audit.founders.conditions
    ]
    assert found["certificate"]["actual"] == audit.certificate.worst.actual
    assert found["certificate"]["bound_by_linear"] >= found["certificate"]["actual"]


def test_experts_are_those_of_the_audit(found, routed) -> None:
    assert found["experts"] is None
    own, saved = content(routed)["experts"], routed.audit.experts
    assert own["languages"] == [row["code"] for row in found["languages"]]
    assert (own["blocks"], own["experts"], own["per_position"], own["least"]) == ([0, 1], [3, 3], [2, 2], 32)
    for line, none, mean, code in zip(own["starved"], own["empty"], own["mean"], own["languages"], strict=True):
        assert line == [each.starved[code] for each in saved.blocks]
        assert none == [each.empty[code] for each in saved.blocks]
        assert mean == [each.routed[code] / 3 for each in saved.blocks]


def test_plain_rounding_is_held_to_what_the_audit_predicted(found, sources) -> None:
    own = found["prediction"]
    assert (METHODS[own["method"]], own["like"], own["made_with"]) == ("rtn", True, "W3 per channel")
    measured = sources.methods[2].scores.frame("nats_per_token").by_language()
    assert own["measured"] == [measured[code].to_dict() for code in own["languages"]]
    assert -1 <= own["spearman"]["low"] <= own["spearman"]["value"] <= own["spearman"]["high"] <= 1
    other = content(replace(sources, methods=sources.methods[:2]))["prediction"]
    assert (other["method"], other["like"], other["made_with"]) == (0, False, "W3 per channel")


def test_languages_that_the_audit_does_not_trust_are_not_ranked(sources) -> None:
    first = sources.after.languages[0]
    own = sources.audit.languages[first]
    changed = replace(own, trusted=False)
    audit = replace(sources.audit, languages={**sources.audit.languages, first: changed})
    found = content(replace(sources, audit=audit))
    part = found["prediction"]
    assert part["languages"][-1] == first
    assert part["trusted"] == [code != first for code in part["languages"]]
    kept = [[each["value"] for each in part[name][:-1]] for name in ("predicted", "measured")]
    assert part["spearman"] == (spearman(*kept).estimate.to_dict() if len(kept[0]) >= LEAST_LANGUAGES else None)
    assert {row["code"]: row["trusted"] for row in found["languages"]}[first] is False


@pytest.mark.parametrize(
    ("name", "value"), [("bits", 4), ("group", "tensor"), ("group", 128), ("embeddings", 8), ("bits", None)]
)
def test_other_widths_and_groups_are_not_what_was_predicted(sources, name, value) -> None:
    run = replace(sources.run, settings={**sources.run.settings, name: value})
    own = prediction(replace(sources, run=run), sources.audit, languages=sources.after.languages)
    assert (METHODS[own["method"]], own["like"]) == ("rtn", False)


def test_what_nobody_says_is_not_taken_for_what_was_predicted(sources) -> None:
    own = prediction(replace(sources, run=None, plan=None), sources.audit, languages=sources.after.languages)
    assert (METHODS[own["method"]], own["like"], own["made_with"]) == ("rtn", False, None)


def test_a_plan_says_what_was_measured(sources) -> None:
    plan = replace(sources.plan, policy="rtn")
    own = replace(sources, methods=(Method("rtn", sources.methods[2].scores),), run=None, plan=plan)
    assert prediction(own, sources.audit, languages=sources.after.languages)["like"] is True
    other = replace(own, plan=replace(plan, settings={**plan.settings, "group": 64}))
    assert prediction(other, sources.audit, languages=sources.after.languages)["like"] is False
    assert (
        prediction(replace(own, plan=sources.plan), sources.audit, languages=sources.after.languages)["like"] is False
    )


def test_bits_and_bytes_are_those_of_the_plan(found, sources) -> None:
    own = found["allocation"]
    assert own["blocks"] == [0, 1]
    assert {bits for row in own["bits"] for bits in row} == {3}
    inside = {each.name for each in sources.plan.layers if each.block is not None}
    assert sum(own["bytes"]) == sum(each.size_bytes for each in sources.plan.results if each.name in inside)
    assert {each["bits"] for each in own["outside"]} == {None}


def test_curves_are_those_of_the_sweep(found, sources) -> None:
    own = found["curves"]
    assert own["bits"] == [3, 4]
    for code, curve, width in zip(own["languages"], own["damage"], own["critical_width"], strict=True):
        for bits, point in zip(own["bits"], curve, strict=True):
            assert point["value"] == sources.sweep.damage[code][str(bits)].value
        assert width == sources.sweep.critical_width[code].text
    assert own["verdict"] == list(sources.sweep.verdict)
    assert own["unit"] == FIRST
    earlier = content(replace(sources, sweep=replace(sources.sweep, measure="loss")))
    assert earlier["curves"]["unit"] == "loss_bits_per_byte"
