import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.evaluation.document_scores import DocumentScores, TokenPercentiles
from fairbits.evaluation.gate import Check, GateResult, gate, junit
from fairbits.evaluation.profiles import PROFILES
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.setting import EvaluationSetting, Identity

DAMAGE = {"heb_Hebr": 9.0, "eng_Latn": 3.0, "fin_Latn": 6.0}
UNIT = "nats_per_section"


def drawn(damage: dict[str, float] = DAMAGE, *, documents: int = 60, noise: float = 2.0, seed: int = 0) -> Scores:
    """Returns scores with the given divergence per document in nats, on average, and twice as much added loss."""
    rng, count = np.random.default_rng(seed), len(damage) * documents
    mean = np.repeat(list(damage.values()), documents)
    ones = np.ones(count)
    table = DocumentScores(
        lang=np.repeat(list(damage), documents),
        document=np.tile(np.arange(documents), len(damage)),
        tokens=100 * ones,
        bytes=400 * ones,
        nll_reference=400 * ones,
        nll_quantized=400 + 2 * mean + rng.normal(0, noise, count),
        kl=rng.gamma((mean / noise) ** 2, noise**2 / mean),
        flips=ones,
    )
    question = EvaluationSetting("causal", "drawn", "evaluation", True, dict.fromkeys(damage, "0" * 64), 4096, 512, 0)
    models = Identity("small", "f" * 64, 1000), Identity("large", "e" * 64, 4000)
    return Scores(*models, question, tuple(damage), table, dict.fromkeys(damage, TokenPercentiles(*[0.25] * 6)))


def shifted(scores: Scores, **nats: float) -> Scores:
    """Returns scores in which documents of some languages diverge more, with some noise."""
    documents = scores.documents
    more = np.array([nats.get(code[:3], 0.0) for code in documents.lang.tolist()])
    jitter = np.random.default_rng(5).normal(0, 0.3, len(more))
    return replace(scores, documents=replace(documents, kl=np.maximum(documents.kl + more + jitter, 0)))


@pytest.mark.parametrize(("limit", "outcome"), [(0.001, "fail"), (9.0, "undecided"), (99.0, "pass")])
def test_a_verdict_is_true_only_if_it_passes(limit: float, outcome: str) -> None:
    verdict = gate(drawn(), max_worst=limit, unit=UNIT)
    assert outcomes(verdict) == [outcome]
    assert bool(verdict) is verdict.passed is (outcome == "pass")


@pytest.mark.parametrize(("limit", "outcome"), [(5.0, "fail"), (20.0, "undecided"), (40.0, "pass")])
def test_a_limit_on_the_first_choices_that_change(limit: float, outcome: str) -> None:
    scores = drawn()
    changed = np.random.default_rng(0).binomial(100, np.where(scores.documents.lang == "fin_Latn", 0.2, 0.1))
    scores = replace(scores, documents=replace(scores.documents, flips=changed.astype(float)))
    verdict = gate(scores, max_changed=limit)
    (check,) = verdict.checks
    assert (check.outcome, check.limit) == (outcome, limit)
    assert check.estimate == scores.changed_frame.worst()[1].transform(lambda x: 100 * x)
    assert check.reason.startswith("fin_Latn: ")
    assert "of 100 next tokens change" in check.reason
    assert "measured by" not in verdict.reason
    assert verdict.meaning == scores.meaning
    both = gate(scores, max_changed=100, max_worst=0.0)
    assert (outcomes(both), "measured by divergence" in both.reason) == (["pass", "fail"], True)


@pytest.mark.parametrize("limit", [-1.0, 100.5, float("nan")])
def test_a_limit_in_percent(limit: float) -> None:
    with pytest.raises(InputError, match="max_changed is"):
        gate(drawn(), max_changed=limit)


def outcomes(verdict: GateResult) -> list[str]:
    return [check.outcome for check in verdict.checks]


