"""The corollary of theorem 1 on a model: its R, the predicted and the observed ratio, and when nothing is predicted."""

import numpy as np
import pytest

from fairbits.api.audit import language_redundancy
from fairbits.evaluation.language_groups import group_damage
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.laboratory import Laboratory, Setting
from fairbits_research.experiments.resource_ratio import (
    DELTA,
    CorollaryTest,
    redundancy_frame,
    resource_ratio,
    separating_text,
)
from fairbits_research.experiments.result import Answer, Result
from fairbits_research.theory.redundancy_theorem import disparity_ratio

LANGUAGES = ("eng", "deu", "swh", "yor")


@pytest.fixture(scope="module")
def laboratory() -> Laboratory:
    return Laboratory(Setting(tokens=192, calibration=192, languages=LANGUAGES, device="cpu"))


@pytest.fixture(scope="module")
def result(laboratory: Laboratory) -> Result:
    return resource_ratio(laboratory)


def estimate(low: float, high: float) -> Estimate:
    return Estimate((low + high) / 2, low, high, 9)


def corollary(R: tuple[float, float], predicted: Estimate | None, observed: Estimate | None) -> CorollaryTest:
    redundancy = dict(zip(("high", "low"), (estimate(r - 0.1, r + 0.1) for r in R), strict=True))
    return CorollaryTest(4, DELTA, redundancy, predicted, observed, (0, 0))


@pytest.mark.parametrize(
    ("R", "predicted", "observed", "answer"),
    [
        ((3.8, 1.5), estimate(2, 3), estimate(3.5, 4), Answer.SUPPORTED),
        ((3.8, 1.5), estimate(2, 3), estimate(1, 1.5), Answer.NOT_SUPPORTED),
        ((3.8, 1.5), estimate(2, 3), estimate(1, 2.5), Answer.UNDECIDED),
        ((3.8, 1.5), estimate(2, 3), None, Answer.UNDECIDED),
        ((3.8, -1.5), None, estimate(1, 9), Answer.NOT_SUPPORTED),
        ((3.8, -0.1), None, estimate(1, 9), Answer.UNDECIDED),
    ],
)
def test_the_intervals_decide(R, predicted, observed, answer: Answer) -> None:
    test = corollary(R, predicted, observed)
    assert test.answer is answer
    assert ("negative" in test.because) is (R[1] == -1.5)


def test_R_is_the_research_notes_R(laboratory: Laboratory) -> None:
    measured = laboratory.lab().measurements
    expected = language_redundancy(measured)
    for code, redundancy in redundancy_frame(measured).by_language().items():
        assert redundancy.value == pytest.approx(expected[code].as_written.value, rel=1e-9)


def test_both_ratios_are_those_of_the_groups(laboratory: Laboratory, result: Result) -> None:
    assert laboratory.groups == {"high": ("eng_Latn", "deu_Latn"), "low": ("yor_Latn", "swh_Latn")}
    R = {code: value.as_written.value for code, value in language_redundancy(laboratory.lab().measurements).items()}
    mean = {name: np.mean([R[code] for code in codes]) for name, codes in laboratory.groups.items()}
    corollary, validation = result.judgements
    assert [corollary.claim, validation.claim] == ["004-08", "004-09"]
    assert validation.numbers["R_high"] == pytest.approx(mean["high"])
    for width in (4, 3):
        observed = group_damage(laboratory.lab().rounding_damage(width), laboratory.groups).ratios.get("low")
        assert corollary.numbers.get(f"observed_{width}_bits_delta_0.1") == (observed and observed.value)
        predicted = corollary.numbers.get(f"predicted_{width}_bits_delta_{width}")
        if predicted is not None:
            assert predicted == pytest.approx(disparity_ratio(mean["high"], mean["low"], delta=width))
    assert "observed_3_bits_delta_0.1" in corollary.numbers
    assert max(mean.values()) < -DELTA  # so that the formula as written means nothing for this model
    assert corollary.answer is result.answer is Answer.NOT_SUPPORTED
    assert "negative" in result.verdict


def test_named_groups_are_used() -> None:
    other = Laboratory(Setting(languages=LANGUAGES, groups="a=yor;b=eng,deu"))
    assert other.groups == {"a": ("yor_Latn",), "b": ("eng_Latn", "deu_Latn")}


def test_what_would_decide_is_said_where_it_is_undecided() -> None:
    def at(predicted: Estimate | None) -> CorollaryTest:
        observed, sure = Estimate(1.2, 0.9, 1.5, 40), {"high": Estimate(2.0, 1.5, 2.5, 40)}
        return CorollaryTest(4, 0.1, sure, predicted, observed, (0, 0))

    assert separating_text([at(Estimate(0.5, 0.4, 0.6, 40))], documents=40) == ""
    # the intervals reach 0.3 and 0.5 towards each other over a distance of 0.4: (0.8 / 0.4)² times the documents
    assert "about 160 documents" in separating_text([at(Estimate(0.8, 0.7, 1.3, 40))], documents=40)
    assert "surely above 0" in separating_text([at(None)], documents=40)
