import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbits.core.errors import InputError
from fairbits.kurtosis.checklist import outliers_above_threshold, published_statistics, robust_outliers

KURTOSIS = published_statistics().kurtosis


def test_founders_rule_yields_the_layers_they_name():
    found = outliers_above_threshold(KURTOSIS["BLOOM-560M"])
    assert found.blocks == published_statistics().outlier_layers == (5, 21, 22)
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
    found = robust_outliers([0.1, 0.2, 300.0, 0.1])
    assert found.blocks is None
    assert found.threshold is None
    assert "Cannot tell" in found.remark


@given(st.lists(st.floats(-2, 1e6), min_size=5, max_size=60), st.randoms())
def test_robust_rule_follows_its_blocks_and_spares_more_than_half(kappa, random):
    found = robust_outliers(kappa)
    assert found.blocks == tuple(np.flatnonzero(np.array(kappa) > found.threshold))
    assert len(found.blocks) < len(kappa) / 2
    order = random.sample(range(len(kappa)), len(kappa))
    again = robust_outliers([kappa[at] for at in order])
    assert again.threshold == found.threshold
    assert tuple(sorted(order[at] for at in again.blocks)) == found.blocks


def test_data_is_plain():
    data = json.loads(json.dumps(robust_outliers([0.4, 0.9, 0.3, 60.0, 0.5]).as_data()))
    assert (data["rule"], data["blocks"]) == ("robust", [3])


@pytest.mark.parametrize("rule", [outliers_above_threshold, robust_outliers])
@pytest.mark.parametrize("kappa", [[], [1.0, np.nan], [[1.0]], "164"])
def test_bad_kappa_is_refused(rule, kappa):
    with pytest.raises(InputError, match="kappa"):
        rule(kappa)