def test_limits_are_kept_exceeded_or_undecided_by_the_bounds_of_the_interval() -> None:
    scores = drawn()
    for limits, estimate in (
        ({"max_worst": 10.0}, scores.frame(UNIT).worst()[1]),
        ({"max_mean": 7.0}, scores.frame(UNIT).mean()),
        ({"max_gap": 7.0}, scores.frame(UNIT).gap()),
    ):
        (name,) = limits
        for limit, outcome in ((estimate.high, "pass"), (estimate.value, "undecided"), (estimate.low - 1e-9, "fail")):
            verdict = gate(scores, unit=UNIT, **{name: limit})
            assert outcomes(verdict) == [outcome]
            assert verdict.exit_code == (0 if outcome == "pass" else 1)
            assert verdict.reason.startswith(outcome)
            assert "\n" not in verdict.reason
            assert verdict.checks[0].estimate == estimate


def test_the_added_loss_decides_if_it_is_the_measure() -> None:
    scores = drawn()
    loss, divergence = scores.frame(UNIT, measure="loss"), scores.frame(UNIT)
    limits = {"max_worst": 12.0, "max_mean": 9.0, "max_gap": 9.0}
    assert outcomes(gate(scores, unit=UNIT, **limits)) == ["pass"] * 3
    verdict = gate(scores, measure="loss", unit=UNIT, **limits)
    assert outcomes(verdict) == ["fail"] * 3
    assert [check.estimate for check in verdict.checks] == [loss.worst()[1], loss.mean(), loss.gap()]
    assert verdict.checks[0].estimate.low > divergence.worst()[1].high
    assert (verdict.measure, gate(scores, **limits).measure) == ("loss", "divergence")
    assert verdict.as_data()["measure"] == "loss"
    assert verdict.reason.endswith(", limit 9 (measured by added loss)")
    assert gate(scores, unit=UNIT, **limits).reason.endswith(", limit 9 (measured by divergence)")
    assert verdict.as_data()["schema"] == "fairbits.verdict/2"


@pytest.mark.parametrize("max_worse", [None, 0.5])
def test_the_baseline_is_compared_by_the_measure(max_worse: float | None) -> None:
    baseline = drawn()
    documents = baseline.documents
    shift = np.where(documents.lang == "fin_Latn", 2.0, 0.0) + np.random.default_rng(6).normal(
        0, 0.3, len(documents.lang)
    )
    moved = replace(documents, kl=documents.kl + shift, nll_quantized=documents.nll_quantized - shift)
    scores = replace(baseline, documents=moved)
    worse = gate(scores, unit=UNIT, against=baseline, max_worse=max_worse)
    better = gate(scores, measure="loss", unit=UNIT, against=baseline, max_worse=max_worse)
    assert outcomes(worse)[0] == "fail"
    assert outcomes(better) == ["pass"] * 3
    assert (worse.improved, better.improved) == ((), ("fin_Latn",))


def test_little_text_leaves_undecided_and_about_as_much_as_was_said_decides() -> None:
    little = gate(drawn(documents=8), unit=UNIT, max_worst=10.0)
    assert outcomes(little) == ["undecided"]
    assert little.reason.startswith("undecided: heb_Hebr lost ")
    assert ", limit 10. About " in little.reason
    assert "would decide; 8 were measured" in little.reason
    needed = int(little.reason.split("About ")[1].split(" documents")[0].replace(",", ""))
    assert 9 <= needed <= 200
    decided = [outcomes(gate(drawn(documents=2 * needed, seed=i), unit=UNIT, max_worst=10.0)) for i in range(10)]
    assert decided.count(["pass"]) >= 8


def test_one_missed_limit_is_enough_and_failures_come_first() -> None:
    verdict = gate(drawn(), unit=UNIT, max_worst=50.0, max_mean=6.0, max_gap=1.0)
    assert outcomes(verdict) == ["pass", "undecided", "fail"]
    assert not verdict.passed
    assert verdict.reason.index("fail: languages differ by") < verdict.reason.index("undecided: the mean language lost")
    assert "worst" not in verdict.reason
    assert "heb_Hebr" in verdict.checks[0].reason


def test_a_limit_at_the_estimate_is_never_decided() -> None:
    scores = drawn()
    verdict = gate(scores, unit=UNIT, max_mean=scores.frame(UNIT).mean().value)
    assert "no realistic amount of text would decide" in verdict.reason


