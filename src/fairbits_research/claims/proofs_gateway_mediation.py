"""Document 004, theorems 3 and 4: which layers to keep, and the causal chain from tokenization to disparity."""

import math
from dataclasses import replace

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.kurtosis.checklist import published_statistics
from fairbits.models.scales.clip_formulas import banner_laplace
from fairbits.models.scales.exact_clip import clip_blocks
from fairbits.models.scales.grid import Grid
from fairbits.quantization.allocation import gateway_set
from fairbits_research.claims.claim import Finding, claim, from_experiments, judge, with_measurements
from fairbits_research.claims.claim_evidence import GAUSSIAN, best_alpha, optimum
from fairbits_research.stats.correlation_tests import correlation_power, sample_size_for_power
from fairbits_research.stats.mediation_models import mediate
from fairbits_research.stats.pearson_correlation import pearson
from fairbits_research.theory.bounds import disparity
from fairbits_research.theory.distributions import Laplace
from fairbits_research.theory.gateway_theorem import amplification_sensitivity, best_protected_set, gateway_misses
from fairbits_research.theory.mediation_theorem import SEED_MODEL, StructuralModel
from fairbits_research.theory.redundancy_theorem import disparity_ratio, redundancy_bound

_LAYERS, _PROTECTED = 12, 3
_GATEWAYS = [0, _LAYERS - 1]


