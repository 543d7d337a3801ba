import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbits.core.errors import InputError
from fairbits.kurtosis.checklist import (
    LEAST_VARIANCE,
    critical_bits,
    outlier_blocks,
    outliers_above_threshold,
    published_statistics,
    risk_assessment,
    risk_class,
    robust_outliers,
    strategy_for,
)

TABLE = published_statistics()
BLOOM, XGLM = TABLE.kurtosis["BLOOM-560M"], TABLE.kurtosis["XGLM-564M"]
SHARES = dict(zip(TABLE.languages, TABLE.outlier_activation.tolist(), strict=True))


def holds(view):
    return [condition.holds for condition in view.conditions]


def test_bloom_is_high_in_the_table_yet_fails_the_second_condition_by_its_own_shares():
    view = risk_assessment(BLOOM, outlier_share=SHARES, bits=4)
    assert (view.risk, view.block, view.outliers.blocks) == ("HIGH", 22, (5, 21, 22))
    assert holds(view) == [True, False, True]
    assert view.expects_disparity is False
    variance = view.conditions[1].value
    assert variance == pytest.approx(8.3e-5, rel=0.01)
    assert variance <= np.ptp(TABLE.outlier_activation) ** 2 / 4 < LEAST_VARIANCE


def test_without_text_the_second_condition_is_unknown():
    view = risk_assessment(BLOOM, outlier_share=None, bits=4)
    assert holds(view) == [True, None, True]
    assert view.expects_disparity is None
    assert [check.passed for check in view.checklist] == [True, False, False, False, False]
    assert view.checklist[3].number is None


def test_one_language_has_no_variance():
    view = risk_assessment(BLOOM, outlier_share={"eng": 0.2}, bits=4)
    assert view.conditions[1].holds is None
    assert view.checklist[2].passed


def test_xglm_passes_everything():
    view = risk_assessment(XGLM, outlier_share={"eng": 0.0, "ara": 0.0}, bits=4)
    assert (view.risk, view.outliers.blocks, holds(view)) == ("LOW", (), [False, False, False])
    assert all(check.passed for check in view.checklist)
    assert view.strategy.options == ()


def test_disparity_is_expected_when_all_three_hold():
    view = risk_assessment(BLOOM, outlier_share={"eng": 0.3, "ara": 0.1}, bits=4)
    assert holds(view) == [True, True, True]
    assert view.expects_disparity is True
    assert not view.checklist[3].passed


def test_many_bits_fail_the_third_condition_even_without_text():
    view = risk_assessment(BLOOM, outlier_share=None, bits=8)
    assert holds(view) == [True, None, False]
    assert view.expects_disparity is False


def test_classes_of_the_table_and_cut_offs():
    assert [risk_class(kappa) for kappa in (164, 45, 10, 1.9)] == ["HIGH", "MODERATE", "LOW-MODERATE", "LOW"]
    assert [risk_class(kappa) for kappa in (4.99, 5, 49.99, 50)] == ["LOW", "LOW-MODERATE", "MODERATE", "HIGH"]
    assert [len(strategy_for(kappa).options) for kappa in (4.99, 5, 49.99, 50)] == [0, 1, 1, 3]


def test_critical_bits_meet_both_written_ranges_and_rises():
    assert critical_bits(2.0) == pytest.approx(3)
    assert critical_bits(164.0) == pytest.approx(6)
    widths = [critical_bits(kappa) for kappa in (-1.2, 0.0, 2.0, 5.0, 45.0, 164.0, 562.0)]
    assert widths == sorted(widths)
    assert widths[0] == 3


def test_every_remark_names_its_claims():
    for condition, claims in zip(
        risk_assessment(BLOOM, outlier_share=None, bits=4).conditions,
        (("001-06", "001-09"), ("001-15", "001-22"), ("001-17",)),
        strict=True,
    ):
        assert all(claim in condition.remark for claim in claims)


def test_data_is_plain():
    view = risk_assessment(BLOOM, outlier_share=SHARES, bits=np.int64(4))
    data = json.loads(json.dumps(asdict(view)))
    assert data["conditions"][1]["name"] == "C2"
    assert data["checklist"][1]["number"] == pytest.approx(164.3)
    assert data["outliers"]["blocks"] == [5, 21, 22]


@pytest.mark.parametrize("kappa", [[], [np.inf], [[1.0]], "164"])
def test_bad_kappa_is_refused(kappa):
    for rule in (outliers_above_threshold, robust_outliers):
        with pytest.raises(InputError, match="kappa"):
            rule(kappa)


