"""Document 001, sections 1 to 3: the core correlation, the causal model and the predictions across models."""

import numpy as np
from scipy import stats

from fairbits.kurtosis.checklist import published_statistics
from fairbits.models.scales.grid import Grid
from fairbits.stats.correlation import fisher_interval
from fairbits_research.claims.claim import Finding, claim, from_experiments, judge
from fairbits_research.claims.claim_evidence import (
    GAUSSIAN,
    LANGUAGES,
    family_words,
    optimum,
    outlier_correlation,
    pair_damages,
    random_patterns,
    rises_with_kappa,
    worst_over_best,
)
from fairbits_research.stats.correlation_tests import correlation_power, partial_correlation, sample_size_for_power
from fairbits_research.stats.pearson_correlation import pearson
from fairbits_research.theory.distributions import (
    Distribution,
    Gaussian,
    GaussianScaleMixture,
    GeneralisedGaussian,
    StudentT,
)
from fairbits_research.theory.noise import noise
from fairbits_research.theory.thresholds import families

MLP_WEIGHTS = 2 * 1024 * 4096
"""Weights of one MLP of BLOOM-560M: two matrices between widths 1024 and 4096."""


@claim("001-01")
def core_correlation() -> Finding:
    """Over 14 languages, the activation of outlier layers and degradation correlate at −0.834 (bootstrap interval
    −0.93 to −0.65): languages that activate these layers less degrade more."""
    fisher, boot = (correlation.estimate for correlation in outlier_correlation())
    claimed_low, claimed_high = -0.93, -0.65
    agrees = abs(boot.value + 0.834) < 5e-4 and max(abs(boot.low - claimed_low), abs(boot.high - claimed_high)) < 0.03
    return judge(
        agrees,
        "reproduces as arithmetic on the published table, not measured on one model; Fisher's interval is wider",
        condition=fisher.high > claimed_high and fisher.low < claimed_low,
        r=boot.value,
        bootstrap_low=boot.low,
        bootstrap_high=boot.high,
        fisher_low=fisher.low,
        fisher_high=fisher.high,
    )


@claim("001-02")
def causal_graph() -> Finding:
    """Training data and architecture form outlier weights, these shape each language's activations, and one α for all
    then makes degradation differ between languages."""
    table = published_statistics()
    a, D, latin = table.outlier_activation, table.degradation, table.latin
    partial = partial_correlation(a, D, covariates=latin, resamples=999)
    non_latin = latin == 0
    return from_experiments(
        "001-02",
        "script correlates with both ends of the chain, so the public table cannot separate cause from confounding",
        r_script_activation=pearson(latin, a).estimate.value,
        r_script_degradation=pearson(latin, D).estimate.value,
        r_activation_degradation=pearson(a, D).estimate.value,
        r_activation_degradation_given_script=partial.estimate.value,
        p_given_script=partial.p,
        r_non_latin_only=pearson(a[non_latin], D[non_latin]).estimate.value,
        p_non_latin_only=pearson(a[non_latin], D[non_latin]).p,
    )


@claim("001-03")
def outlier_layers() -> Finding:
    """BLOOM has κ above 100 in layers 5, 21 and 22, while XGLM stays below 2 everywhere."""
    table = published_statistics()
    bloom, xglm = table.kurtosis["BLOOM-560M"], table.kurtosis["XGLM-564M"]
    above = tuple(int(layer) for layer in np.flatnonzero(bloom > 100))
    one_weight = 134.0**4 / MLP_WEIGHTS
    weights = float(bloom.max()) / one_weight
    return judge(
        above == (5, 21, 22) and float(xglm.max()) < 2,
        "agrees with the published table of MLP weights; a handful of weights can produce such a κ",
        condition=weights < 100,
        layers_above_100=len(above),
        bloom_max_kappa_mlp=bloom.max(),
        bloom_max_kappa_census=table.max_kurtosis["BLOOM-560M"],
        xglm_max_kappa=xglm.max(),
        kappa_from_one_weight_at_134_sigma=one_weight,
        such_weights_that_make_the_maximum=weights,
    )


@claim("001-04")
def activation_spread() -> Finding:
    """Languages differ by over 3 percentage points in outlier-layer activation, because training volume specialises
    layers."""
    table = published_statistics()
    a = table.outlier_activation
    return from_experiments(
        "001-04",
        "the spread is that of the public table, which does not show the cause",
        about=("BLOOM-560M",),
        spread=np.ptp(a),
        r_activation_script=pearson(a, table.latin).estimate.value,
        r_activation_tokens_in_the_sentence=pearson(a, table.tokens).estimate.value,
        fewest_tokens=table.tokens.min(),
        most_tokens=table.tokens.max(),
    )


@claim("001-05")
def clipping_rises_with_kappa() -> Finding:
    """At a fixed α, a layer of higher κ has more clipping error."""

    def clipped(law: Distribution) -> float:
        return noise(law, Grid(4), 2.5 / 7).clip

    at_100 = {f"clipped_kappa_100_{family_words(name)}": clipped(law) for name, law in families(100.0).items()}
    rare = clipped(GaussianScaleMixture.with_kappa(100.0, epsilon=1e-6))
    mild = clipped(StudentT.with_kappa(1.0))
    return judge(
        rises_with_kappa(clipped),
        "true along t and generalised Gaussian laws, false across laws",
        condition=rare < mild,
        clipped_gaussian=clipped(GAUSSIAN),
        clipped_kappa_1_t_law=mild,
        clipped_kappa_100_outliers_1_in_a_million=rare,
        **at_100,
    )


