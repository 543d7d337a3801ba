"""Document 004, theorem 4 and summary: the causal chain tokenization → alignment → redundancy → disparity."""

from dataclasses import replace

import numpy as np

from fairbits.kurtosis.checklist import published_statistics
from fairbits.models.scales.clip_formulas import banner_laplace
from fairbits.models.scales.distributions import Laplace
from fairbits.stats.correlation import pearson
from fairbits_research.claims.claim import Finding, claim, from_experiments, judge
from fairbits_research.claims.claim_evidence import GAUSSIAN, best_alpha, optimum
from fairbits_research.stats.correlation_tests import correlation_power, sample_size_for_power
from fairbits_research.stats.mediation_models import mediate
from fairbits_research.theory.mediation_theorem import SEED_MODEL, StructuralModel
from fairbits_research.theory.redundancy_theorem import disparity_ratio, redundancy_bound

_NOISY = replace(SEED_MODEL, sd_a=0.1, sd_r=0.1, sd_d=0.1)
"""The document's coefficients with noise, for draws."""


def _with_noise(share: float) -> StructuralModel:
    """Returns the document's model with the standard deviation of R at t = 1 this share of its mean."""
    return replace(SEED_MODEL, sd_r=share * SEED_MODEL.slope)


@claim("004-27")
def causal_chain() -> Finding:
    """Tokenization quality acts on disparity by the chain T → A (alignment) → R (redundancy) → D, and no other way."""
    n = len(published_statistics().languages)
    return from_experiments(
        "004-27",
        "an assumption that a table of 14 languages cannot test",
        languages=n,
        power_for_a_partial_correlation_of_three_tenths=correlation_power(0.3, n - 1),
        power_for_a_partial_correlation_of_one_half=correlation_power(0.5, n - 1),
        languages_for_80_percent_power_at_three_tenths=sample_size_for_power(0.3, 0.8) + 1,
    )


@claim("004-28")
def causal_derivative() -> Finding:
    """The causal effect of tokenization is ∂E[D | do(T = t)]/∂t = −γβ₁β₂/(β₁β₂t)²."""
    width = 1e-4
    slope = (SEED_MODEL.expected_damage(1 + width) - SEED_MODEL.expected_damage(1 - width)) / (2 * width)
    noisy = _with_noise(0.25)
    off = noisy.exact_effect(1.0) / SEED_MODEL.effect(1.0)
    return judge(
        abs(slope / SEED_MODEL.effect(1.0) - 1) < 1e-6,
        "right in the limit of small noise, too small in magnitude otherwise",
        condition=abs(off - 1) > 0.05,
        claimed_effect_at_1=SEED_MODEL.effect(1.0),
        numerical_derivative_at_1=slope,
        exact_effect_noise_quarter_of_mean=noisy.exact_effect(1.0),
        second_order_effect_noise_quarter_of_mean=noisy.effect(1.0, order=2),
    )


@claim("004-29")
def all_indirect() -> Finding:
    """None of the effect of tokenization is direct; all of it passes through alignment and redundancy."""
    draws = replace(_NOISY, sd_d=0.05).simulate(2.0, 400, rng=np.random.default_rng(0), spread=0.3)
    chain, arrow = (
        mediate(draws.t, draws.a, R=draws.r, D=draws.d + direct * draws.t, resamples=200, rng=0).direct
        for direct in (0.0, -0.5)
    )
    return judge(
        not chain.excludes(0.0),
        "by construction, if the graph is right; the decomposition is assumed, not found",
        condition=arrow.excludes(0.0),
        direct_effect_estimated_from_the_chain=chain.value,
        direct_effect_added=-0.5,
        direct_effect_estimated_with_it=arrow.value,
    )