@claim("004-21")
def gateway_assumptions() -> Finding:
    """If the end layers are language-specific, the middle is a bottleneck and low-resource languages are less
    redundant, then protecting both ends minimises disparity."""
    middle = [_LAYERS // 2 <= layer <= 3 * _LAYERS // 4 for layer in range(_LAYERS)]
    high_resource, low_resource = np.where(middle, 1.5, 1.0), np.where(middle, 3.0, 2.0)
    high_resource[_GATEWAYS], low_resource[_GATEWAYS] = 4.0, 4.1
    damage = np.array([high_resource, low_resource])
    best, value = best_protected_set(damage, k=_PROTECTED, objective="gap")
    rule = gateway_set(_LAYERS, _PROTECTED)
    refuted = judge(
        set(_GATEWAYS) <= set(best),
        "a case that meets every assumption, with the most sensitive layers at the ends, whose best set has neither",
        disparity_unprotected=disparity(damage.sum(axis=1)),
        disparity_both_ends=disparity(damage.sum(axis=1) - damage[:, rule].sum(axis=1)),
        disparity_best_set=value,
        first_layer_of_best_set=best[0],
        last_layer_of_best_set=best[-1],
    )
    return with_measurements("004-21", refuted, "the assumptions themselves, measured")


@claim("004-22")
def gateway_theorem() -> Finding:
    """Theorem 3: every disparity-minimising set of three or more protected layers contains the first and the last
    layer."""
    misses = {
        f"share_of_best_sets_lacking_an_end_{name}_{k}_of_12": gateway_misses(
            cases, rng=np.random.default_rng(0), objective=objective, k=k
        )
        for name, objective, k, cases in (
            ("disparity", "gap", 3, 500),
            ("disparity", "gap", 4, 500),
            ("worst_language", "worst", 3, 500),
        )
    }
    strong = gateway_misses(500, rng=np.random.default_rng(0), objective="gap", gateway_factor=10.0)
    return judge(
        max(misses.values()) < 0.01,
        "most random cases have a best set that lacks an end layer, even if the ends are ten times as sensitive",
        **misses,
        share_lacking_an_end_if_ends_are_ten_times_as_sensitive=strong,
    )


@claim("004-23")
def error_amplification() -> Finding:
    """Perplexity grows with Σ_i ε_i·Π_{j>i}‖W_j‖, so errors of the first layer are amplified by all later ones."""
    norms = (0.5, 0.8, 1.25, 2.0)
    terms = {norm: amplification_sensitivity(np.ones(_LAYERS), np.full(_LAYERS, norm)) for norm in norms}
    claimed = {norm: float(term[0] / term[-1]) for norm, term in terms.items()}
    measured = {norm: _residual_amplification(norm) for norm in norms}
    return judge(
        all(0.5 < claimed[norm] / measured[norm] < 2 for norm in norms),
        "a residual network does not follow it, and the formula itself never protects both ends",
        first_over_last_layer_claimed_norm_one_half=claimed[0.5],
        first_over_last_layer_measured_norm_one_half=measured[0.5],
        first_over_last_layer_claimed_norm_two=claimed[2.0],
        first_over_last_layer_measured_norm_two=measured[2.0],
        norms_tried=len(norms),
        norms_at_which_it_protects_both_ends=sum(set(_GATEWAYS) <= set(_top(term)) for term in terms.values()),
    )


def _top(sensitivity: Floats) -> list[int]:
    return [int(layer) for layer in np.argsort(sensitivity)[-_PROTECTED:]]


def _residual_amplification(norm: float, width: int = 64) -> float:
    """Returns how much a small error after the first of 12 pre-LN residual blocks has grown after the last (rms)."""
    rng = np.random.default_rng(0)
    blocks = rng.standard_normal((_LAYERS, width, width))
    blocks *= norm / np.linalg.norm(blocks, ord=2, axis=(1, 2))[:, None, None]
    h = rng.standard_normal((width, 200))
    noise = 1e-4 * rng.standard_normal(h.shape)
    clean, noisy = h, h + noise
    for block in blocks[1:]:
        clean, noisy = (x + block @ ((x - x.mean(axis=0)) / x.std(axis=0)) for x in (clean, noisy))
    return float(np.linalg.norm(noisy - clean) / np.linalg.norm(noise))


@claim("004-24")
def logit_error() -> Finding:
    """The error of the logits is ΔW·h + W·Δh."""
    shares = {bits: _second_order_share(bits) for bits in (2, 3, 4, 8)}
    return judge(
        shares[8] < 0.02,
        "right to first order; the dropped product matters at few bits",
        condition=shares[2] > 0.05,
        **{f"dropped_term_over_whole_error_{bits}_bits": share for bits, share in shares.items()},
    )


def _second_order_share(bits: int) -> float:
    """Returns ‖ΔW·Δh‖/‖Δlogits‖ for two random layers quantized per row."""
    rng = np.random.default_rng(0)
    below, above = rng.standard_normal((2, 256, 256)) / 16
    x = rng.standard_normal((256, 64))
    grid = Grid(bits)
    d_below, d_above = (grid.quantize(W, clip_blocks(W, grid).step) - W for W in (below, above))
    h, dh = below @ x, d_below @ x
    exact = (above + d_above) @ (h + dh) - above @ h
    return float(np.linalg.norm(exact - (d_above @ h + above @ dh)) / np.linalg.norm(exact))


@claim("004-25")
def fill_by_sensitivity() -> Finding:
    """Given both end layers, the other slots belong to the layers with the largest summed sensitivity of low-resource
    languages."""
    rng = np.random.default_rng(0)
    damage = rng.gamma(2.0, size=(4000, 4, _LAYERS))  # case, language (the last two low-resource), layer
    damage[:, 2:] *= 1.5
    inner = damage[:, :, 1:-1]
    left = inner.sum(axis=2, keepdims=True) - inner  # both ends and one inner layer protected
    gaps = np.ptp(left, axis=1)
    chosen = np.take_along_axis(gaps, inner[:, 2:].sum(axis=1).argmax(axis=1)[:, None], axis=1)[:, 0]
    best = gaps.min(axis=1)
    unfilled = np.ptp(inner.sum(axis=2), axis=1)
    return judge(
        float(np.mean(chosen > best)) < 0.01,
        "the rule misses the set of least disparity in half of the random cases",
        share_of_cases_where_another_layer_is_better=float(np.mean(chosen > best)),
        mean_disparity_of_rule=float(chosen.mean()),
        mean_disparity_of_best=float(best.mean()),
        share_where_filling_raises_disparity=float(np.mean(chosen > unfilled)),
    )


@claim("004-26")
def gpt2_gateways() -> Finding:
    """On GPT-2 small the best three layers to protect are {0, 9, 11}, and the four best sets all contain {0, 11}."""
    sets, both = math.comb(_LAYERS, _PROTECTED), _LAYERS - 2
    rng = np.random.default_rng(0)
    damage = rng.gamma(2.0, size=(4000, 2, _LAYERS))
    damage[:, :, _GATEWAYS] *= 2
    before = np.ptp(damage.sum(axis=2), axis=1)
    rule = list(gateway_set(_LAYERS, _PROTECTED))
    after = np.ptp(np.delete(damage, rule, axis=2).sum(axis=2), axis=1)
    return from_experiments(
        "004-26",
        "chance alone would rarely put both ends into the four best sets",
        about=("GPT-2",),
        sets_of_three=sets,
        sets_with_both_ends=both,
        chance_of_the_top_four=math.comb(both, 4) / math.comb(sets, 4),
        share_of_random_cases_in_which_the_rule_raises_disparity=float(np.mean(after > before)),
    )


_NOISY = replace(SEED_MODEL, sd_a=0.1, sd_r=0.1, sd_d=0.1)
"""The document's coefficients with noise, for draws."""


def _with_noise(share: float) -> StructuralModel:
    """Returns the document's model with the standard deviation of R at t = 1 this share of its mean."""
    return replace(SEED_MODEL, sd_r=share * SEED_MODEL.slope)


@claim("004-27")
def causal_chain() -> Finding:
    """Tokenization quality acts on disparity by the chain T → A (alignment) → R (redundancy) → D, and no other way.

    The notes do not define A; the experiments measure it as how well hidden states of parallel text match."""
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