@claim("001-06")
def necessary_conditions() -> Finding:
    """Disparity needs all of: outlier layers (C1), outlier activation that varies with language (C2), and few bits
    (C3)."""
    damages = pair_damages()
    outlier = optimum(StudentT.with_kappa(100.0), 4).value
    errors = np.array([outlier, *(optimum(Gaussian(sigma), 4).value for sigma in (1.0, 3.0))])
    same_outlier_use = np.array([[0.2, 0.7, 0.1], [0.2, 0.1, 0.7]]) @ errors
    ratios = {
        "worst_over_best_without_outliers_alpha_of_mean_sigma": worst_over_best(damages.fixed),
        "worst_over_best_without_outliers_best_shared_alpha": worst_over_best(damages.shared),
        "worst_over_best_without_outliers_alpha_per_layer": worst_over_best(damages.per_layer),
        "worst_over_best_with_equal_outlier_activation": worst_over_best(same_outlier_use),
    }
    return judge(
        max(ratios.values()) < 1.1,
        "without outliers, or with equal outlier activation, the damage of two languages still differs",
        **ratios,
    )


@claim("001-07")
def model_table() -> Finding:
    """Maximum κ ranks models by disparity: BLOOM (164) high, mT5 (45) moderate, XLM-R (10) low to moderate, XGLM (1.9)
    low."""
    census = published_statistics().max_kurtosis
    return from_experiments(
        "001-07",
        "a prediction for models of which two were never measured",
        bloom_kappa_in_table=published_statistics().kurtosis["BLOOM-560M"].max(),
        bloom_kappa_in_census=census["BLOOM-560M"],
        mt5_kappa_in_census=census["mT5-small"],
        xlm_r_kappa_in_census=census["XLM-R-base"],
        xglm_kappa_in_census=census["XGLM-564M"],
    )


@claim("001-08")
def xglm_null() -> Finding:
    """XGLM shows no correlation (r = +0.38, not significant) because it has no outlier layers."""
    r = float(np.asarray(published_statistics().published["xglm_r"]))
    low, high = fisher_interval(r, 1 / np.sqrt(LANGUAGES - 3), 0.95)
    t = r * np.sqrt(LANGUAGES - 2) / np.sqrt(1 - r**2)
    ratio = worst_over_best(pair_damages().shared)
    return judge(
        max(abs(low), abs(high)) < 0.5 and ratio < 1.1,
        "the interval does not exclude a strong correlation, and Gaussian layers can damage languages unequally",
        r=r,
        p=2 * stats.t.sf(t, LANGUAGES - 2),
        fisher_low=low,
        fisher_high=high,
        power_if_the_true_r_is_one_half=correlation_power(0.5, LANGUAGES),
        worst_over_best_on_gaussian_layers=ratio,
    )


@claim("001-09")
def low_kappa_no_disparity() -> Finding:
    """A model whose maximum κ is below 5 shows no disparity between languages."""
    rng = np.random.default_rng(0)
    kurtosis = published_statistics().kurtosis
    patterns = random_patterns(rng, 200 * LANGUAGES, 24).reshape(200, LANGUAGES, 24)
    scales = {"equal_sigma": np.ones((200, 24)), "unequal_sigma": rng.lognormal(0, 0.5, size=(200, 24))}
    gaps = {}
    for name, model in (("xglm", "XGLM-564M"), ("bloom", "BLOOM-560M")):
        unit = np.array([optimum(GeneralisedGaussian.with_kappa(float(kappa)), 4).value for kappa in kurtosis[model]])
        for scale, sigma in scales.items():
            D = np.einsum("clb,cb->cl", patterns, sigma**2 * unit)
            gaps[f"gap_over_mean_{name}_{scale}"] = float(np.median(np.ptp(D, axis=1) / D.mean(axis=1)))
    return judge(
        max(value for name, value in gaps.items() if "xglm" in name) < 0.01,
        "low-κ layers give a smaller gap at equal σ and nearly the same gap at unequal σ, but never none",
        max_kappa_xglm=float(kurtosis["XGLM-564M"].max()),
        gap_over_mean_xglm_equal_sigma=gaps["gap_over_mean_xglm_equal_sigma"],
        gap_over_mean_bloom_equal_sigma=gaps["gap_over_mean_bloom_equal_sigma"],
        gap_over_mean_xglm_unequal_sigma=gaps["gap_over_mean_xglm_unequal_sigma"],
        gap_over_mean_bloom_unequal_sigma=gaps["gap_over_mean_bloom_unequal_sigma"],
    )


@claim("001-10")
def mt5_prediction() -> Finding:
    """If activation varies by language in mT5, decoder-attention activation and degradation correlate below −0.5."""
    return from_experiments(
        "001-10",
        "14 languages would be too few to test it",
        about=("mT5",),
        power_at_14_languages=correlation_power(-0.5, LANGUAGES),
        languages_for_80_percent_power=sample_size_for_power(-0.5, 0.8),
        max_kappa_mt5=published_statistics().max_kurtosis["mT5-small"],
    )
