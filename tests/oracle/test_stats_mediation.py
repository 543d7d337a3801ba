"""The mediation estimator against statsmodels, a loop of refits, and the truth of large simulations."""

import numpy as np
import pytest
import statsmodels.api as sm

from fairbits_research.stats.mediation_models import mediate


def chain(n, *, seed=0, direct=0.0, noise=0.02):
    rng = np.random.default_rng(seed)
    C = rng.normal(size=n)
    T = 0.5 * C + rng.normal(size=n)
    A = 0.8 * T + 0.3 * C + 0.3 * rng.normal(size=n)
    R = 6 + 0.5 * A - 0.1 * T + 0.15 * rng.normal(size=n)
    D = 3 / R + direct * T + 0.1 * C + noise * rng.normal(size=n)
    return T, A, R, D, C


def effects(T, A, R, D, C):
    """Total, direct, indirect and chain effect of one more unit of T, by statsmodels and prediction."""
    a = sm.OLS(A, sm.add_constant(np.column_stack([T, C]))).fit()
    r = sm.OLS(R, sm.add_constant(np.column_stack([A, T, C]))).fit()
    d = sm.OLS(D, sm.add_constant(np.column_stack([1 / R, A, T, C]))).fit()
    total = sm.OLS(D, sm.add_constant(np.column_stack([T, C]))).fit()
    one = np.ones(len(T))
    A1 = a.predict(np.column_stack([one, T + 1, C])) + a.resid
    R1 = r.predict(np.column_stack([one, A1, T + 1, C])) + r.resid
    Rc = r.predict(np.column_stack([one, A1, T, C])) + r.resid
    before = d.predict(np.column_stack([one, 1 / R, A, T, C]))
    indirect = (d.predict(np.column_stack([one, 1 / R1, A1, T, C])) - before).mean()
    direct = (d.predict(np.column_stack([one, 1 / R, A, T + 1, C])) - before).mean()
    through = (d.predict(np.column_stack([one, 1 / Rc, A, T, C])) - before).mean()
    return np.array([total.params[1], direct, indirect, through])


def four(result):
    return [result.total, result.direct, result.indirect, result.chain]


@pytest.mark.parametrize("n", [14, 90])
def test_point_effects_agree_with_statsmodels(n):
    T, A, R, D, C = chain(n, direct=0.03)
    result = mediate(T, A, R=R, D=D, covariates=C, resamples=100)
    assert [e.value for e in four(result)] == pytest.approx(effects(T, A, R, D, C), rel=1e-7)


def test_percentile_limits_agree_with_a_loop_of_refits():
    data = np.array(chain(40))
    rng = np.random.default_rng(1)
    draws = [effects(*data[:, rng.integers(0, 40, 40)]) for _ in range(1500)]
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    result = mediate(data[0], data[1], R=data[2], D=data[3], covariates=data[4], resamples=5000)
    width = high - low
    assert (np.abs([e.low for e in four(result)] - low) < 0.1 * width).all()
    assert (np.abs([e.high for e in four(result)] - high) < 0.1 * width).all()


def test_links_agree_with_statsmodels():
    T, A, R, D, C = chain(50)
    links = mediate(T, A, R=R, D=D, covariates=C, resamples=100).links
    fit = sm.OLS(D, sm.add_constant(np.column_stack([1 / R, A, T, C]))).fit()
    gamma = links["1/R->D"]
    assert (gamma.estimate.value, gamma.p) == pytest.approx((fit.params[1], fit.pvalues[1]), rel=1e-6)
    assert (gamma.estimate.low, gamma.estimate.high) == pytest.approx(fit.conf_int()[1], rel=1e-6)
    assert links["T->A"].estimate.value == pytest.approx(
        sm.OLS(A, sm.add_constant(np.column_stack([T, C]))).fit().params[1]
    )


def test_many_units_recover_the_truth():
    T, A, R, D, C = chain(20_000, direct=0.05)
    result = mediate(T, A, R=R, D=D, covariates=C, resamples=100)
    indirect = (3 / (R + 0.8 * 0.5 - 0.1) - 3 / R).mean()
    through = (3 / (R + 0.8 * 0.5) - 3 / R).mean()
    assert result.direct.value == pytest.approx(0.05, abs=0.005)
    assert result.indirect.value == pytest.approx(indirect, abs=0.005)
    assert result.chain.value == pytest.approx(through, abs=0.006)
    assert result.total.value == pytest.approx(indirect + 0.05, abs=0.005)


def test_robustness_value_is_the_confounding_that_voids_a_link():
    """A confounder explaining RV of the residual variance on both sides takes the coefficient to zero."""
    T, A, R, D, C = chain(30, noise=0.05)
    rv = mediate(T, A, R=R, D=D, covariates=C, resamples=100).links["1/R->D"].robustness
    X = sm.add_constant(np.column_stack([A, T, C]))
    outcome, exposure = sm.OLS(D, X).fit().resid, sm.OLS(1 / R, X).fit().resid
    slope = outcome @ exposure / (exposure @ exposure)
    left = outcome - slope * exposure
    bias = np.sqrt(rv * rv / (1 - rv)) * np.linalg.norm(left) / np.linalg.norm(exposure)
    assert bias == pytest.approx(abs(slope), rel=1e-6)
