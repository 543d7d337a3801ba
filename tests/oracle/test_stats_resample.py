"""Replicates, intervals, extremes and heterogeneity against loops, normal theory and statsmodels."""

import numpy as np
import pytest
from scipy import integrate, stats
from statsmodels.stats.meta_analysis import combine_effects

from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import simultaneous
from fairbits.stats.resample import Replicates
from fairbits.stats.worst_language import bias_corrected_range, random_effects_sd, worst_language


def normal_replicates(value, error, *, resamples=20_000, seed=0):
    """Replicates of independent normal estimates with known standard errors."""
    size = len(value)
    noise = np.random.default_rng(seed).normal(size=(resamples, size)) * error
    return Replicates(
        tuple(f"l{i:02}" for i in range(size)),
        np.asarray(value, dtype=float),
        np.asarray(error, dtype=float),
        noise,
        np.tile(error, (resamples, 1)),
        np.eye(size),
        np.full(size, 50),
        50 * size,
    )


def ragged(parallel, seed=3):
    rng = np.random.default_rng(seed)
    lang = np.repeat(["a", "b", "c"], 30)
    document = np.tile(np.arange(30), 3) if parallel else np.arange(90)
    weights = rng.integers(50, 400, 90).astype(float)
    values = weights * 0.05 + rng.exponential(5, 90) + np.tile(rng.normal(0, 4, 30), 3)
    return lang, document, values, weights


@pytest.mark.parametrize("parallel", [True, False])
def test_replicates_agree_with_a_plain_loop(parallel):
    lang, document, values, weights = ragged(parallel)
    replicates = LanguageFrame(lang, document, values=values, weights=weights).replicates
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(6000):
        picks = [rng.integers(0, 30, 30)] * 3 if parallel else [rng.integers(0, 30, 30) for _ in range(3)]
        draws.append(
            [
                values[lang == name][pick].sum() / weights[lang == name][pick].sum()
                for name, pick in zip("abc", picks, strict=True)
            ]
        )
    expected = np.cov(np.array(draws).T)
    got = np.cov(replicates.deviation.T)
    assert np.sqrt(np.diag(got)) == pytest.approx(np.sqrt(np.diag(expected)), rel=0.04)
    assert np.corrcoef(replicates.deviation.T) == pytest.approx(np.corrcoef(np.array(draws).T), abs=0.05)
    assert replicates.error * np.sqrt(29 / 30) == pytest.approx(np.sqrt(np.diag(expected)), rel=0.06)
    assert replicates.correlation == pytest.approx(np.corrcoef(np.array(draws).T), abs=0.07)


def test_error_inside_a_resample_agrees_with_its_definition():
    """The studentising error of each resample equals the one a frame of the drawn documents reports."""
    lang, document, values, weights = ragged(True)
    sample = LanguageFrame(lang, document, values=values, weights=weights, resamples=200, seed=8)
    drawn = np.random.default_rng(8).integers(0, 30, size=(200, 30))
    for b in (0, 57, 199):
        for column, name in enumerate("abc"):
            d, w = values[lang == name][drawn[b]], weights[lang == name][drawn[b]]
            v = d.sum() / w.sum()
            error = np.sqrt(30 / 29 * ((d - v * w) ** 2).sum()) / w.sum()
            assert sample.replicates.replicate_error[b, column] == pytest.approx(error)
            assert sample.replicates.value[column] + sample.replicates.deviation[b, column] == pytest.approx(v)


def test_equal_weights_give_students_interval_for_normal_documents():
    values = np.random.default_rng(1).normal(5, 1, 60)
    sample = LanguageFrame(np.repeat(["a"], 60), np.arange(60), values=values, weights=np.ones(60), resamples=40_000)
    expected = stats.t.interval(0.95, 59, values.mean(), stats.sem(values))
    got = sample.language("a")
    assert (got.low, got.high) == pytest.approx(expected, abs=0.04)


