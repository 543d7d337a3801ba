import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits_research.stats.correlation_tests import e_value, robustness_value
from fairbits_research.stats.mediation_models import mediate


def chain(n=80, seed=0, noise=0.02):
    rng = np.random.default_rng(seed)
    T = rng.normal(size=n)
    A = 0.8 * T + 0.3 * rng.normal(size=n)
    R = 5 + 0.5 * A + 0.15 * rng.normal(size=n)
    return {"T": T, "A": A, "R": R, "D": 2 / R + noise * rng.normal(size=n)}


def test_effects_of_a_pure_chain():
    result = mediate(**chain(), resamples=1000)
    assert result.indirect.excludes(0)
    assert result.chain.excludes(0)
    assert not result.direct.excludes(0)
    assert result.total.value == pytest.approx(result.indirect.value + result.direct.value, rel=0.2)
    assert result.e_value > result.e_value_limit > 1
    assert (result.clusters, result.resamples, result.dropped) == (80, 1000, 0)
    assert list(result.links) == ["T->A", "A->R", "1/R->D"]


def test_covariates_families_and_a_smaller_change():
    data = chain(n=60)
    covariates, families = np.random.default_rng(1).normal(size=(60, 2)), np.repeat(np.arange(12), 5)
    result = mediate(**data, covariates=covariates, families=families, change=0.5, resamples=500)
    assert result.clusters == 12
    assert result.indirect.n == 60
    assert abs(result.indirect.value) < abs(mediate(**data, resamples=200).indirect.value)


def test_same_seed_same_result():
    assert mediate(**chain(), resamples=200, rng=4) == mediate(**chain(), resamples=200, rng=4)


def test_clusters_widen_the_interval_when_families_share_noise():
    rng = np.random.default_rng(0)
    shared = np.repeat(rng.normal(size=(3, 10)), 8, axis=1)
    T = shared[0] + 0.1 * rng.normal(size=80)
    A = 0.8 * T + 0.5 * shared[1] + 0.1 * rng.normal(size=80)
    R = 8 + 0.5 * A + 0.5 * shared[2] + 0.1 * rng.normal(size=80)
    D = 2 / R + 0.01 * rng.normal(size=80)
    units = mediate(T, A, R=R, D=D, resamples=1000).total
    families = mediate(T, A, R=R, D=D, families=np.repeat(np.arange(10), 8), resamples=1000).total
    assert families.high - families.low > 1.5 * (units.high - units.low)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"R": np.r_[0.0, chain()["R"][1:]]}, "redundancy must be above 0"),
        ({"R": np.ones(79)}, "must agree"),
        ({"T": np.full(80, 2.0)}, "T is constant"),
        ({"D": np.full(80, np.nan)}, "NaN"),
        ({"A": chain()["T"] * 2}, "collinear"),
        ({"change": -40.0}, "takes R to 0"),
        ({"covariates": np.ones(80)}, "constant"),
        ({"families": np.repeat([0, 1], 40)}, "2 families"),
        ({"families": np.arange(3)}, "must agree"),
    ],
)
def test_bad_input_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        mediate(**(chain() | {"resamples": 200} | change))


def test_too_few_units_are_refused():
    with pytest.raises(InputError, match="at least 8"):
        mediate(**chain(n=7))


def test_too_many_undefined_resamples_are_refused_not_hidden():
    data = chain(n=40, noise=0.5)
    with pytest.raises(InputError, match="resamples have no unique fit"):
        mediate(**data, change=-9.5, resamples=300)


def test_sensitivity_grows_with_the_effect():
    assert e_value(0.0, 1.0) == 1.0
    assert e_value(-0.5, 1.0) == e_value(0.5, 1.0) > e_value(0.2, 1.0)
    assert robustness_value(0.0, 10) == 0.0
    assert 0 < robustness_value(2.0, 10) < robustness_value(-4.0, 10) < 1