@claim("004-30")
def expected_disparity() -> Finding:
    """The expected disparity under do(T = t) is about γ/(β₁β₂t) when the noise is small."""
    claimed = SEED_MODEL.expected_damage(1.0)
    exact = {share: _with_noise(share).exact_damage(1.0) for share in (0.05, 0.17, 0.25)}
    return judge(
        abs(exact[0.05] / claimed - 1) < 0.01,
        "close for small noise in redundancy, too low for larger",
        condition=exact[0.25] / claimed > 1.05,
        claimed_without_noise=claimed,
        **{f"exact_with_noise_of_{round(100 * share)}_percent": value for share, value in exact.items()},
    )


@claim("004-31")
def negative_effect() -> Finding:
    """Better tokenization lowers disparity: the derivative is negative."""
    with_noise = [_with_noise(share).exact_effect(1.0) for share in (0.01, 0.05, 0.1, 0.2, 0.3)]
    flipped_gamma = replace(SEED_MODEL, gamma=-1.5).effect(1.0)
    flipped_alignment = replace(SEED_MODEL, beta_ta=-0.92).effect(-1.0)
    return judge(
        max(with_noise) < 0,
        "negative for positive coefficients at any noise; the sign is assumed with the coefficients",
        condition=min(flipped_gamma, flipped_alignment) > 0,
        effect_without_noise=SEED_MODEL.effect(1.0),
        weakest_effect_with_noise=max(with_noise),
        effect_with_negative_gamma=flipped_gamma,
        effect_with_negative_beta=flipped_alignment,
    )


@claim("004-32")
def mediated_share() -> Finding:
    """The product β₁β₂ ≈ 0.78 is the share of the effect of tokenization that is mediated."""
    rescaled = replace(SEED_MODEL, beta_ta=SEED_MODEL.beta_ta / 10)
    proportion = SEED_MODEL.decompose(1.0).proportion_mediated
    return judge(
        abs(SEED_MODEL.slope - proportion) < 0.01,
        "a slope with a unit was taken for a proportion",
        product=SEED_MODEL.slope,
        product_with_T_in_tenths=rescaled.slope,
        mediated_share_in_the_model=proportion,
        mediated_share_with_T_in_tenths=rescaled.decompose(10.0).proportion_mediated,
        corollary_ratio_without_delta=disparity_ratio(3.8, 1.5, delta=0.0),
        corollary_ratio_of_theorem_1=disparity_ratio(3.8, 1.5, delta=0.1),
    )


@claim("004-33")
def causality() -> Finding:
    """The model shows that the effect of tokenization on disparity is causal."""
    rng = np.random.default_rng(0)
    n, cases = len(published_statistics().languages), 300
    slopes = []
    for _ in range(cases):
        draws = _NOISY.simulate(2.0, n, rng=rng, spread=0.3, confounding=0.7)
        slopes.append(np.polyfit(draws.t, draws.d, 1)[0])
    no_effect = replace(_NOISY, gamma=0.0)
    significant = [
        pearson(draws.t, draws.d).p < 0.05
        for draws in (no_effect.simulate(2.0, n, rng=rng, spread=0.3, confounding=0.7) for _ in range(cases))
    ]
    return judge(
        float(np.mean(significant)) < 0.1,
        "one unmeasured common cause produces the pattern without any effect of tokenization",
        true_effect=_NOISY.exact_effect(2.0),
        mean_estimate_with_confounder=float(np.mean(slopes)),
        spread_of_estimates=float(np.std(slopes)),
        share_significant_without_effect=float(np.mean(significant)),
    )


@claim("004-34")
def contributions() -> Finding:
    """The document contributes a first information-theoretic bound on disparity and a closed-form per-language
    threshold."""
    error = optimum(GAUSSIAN, 4, "midrise").value
    bound = redundancy_bound(3.8, 4, delta=0.1)
    law = Laplace()
    return judge(
        bound >= error,
        "the bound is violated, and the only closed form is Banner's for a Laplace law",
        bound_for_high_resource_languages=bound,
        error_of_16_levels=error,
        closed_form_alpha_laplace=banner_laplace(law.laplace_b, 4),
        best_alpha_laplace=best_alpha(law, 4),
    )
