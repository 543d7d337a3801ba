import json
from xml.etree import ElementTree

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.evaluation.gate import junit
from fairbits.evaluation.lm_eval.gate_samples import gate_samples


@pytest.fixture
def runs(lm_eval_run):
    """Returns a function that writes two runs in which each language loses and gains so many of 200 items."""

    def write(changes: dict[str, tuple[int, int]], items: int = 200):
        before, after = {}, {}
        for i, (language, (lost, gained)) in enumerate(changes.items()):
            order = np.random.default_rng(i).permutation(items)
            right = np.zeros(items)
            right[order[: items // 2]] = 1
            later = right.copy()
            later[order[:lost]] = 0
            later[order[items // 2 : items // 2 + gained]] = 1
            before[f"xnli_{language}"], after[f"xnli_{language}"] = right.tolist(), later.tolist()
        return lm_eval_run("before", before), lm_eval_run("after", after)

    return write


QUIET = dict.fromkeys(("de", "fr", "ru", "sw"), (4, 4))


def outcomes(result) -> list[str]:
    return [check.outcome for check in result.verdict.checks]


def test_a_significantly_worse_language_fails_without_a_limit(runs) -> None:
    result = gate_samples(*runs(QUIET | {"th": (30, 3)}))
    assert outcomes(result) == ["fail", "fail"]
    assert not result
    assert result.verdict.exit_code == 1
    assert result.verdict.reason.startswith("fail: significantly worse: tha_Thai by 0.135 acc (95 % interval 0.0")
    assert result.verdict.reason.endswith("(measured by loss of acc)")
    first = result.languages[0]
    assert (first.language, first.before, first.after, first.lost, first.gained) == ("tha_Thai", 0.5, 0.365, 30, 3)
    assert first.recovery == pytest.approx(0.73)
    assert first.p_holm == pytest.approx(5 * first.p)
    assert first.p_holm < 0.001
    assert first.noise < first.detectable < 0.2
    assert result.worst[0] == "tha_Thai"
    assert result.worst_by_chance > 0


def test_nothing_lost_passes_and_says_what_is_still_possible(runs) -> None:
    result = gate_samples(*runs(QUIET))
    assert outcomes(result) == ["pass", "pass"]
    assert result
    assert "none of 4 languages is significantly worse; deu_Latn could still be up to 0.0" in result.verdict.reason


def test_a_language_that_gains_is_improved(runs) -> None:
    result = gate_samples(*runs(QUIET | {"th": (2, 40)}))
    assert outcomes(result) == ["pass", "pass"]
    assert result.verdict.improved == ("tha_Thai",)
    assert result.languages[-1].loss.high < 0


def test_limits_are_met_exceeded_or_undecided(runs) -> None:
    both = runs(QUIET | {"th": (30, 3)})
    worst = gate_samples(*both).worst[1]
    for limit, outcome in ((worst.high, "pass"), (worst.value, "undecided"), (worst.low - 1e-6, "fail")):
        result = gate_samples(*both, max_worst=limit)
        assert outcomes(result) == [outcome]
        assert result.verdict.checks[0].estimate == worst
    result = gate_samples(*both, max_worst=worst.value * 1.1, max_mean=0.5, max_gap=0.5)
    assert outcomes(result) == ["undecided", "pass", "pass"]
    assert "undecided: tha_Thai lost " in result.verdict.reason
    assert "items per language would decide; 200 were measured" in result.verdict.reason


def test_json_and_junit(runs) -> None:
    result = gate_samples(*runs(QUIET), max_worst=0.5)
    data = json.loads(json.dumps(result.as_data(), allow_nan=False))
    assert data["schema"] == "fairbits.verdict/2"
    assert data["passed"] is True
    assert (data["metric"], data["test"], data["unit"]) == ("acc", "McNemar, exact", "per_item")
    assert {row["language"] for row in data["languages"]} == {"deu_Latn", "fra_Latn", "rus_Cyrl", "swh_Latn"}
    assert data["tasks"]["deu_Latn"] == ["xnli_de"]
    case = ElementTree.fromstring(junit(result.verdict)).find("testcase")
    assert case.get("name") == "worst language at most 0.5 per item"


def test_other_metrics_use_a_paired_bootstrap(lm_eval_run) -> None:
    rng = np.random.default_rng(0)
    before = rng.random((3, 40))
    after = before + rng.normal([[0], [0], [-0.3]], 0.05, (3, 40))
    tasks = ("xnli_de", "xnli_fr", "xnli_th")
    result = gate_samples(
        *(
            lm_eval_run(name, dict(zip(tasks, scores.tolist(), strict=True)), metric="f1")
            for name, scores in (("before", before), ("after", after))
        )
    )
    assert result.test == "paired bootstrap"
    assert [row.language for row in result.languages if row.p_holm < 0.05] == ["tha_Thai"]
    assert result.languages[0].lost is None
    assert outcomes(result) == ["fail", "fail"]


def test_few_items_decide_nothing(runs) -> None:
    both = runs({"de": (1, 1)}, items=4)
    for limits in ({}, {"max_worst": 0.9}):
        result = gate_samples(*both, **limits)
        assert set(outcomes(result)) == {"undecided"}
        assert "an interval needs at least 5" in result.verdict.reason
        json.dumps(result.as_data(), allow_nan=False)


def test_a_score_of_0_has_no_recovery(lm_eval_run) -> None:
    runs = [lm_eval_run(name, {"xnli_de": [0.0] * 10}) for name in ("before", "after")]
    assert gate_samples(*runs).languages[0].recovery is None


def test_bad_limits_are_refused(runs) -> None:
    with pytest.raises(InputError, match="the limit of the worst language is -1"):
        gate_samples(*runs(QUIET), max_worst=-1)
