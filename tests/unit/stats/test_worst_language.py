"""The worst and the best language and the gap: corrected for selection, and compared between frames."""

import numpy as np
import pytest

from fairbits.stats.frame import LanguageFrame


def test_extremes_are_pulled_towards_each_other(make_frame):
    sample = make_frame(damage=[0.03] * 10)
    values = [e.value for e in sample.by_language().values()]
    assert sample.worst()[1].value < max(values)
    assert sample.best()[1].value > min(values)
    assert sample.gap().value < max(values) - min(values)
    assert not sample.gap().excludes(0)


def test_the_worst_is_never_below_the_mean_nor_the_best_above_it():
    lang, document = np.repeat(list("abcdefgh"), 20), np.arange(160)
    for seed in range(40):
        values = np.random.default_rng(seed).normal(1, 1, 160)
        frame = LanguageFrame(lang, document, values=values, weights=np.ones(160), resamples=2000)
        assert frame.best()[1].value <= frame.mean().value <= frame.worst()[1].value


def test_the_plain_gap_is_the_range_of_the_estimates(make_frame):
    sample = make_frame(damage=(0.03, 0.03, 0.03, 0.03))
    values = [estimate.value for estimate in sample.by_language().values()]
    assert sample.plain_gap().value == pytest.approx(max(values) - min(values))
    assert sample.gap().value < sample.plain_gap().value
    assert (sample.gap().low, sample.gap().high) == (sample.plain_gap().low, sample.plain_gap().high)


def test_the_worst_of_two_frames_is_compared_by_the_same_documents(make_frame):
    before, after = make_frame(damage=(0.02, 0.06)), make_frame(damage=(0.10, 0.06))
    difference = after.worst_minus(before)
    # of other draws
    assert difference.value == pytest.approx(after.worst()[1].value - before.worst()[1].value, abs=1e-3)
    assert 0 < difference.low < 0.04 < difference.high  # another language is the worst now
    raised = LanguageFrame(before.lang, before.document, values=before.values + before.weights, weights=before.weights)
    exact = raised.worst_minus(before)  # whichever language is the worst, it has lost 1 more
    assert exact.low == pytest.approx(1.0)
    assert exact.high == pytest.approx(1.0)
    assert before.worst_minus(before).high == 0


def test_a_worst_that_may_be_many_is_not_called_lower(make_frame):
    tied, alone = make_frame(damage=(0.05,) * 8), make_frame(damage=(0.05, *(0.01,) * 7))
    assert max(estimate.value for estimate in tied.by_language().values()) > 0.052  # noise lifts the largest of many
    difference = alone.worst_minus(tied)
    assert difference.low < 0 <= difference.high
