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


def test_figures_of_the_audit_are_those_of_its_file(report_content, sources) -> None:
    audit = sources.audit
    codes = [row["code"] for row in report_content["languages"]]
    assert [block["kappa"] for block in report_content["blocks"]["blocks"]] == [block.kappa for block in audit.blocks]
    for name in ("research_notes", "robust"):
        assert report_content["blocks"]["outliers"][name]["blocks"] == list(getattr(audit.outliers, name).blocks or ())
    assert report_content["patterns"]["languages"] == report_content["causes"]["languages"] == codes
    shares = np.array(report_content["patterns"]["share"])
    assert shares.shape == (4, 2)
    assert shares.sum(axis=1) == pytest.approx(1)
    by_block = audit.predicted.by_block
    assert report_content["causes"]["damage"] == [list(by_block[code]) for code in codes]
    assert len(report_content["checklist"]["checks"]) == len(audit.research_notes.checklist)
    assert [check["passed"] for check in report_content["checklist"]["checks"]] == [
        check.passed for check in audit.research_notes.checklist
    ]
    assert [condition["holds"] for condition in report_content["checklist"]["conditions"]] == [
        condition.holds for condition in audit.research_notes.conditions
    ]
    assert report_content["certificate"]["actual"] == audit.certificate.worst.actual
    assert report_content["certificate"]["bound_by_linear"] >= report_content["certificate"]["actual"]


def test_experts_are_those_of_the_audit(report_content, routed) -> None:
    assert report_content["experts"] is None
    experts, saved = content(routed)["experts"], routed.audit.experts
    assert experts["languages"] == [row["code"] for row in report_content["languages"]]
    assert (experts["blocks"], experts["experts"], experts["per_position"], experts["least"]) == (
        [0, 1],
        [3, 3],
        [2, 2],
        32,
    )
    for line, none, mean, code in zip(
        experts["few"], experts["empty"], experts["mean"], experts["languages"], strict=True
    ):
        assert line == [block.few[code] for block in saved.blocks]
        assert none == [block.empty[code] for block in saved.blocks]
        assert mean == [block.routed[code] / 3 for block in saved.blocks]


def test_plain_rounding_is_held_to_what_the_audit_predicted(report_content, sources) -> None:
    comparison = report_content["prediction"]
    assert (METHODS[comparison["method"]], comparison["like"], comparison["made_with"]) == (
        "rtn",
        True,
        "W3 per channel",
    )
    measured = sources.methods[2].scores.frame("nats_per_token").by_language()
    assert comparison["measured"] == [measured[code].to_dict() for code in comparison["languages"]]
    assert -1 <= comparison["spearman"]["low"] <= comparison["spearman"]["value"] <= comparison["spearman"]["high"] <= 1
    other = content(replace(sources, methods=sources.methods[:2]))["prediction"]
    assert (other["method"], other["like"], other["made_with"]) == (0, False, "W3 per channel")


def test_languages_that_the_audit_does_not_trust_are_not_ranked(sources) -> None:
    first = sources.after.languages[0]
    language = sources.audit.languages[first]
    changed = replace(language, trusted=False)
    audit = replace(sources.audit, languages={**sources.audit.languages, first: changed})
    report_content = content(replace(sources, audit=audit))
    part = report_content["prediction"]
    assert part["languages"][-1] == first
    assert part["trusted"] == [code != first for code in part["languages"]]
    kept = [[estimate["value"] for estimate in part[name][:-1]] for name in ("predicted", "measured")]
    assert part["spearman"] == (spearman(*kept).estimate.to_dict() if len(kept[0]) >= LEAST_LANGUAGES else None)
    assert {row["code"]: row["trusted"] for row in report_content["languages"]}[first] is False


@pytest.mark.parametrize(
    ("name", "value"), [("bits", 4), ("group", "tensor"), ("group", 128), ("embeddings", 8), ("bits", None)]
)
def test_other_widths_and_groups_are_not_what_was_predicted(sources, name, value) -> None:
    run = replace(sources.run, settings={**sources.run.settings, name: value})
    comparison = prediction(replace(sources, run=run), sources.audit, languages=sources.after.languages)
    assert (METHODS[comparison["method"]], comparison["like"]) == ("rtn", False)


def test_what_nobody_says_is_not_taken_for_what_was_predicted(sources) -> None:
    comparison = prediction(replace(sources, run=None, plan=None), sources.audit, languages=sources.after.languages)
    assert (METHODS[comparison["method"]], comparison["like"], comparison["made_with"]) == ("rtn", False, None)


def test_a_plan_says_what_was_measured(sources) -> None:
    plan = replace(sources.plan, policy="rtn")
    rtn_sources = replace(sources, methods=(Method("rtn", sources.methods[2].scores),), run=None, plan=plan)
    assert prediction(rtn_sources, sources.audit, languages=sources.after.languages)["like"] is True
    other = replace(rtn_sources, plan=replace(plan, settings={**plan.settings, "group": 64}))
    assert prediction(other, sources.audit, languages=sources.after.languages)["like"] is False
    assert (
        prediction(replace(rtn_sources, plan=sources.plan), sources.audit, languages=sources.after.languages)["like"]
        is False
    )


def test_bits_and_bytes_are_those_of_the_plan(report_content, sources) -> None:
    allocation = report_content["allocation"]
    assert allocation["blocks"] == [0, 1]
    assert {bits for row in allocation["bits"] for bits in row} == {3}
    inside = {layer.name for layer in sources.plan.layers if layer.block is not None}
    assert sum(allocation["bytes"]) == sum(
        result.size_bytes for result in sources.plan.results if result.name in inside
    )
    assert {tensor["bits"] for tensor in allocation["outside"]} == {None}


def test_curves_are_those_of_the_sweep(report_content, sources) -> None:
    curves = report_content["curves"]
    assert curves["bits"] == [3, 4]
    for code, curve, width in zip(curves["languages"], curves["damage"], curves["critical_width"], strict=True):
        for bits, point in zip(curves["bits"], curve, strict=True):
            assert point["value"] == sources.sweep.damage[code][str(bits)].value
        assert width == sources.sweep.critical_width[code].text
    assert curves["verdict"] == list(sources.sweep.verdict)
    assert curves["unit"] == FIRST
    earlier = content(replace(sources, sweep=replace(sources.sweep, measure="loss")))
    assert earlier["curves"]["unit"] == "loss_bits_per_byte"