def test_paired_gap_agrees_with_the_paired_t_interval():
    rng = np.random.default_rng(4)
    first, second = rng.normal(0, 3, 80) + rng.normal(size=(2, 80))
    sample = LanguageFrame(
        np.repeat(["a", "b"], 80),
        np.tile(np.arange(80), 2),
        values=np.concatenate([first + 4, second]),
        weights=np.ones(160),
        resamples=20_000,
    )
    difference = first + 4 - second
    expected = stats.t.interval(0.95, 79, difference.mean(), stats.sem(difference))
    assert (sample.gap().low, sample.gap().high) == pytest.approx(expected, abs=0.1)
    assert sample.gap().value == pytest.approx(difference.mean(), abs=1e-3)


def test_contrast_agrees_with_the_paired_t_test():
    rng = np.random.default_rng(5)
    base = rng.normal(0, 3, 100)
    keys = (np.repeat(["a"], 100), np.arange(100))
    before = LanguageFrame(*keys, values=base + rng.normal(0.0, 1, 100), weights=np.ones(100))
    after = LanguageFrame(*keys, values=base, weights=np.ones(100))
    expected = stats.ttest_rel(before.values, after.values).pvalue
    assert before.contrast(after).p["a"] == pytest.approx(expected, rel=0.2)


def test_max_t_critical_value_is_that_of_normal_theory():
    replicates = normal_replicates(np.zeros(14), np.ones(14), resamples=100_000)
    critical = stats.norm.ppf(0.5 + 0.95 ** (1 / 14) / 2)
    low, high = simultaneous(replicates, 0.95)
    assert high == pytest.approx(np.full(14, critical), abs=0.03)
    assert low == pytest.approx(-high)


def test_the_noise_of_fourteen_equal_languages_has_range_3_41():
    def survive(x):
        return 1 - stats.norm.cdf(x) ** 14 - (1 - stats.norm.cdf(x)) ** 14

    expected = integrate.quad(survive, -np.inf, np.inf)[0]
    assert expected == pytest.approx(3.41, abs=0.005)
    value = np.r_[-1.8, np.zeros(12), 1.8]  # spread less than noise alone: every difference is shrunk away
    replicates = normal_replicates(value, np.ones(14), resamples=100_000)
    assert random_effects_sd(replicates).value == 0
    assert bias_corrected_range(replicates, method="naive").value == pytest.approx(3.6)
    assert bias_corrected_range(replicates).value == pytest.approx(3.6 - expected, abs=0.01)
    closer = normal_replicates(value / 2, np.ones(14))
    assert bias_corrected_range(closer).value == 0


def test_a_clear_gap_is_left_alone():
    replicates = normal_replicates([0.0, 30.0, 60.0], np.ones(3))
    gap = bias_corrected_range(replicates)
    assert gap.value == pytest.approx(60, abs=0.05)
    half = stats.norm.ppf(0.975) * np.sqrt(2)
    assert gap.high == pytest.approx(60 + half, abs=0.1)
    assert worst_language(replicates)[1].high == pytest.approx(60 + stats.norm.ppf(0.975), abs=0.1)


def test_random_effects_agree_with_paule_mandel_of_statsmodels():
    rng = np.random.default_rng(6)
    error = rng.uniform(0.5, 1.5, 12)
    value = rng.normal(0, 1.5, 12) + rng.normal(size=12) * error
    expected = combine_effects(value, error**2, method_re="iterated").tau2
    assert random_effects_sd(normal_replicates(value, error)).value ** 2 == pytest.approx(expected, rel=1e-4)


def test_q_profile_with_equal_errors_is_the_interval_of_a_variance():
    value = np.random.default_rng(7).normal(0, 4, 15)
    got = random_effects_sd(normal_replicates(value, np.ones(15)))
    squares = 14 * value.var(ddof=1)
    limits = squares / stats.chi2.ppf([0.975, 0.025], 14) - 1
    assert (got.low, got.high) == pytest.approx(np.sqrt(limits), rel=1e-6)