def test_the_baseline_fails_what_is_worse_and_names_what_is_better() -> None:
    baseline = drawn()
    verdict = gate(shifted(baseline, fin=2.0, heb=-1.0), unit=UNIT, against=baseline)
    assert outcomes(verdict) == ["fail", "fail", "pass"]
    assert "fin_Latn by" in verdict.reason
    assert verdict.improved == ("heb_Hebr",)
    worst = verdict.checks[2].estimate
    assert worst.low < -1 < worst.high
    better = gate(shifted(baseline, fin=-2.0, heb=-1.0), unit=UNIT, against=baseline)
    assert better.passed
    assert better.improved == ("fin_Latn", "heb_Hebr")


def test_a_worst_language_that_grows_fails() -> None:
    baseline = drawn()
    verdict = gate(shifted(baseline, heb=1.0, eng=-1.0), unit=UNIT, against=baseline)
    assert outcomes(verdict) == ["fail", "pass", "fail"]
    assert verdict.checks[2].name == "worst language not significantly worse than the baseline"


def test_the_same_scores_pass_against_themselves_in_every_unit() -> None:
    scores = drawn()
    for unit in ("bits_per_byte", "nats_per_token", UNIT):
        assert gate(scores, unit=unit, against=scores).passed
        assert gate(scores, unit=unit, against=scores, max_worse=0.0).passed


def noisy(harm: float = 1.0, *, documents: int = 8) -> tuple[Scores, Scores]:
    """Returns scores that diverge more in one language than a baseline, by far less than noise."""
    return drawn({**DAMAGE, "fin_Latn": 6.0 + harm}, documents=documents, seed=1), drawn(documents=documents, seed=2)


def test_a_noisy_baseline_proves_nothing_and_the_verdict_says_how_much_worse_it_may_be() -> None:
    scores, baseline = noisy()
    verdict = gate(scores, unit=UNIT, against=baseline)
    assert outcomes(verdict) == ["pass"] * 3
    differences = scores.frame(UNIT).minus(baseline.frame(UNIT)).by_language()
    largest = max(differences, key=lambda code: differences[code].high)
    assert f"none of 3 languages is significantly worse; {largest} could still be up to" in verdict.reason
    assert f"up to {differences[largest].high:.3g} nats per section worse" in verdict.reason
    assert "mean is not significantly worse; it could still be up to" in verdict.reason
    assert "none is worse" not in verdict.reason


def test_with_a_limit_a_noisy_baseline_leaves_undecided_and_more_text_decides() -> None:
    scores, baseline = noisy()
    little = gate(scores, unit=UNIT, against=baseline, max_worse=2.0)
    assert not little.passed
    assert little.checks[0].outcome == "undecided"
    assert "not certain to be at most 2 worse: " in little.reason
    assert "documents per language would decide; 8 were measured" in little.reason
    scores, baseline = noisy(documents=400)
    assert outcomes(gate(scores, unit=UNIT, against=baseline, max_worse=2.0)) == ["pass"] * 3
    missed = gate(scores, unit=UNIT, against=baseline, max_worse=0.2)
    assert missed.checks[0].outcome == "fail"
    assert "worse by more than 0.2: fin_Latn by" in missed.reason
    assert "heb_Hebr" not in missed.checks[0].reason


def test_a_limit_of_the_difference_is_held_to_the_bounds_of_its_interval() -> None:
    baseline = drawn()
    scores = shifted(baseline, fin=2.0, heb=1.0)
    paired = scores.frame(UNIT).minus(baseline.frame(UNIT))
    fin = paired.by_language()["fin_Latn"]
    together = paired.by_language(simultaneous=True)["fin_Latn"]
    mean, worst = paired.mean(), scores.frame(UNIT).worst_minus(baseline.frame(UNIT))
    for at, bounds in ((0, (together.low, fin.high)), (1, (mean.low, mean.high)), (2, (worst.low, worst.high))):
        limits = (bounds[0] - 1e-9, sum(bounds) / 2, bounds[1])
        checks = [gate(scores, unit=UNIT, against=baseline, max_worse=limit).checks[at] for limit in limits]
        assert [check.outcome for check in checks] == ["fail", "undecided", "pass"]
    assert checks[0].limit == pytest.approx(worst.low)