KURTOSIS = TABLE.kurtosis


def test_the_published_threshold_gives_the_published_layers():
    outliers = outliers_above_threshold(KURTOSIS["BLOOM-560M"])
    assert outliers.blocks == published_statistics().outlier_layers == (5, 21, 22)
    assert outliers_above_threshold(KURTOSIS["XGLM-564M"]).blocks == ()
    assert outliers_above_threshold(KURTOSIS["BLOOM-560M"], threshold=50.0).blocks == (4, 5, 21, 22)


def test_robust_rule_on_the_published_profiles():
    bloom = robust_outliers(KURTOSIS["BLOOM-560M"])
    assert bloom.blocks == (4, 5, 6, 7, 21, 22, 23)
    assert bloom.threshold is not None
    assert 16.4 < bloom.threshold < 36.3  # in the widest gap of the profile
    assert robust_outliers(KURTOSIS["XGLM-564M"]).blocks == ()
    assert robust_outliers(KURTOSIS["GPT-2"]).blocks == (0, 1, 11)


@pytest.mark.parametrize("planted", [8.0, 60.0, 5000.0])
def test_one_planted_block_of_twelve_is_found(planted):
    kappa = np.random.default_rng(0).uniform(0.2, 1.5, 12)
    kappa[7] = planted
    assert robust_outliers(kappa).blocks == (7,)


def test_up_to_half_of_the_blocks_do_not_hide_each_other():
    kappa = np.array([0.5, 0.7, 0.6, 0.4, 0.9, 0.8, 300.0, 40.0, 25.0, 90.0, 60.0])
    assert robust_outliers(kappa).blocks == (6, 7, 8, 9, 10)


def test_even_blocks_do_not_make_an_ordinary_one_stand_out():
    assert robust_outliers([8.0, 8.1, 8.0, 7.9, 8.0, 12.0]).blocks == ()
    assert robust_outliers([0.0, 0.0, 0.0, 0.0, 2.9]).blocks == ()
    assert robust_outliers([-1.2, -1.9, -1.5, -1.1, -2.0]).blocks == ()


def test_few_blocks_cannot_tell():
    outliers = robust_outliers([0.1, 0.2, 300.0, 0.1])
    assert outliers.blocks is None
    assert outliers.threshold is None
    assert "Cannot tell" in outliers.remark


@given(st.lists(st.floats(-2, 1e6), min_size=5, max_size=60), st.randoms())
def test_robust_rule_follows_its_blocks_and_spares_more_than_half(kappa, random):
    outliers = robust_outliers(kappa)
    assert outliers.blocks == tuple(np.flatnonzero(np.array(kappa) > outliers.threshold))
    assert len(outliers.blocks) < len(kappa) / 2
    order = random.sample(range(len(kappa)), len(kappa))
    again = robust_outliers([kappa[at] for at in order])
    assert again.threshold == outliers.threshold
    assert tuple(sorted(order[at] for at in again.blocks)) == outliers.blocks


def test_outlier_blocks_are_those_above_100_else_those_that_stand_out():
    assert outlier_blocks(BLOOM) == outliers_above_threshold(BLOOM)
    moderate = [1.0, 45.0, 1.2, 0.9, 1.1, 1.0]
    assert outlier_blocks(moderate) == robust_outliers(moderate)
    assert outlier_blocks(moderate).blocks == (1,)


def test_the_user_names_outlier_blocks_or_gives_a_threshold():
    assert outlier_blocks(XGLM, layers=[7, 2]).blocks == (2, 7)
    assert str(outlier_blocks(XGLM, layers=[7, 2])) == "2, 7 (named)"
    assert outlier_blocks(BLOOM, threshold=50.0).blocks == (4, 5, 21, 22)


@pytest.mark.parametrize(
    "options", [{"layers": [24]}, {"layers": []}, {"threshold": np.nan}, {"layers": [1], "threshold": 4}]
)
def test_outlier_blocks_that_cannot_be_are_refused(options):
    with pytest.raises(InputError):
        outlier_blocks(BLOOM, **options)


def test_a_moderate_model_can_meet_the_second_condition():
    moderate = [1.0, 45.0, 1.2, 0.9, 1.1, 1.0]
    view = risk_assessment(moderate, outlier_share={"eng": 0.30, "ara": 0.20}, bits=3)
    assert holds(view) == [True, True, True]


def test_the_second_condition_is_unknown_where_outlier_blocks_are():
    view = risk_assessment([1.0, 45.0], outlier_share={"eng": 0.0, "ara": 0.0}, bits=3)
    assert view.conditions[1].holds is None
