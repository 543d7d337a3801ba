import json

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.kurtosis.checklist import (
    LEAST_VARIANCE,
    critical_bits,
    published_statistics,
    risk_assessment,
    risk_class,
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


def test_critical_width_meets_both_written_ranges_and_rises():
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
    data = json.loads(json.dumps(view.as_data()))
    assert data["conditions"][1]["name"] == "C2"
    assert data["checklist"][1]["number"] == pytest.approx(164.3)
    assert data["outliers"]["blocks"] == [5, 21, 22]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kappa": []}, "kappa"),
        ({"kappa": [np.inf]}, "kappa"),
        ({"bits": 1}, "bits"),
        ({"bits": 4.5}, "bits"),
        ({"outlier_share": {"eng": 1.2}}, "outlier_share of eng"),
        ({"outlier_share": {"eng": np.nan}}, "outlier_share of eng"),
        ({"outlier_share": [0.2, 0.3]}, "outlier_share"),
    ],
)
def test_bad_input_is_refused(changes, message):
    arguments = {"kappa": BLOOM, "outlier_share": SHARES, "bits": 4} | changes
    with pytest.raises(InputError, match=message):
        risk_assessment(arguments.pop("kappa"), **arguments)