def test_scores_may_be_named_by_their_files(tmp_path) -> None:
    scores, baseline = noisy()
    scores.save(tmp_path / "scores.json")
    baseline.save(tmp_path / "baseline.json")
    verdict = gate(tmp_path / "scores.json", unit=UNIT, against=str(tmp_path / "baseline.json"), max_worse=1.0)
    assert verdict == gate(scores, unit=UNIT, against=baseline, max_worse=1.0)
    with pytest.raises(InputError, match="scores is int 3"):
        gate(3, max_mean=1.0)


def test_a_baseline_of_another_model_is_noted() -> None:
    scores = drawn()
    other = replace(scores, reference=Identity("other", "d" * 64, 1))
    assert "made from another model, other" in gate(scores, against=other).notes[0]
    assert gate(scores, against=scores).notes == ()


def test_no_limit_and_odd_limits_are_refused() -> None:
    with pytest.raises(InputError, match="there is no limit"):
        gate(drawn())
    with pytest.raises(InputError, match="limit of the gap"):
        gate(drawn(), max_gap=float("nan"))
    for name in ("max_worst", "max_mean", "max_gap", "max_worse"):
        with pytest.raises(InputError, match="at least 0"):
            gate(drawn(), against=drawn(), **{name: -0.1})
    with pytest.raises(InputError, match="there is no baseline"):
        gate(drawn(), max_worse=0.1)
    with pytest.raises(InputError, match="unit is 'perplexity'"):
        gate(drawn(), max_mean=1.0, unit="perplexity")
    with pytest.raises(InputError, match=r"measure is 'perplexity'.*divergence.*loss"):
        gate(drawn(), max_mean=1.0, measure="perplexity")
    with pytest.raises(InputError, match="at least 2"):
        gate(drawn({"heb_Hebr": 9.0}), max_gap=1.0)


def test_junit_parses_and_says_what_failed() -> None:
    scores = replace(drawn(), quantized=Identity('<a & "b"\x1b]]>\uffff', "f" * 64, 1))
    verdict = gate(scores, unit=UNIT, max_worst=50.0, max_mean=6.0, max_gap=1.0)
    suite = ElementTree.fromstring(junit(verdict))
    assert suite.tag == "testsuite"
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [check.name for check in verdict.checks]
    assert cases[0].get("classname") == '<a & "b"\\u001b]]>\ufffd'
    failures = [case.find("failure") for case in cases]
    assert failures[0] is None
    assert [failure.get("type") for failure in failures[1:]] == ["undecided", "fail"]
    assert [failure.get("message") for failure in failures[1:]] == [check.reason for check in verdict.checks[1:]]


def test_the_verdict_is_json() -> None:
    verdict = gate(drawn(), unit=UNIT, max_worst=50.0, against=drawn())
    data = json.loads(json.dumps(verdict.as_data(), allow_nan=False))
    assert data["passed"] is True
    assert [check["outcome"] for check in data["checks"]] == ["pass"] * 4
    assert data["checks"][0]["limit"] == 50.0
    assert data["checks"][1]["estimate"]["high"] == 0
    assert Check("a", "fail", "b").estimate is None


def test_a_verdict_shows_its_requirements() -> None:
    verdict = gate(drawn(), max_worst=8.0, max_gap=50.0, unit=UNIT)
    assert repr(verdict).startswith("FAIL: small, divergence in nats per section\nrequirement")
    rows = repr(verdict).splitlines()[2:]
    assert [row.split()[-len(check.reason.split()) - 1] for row, check in zip(rows, verdict.checks, strict=False)] == (
        outcomes(verdict)
    )
    assert verdict._repr_html_().count("<tr>") == 1 + len(verdict.checks)


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_stands_for_its_limits(draw, name) -> None:
    scores, profile = draw({"eng_Latn": 1.0, "heb_Hebr": 2.0}), PROFILES[name]
    result = gate(scores, profile=name)
    assert [check.limit for check in result.checks] == [profile.changed]  # no answers were generated
    assert result.checks == gate(scores, max_changed=profile.changed).checks
    assert [check.limit for check in gate(scores, profile=name, max_changed=1).checks] == [1]
    with pytest.raises(InputError, match=f"the profile {name} has stricter limits"):
        gate(scores, profile=name, max_changed=90)
    assert any("the language of answers was not measured" in note for note in result.notes)
    with pytest.raises(InputError, match="profile is 'lax'"):
        gate(scores, profile="lax")
