"""Document 002: definitions, ACIQ and its language-aware extension, key results, calibration, predictions."""

from collections.abc import Iterable

import numpy as np
from scipy.stats import t as student

from fairbits.core.array_checks import Floats
from fairbits.kurtosis.checklist import published_statistics
from fairbits.models.scales.grid import Grid
from fairbits.models.weight_moments import Moments, kappa_mixture
from fairbits.stats.correlation import spearman
from fairbits_research.claims.claim import Finding, claim, from_experiments, judge, with_measurements
from fairbits_research.claims.claim_evidence import (
    GAUSSIAN,
    KAPPA_GLOBAL,
    LANGUAGES,
    PAIR,
    PAIR_PATTERNS,
    best_alpha,
    family_words,
    foreign_excess,
    formula_losses,
    loss,
    mean_loss,
    optima_at_kappa,
    optimum,
    outlier_correlation,
    pair_damages,
    random_damages,
)
from fairbits_research.claims.framework_definitions import SIGMA_RATIOS
from fairbits_research.claims.framework_proposals import mixed_precision, switching_gains
from fairbits_research.claims.refined_predictions import ROOTS_BYTES
from fairbits_research.stats.correlation_tests import correlation_power, permutation_test, sample_size_for_power
from fairbits_research.stats.pearson_correlation import pearson
from fairbits_research.theory.bounds import conjecture_bound, disparity, tv_bound
from fairbits_research.theory.clip_distribution import clip_distribution, minimax_distribution
from fairbits_research.theory.distributions import Mixture, Uniform
from fairbits_research.theory.effective_kurtosis import kappa_weighted, sample_moments
from fairbits_research.theory.noise import mse, noise
from fairbits_research.theory.threshold_formulas import kappa_alpha
from fairbits_research.theory.thresholds import alpha_by_kappa, families


@claim("002-01")
def summary_kurtosis() -> Finding:
    """The kurtosis of a layer's weights is the fourth central moment over σ⁴, less 3."""
    sample = np.random.default_rng(0).laplace(size=2_000_000)
    kappa, moved = sample_moments(sample).kappa, sample_moments(0.02 * sample - 5).kappa
    return judge(
        abs(kappa - 3) < 0.1 and abs(moved - kappa) < 1e-6,
        "a definition; a Laplace sample has κ ≈ 3, whatever its mean and scale",
        kappa_laplace_sample=kappa,
        kappa_after_shift_and_scaling=moved,
    )


@claim("002-02")
def summary_activation_share() -> Finding:
    """The share of layer l in language λ is the norm ‖h_l(λ)‖ over the sum of the norms of all layers."""
    raw = np.random.default_rng(0).standard_normal((3, 4096, 64))
    fixed = _shares((0.1 * raw + 1) * np.array([1.0, 2.0, 3.0])[:, None, None])
    raw[0] = 0.1 * raw[0] + 1
    raw[2, ::64] *= 30
    mixed = _shares(raw / np.linalg.norm(raw, axis=2).mean(axis=1)[:, None, None])
    return judge(
        float(np.max(np.abs(fixed["mean_norm"] - fixed["norm_of_mean"]))) < 0.01,
        "three readings of one symbol give different shares for the same states; the average must be specified",
        condition=float(np.max(np.abs(mixed["mean_norm"] - mixed["norm_of_mean"]))) > 0.02,
        **{f"share_of_layer_with_fixed_direction_by_{name}": share[0] for name, share in mixed.items()},
        **{f"share_of_layer_with_rare_large_states_by_{name}": share[2] for name, share in mixed.items()},
    )


def _shares(states: Floats) -> dict[str, Floats]:
    """Returns the share of each layer of states (layer, token, width) by three readings of ‖h‖."""
    norms = np.linalg.norm(states, axis=2)
    sizes = {
        "mean_norm": norms.mean(axis=1),
        "norm_of_mean": np.linalg.norm(states.mean(axis=1), axis=1),
        "mean_squared_norm": (norms**2).mean(axis=1),
    }
    return {name: size / size.sum() for name, size in sizes.items()}


@claim("002-03")
def summary_effective_kurtosis() -> Finding:
    """The kurtosis that a language experiences is the activation-weighted mean of the layers' kurtoses."""
    table = published_statistics()
    kappas = table.kurtosis["BLOOM-560M"]
    share = _english_pattern()
    mixed = {}
    for name, ratio in SIGMA_RATIOS.items():
        sigma = np.where(np.isin(np.arange(kappas.size), table.outlier_layers), ratio, 1.0)
        parts = [Moments(1, 0, s**2, 0, kappa) for s, kappa in zip(sigma, kappas, strict=True)]
        mixed[f"kappa_of_mixture_outlier_sigma_ratio_{name}"] = kappa_mixture(share, parts)
    weighted = kappa_weighted(share, kappas)
    return judge(
        all(abs(value / weighted - 1) < 0.01 for value in mixed.values()),
        "only for layers of equal width; a factor of two in σ changes the mixture's kurtosis severalfold",
        kappa_weighted=weighted,
        **mixed,
    )


def _english_pattern() -> Floats:
    """Returns activation over BLOOM-560M's layers: English's share on the outlier layers, the rest on the others."""
    table = published_statistics()
    inside = np.isin(np.arange(table.kurtosis["BLOOM-560M"].size), table.outlier_layers)
    outlier = float(table.outlier_activation[table.rows("eng")[0]])
    pattern: Floats = np.where(inside, outlier / inside.sum(), (1 - outlier) / (~inside).sum())
    return pattern


@claim("002-04")
def summary_rounding_error() -> Finding:
    """The rounding error of the B-bit quantizer is (2α)²/(12(2^B − 1)²)."""
    law = Uniform()
    alpha = float(np.sqrt(3.0))
    numbers = {}
    for bits in (2, 3, 4, 8):
        exact = noise(law, Grid(bits), float(Grid(bits).step(alpha))).round
        numbers[f"claimed_over_exact_{bits}_bits"] = (2 * alpha) ** 2 / (12 * (2**bits - 1) ** 2) / exact
        numbers[f"corrected_over_exact_{bits}_bits"] = alpha**2 / (12 * Grid(bits).highest ** 2) / exact
    claimed = [value for name, value in numbers.items() if name.startswith("claimed")]
    return judge(
        max(abs(value - 1) for value in claimed) < 1e-3,
        "too small at every width; with the quantizer's own step the formula is exact on a uniform law",
        **numbers,
    )


@claim("002-05")
def summary_gaussian_formula() -> Finding:
    """A Gaussian's optimal 4-bit threshold is α*/σ ≈ 2.5 + 0.3·ln(1 + κ)."""
    alpha, ratios = kappa_alpha(1.0, 100.0), formula_losses(4)
    return judge(
        mean_loss(ratios) < 0.02,
        "the κ term never acts on a Gaussian, and on laws that have a κ it gives no optimum",
        loss_gaussian=loss(GAUSSIAN, 4, kappa_alpha(1.0, 0.0)),
        loss_t_law_kappa_100=loss(families(100.0)["t"], 4, alpha),
        loss_generalised_gaussian_kappa_100=loss(families(100.0)["ggd"], 4, alpha),
        mean_loss_all_families=mean_loss(ratios),
        largest_error_over_best=ratios.max(),
    )


@claim("002-06")
def summary_blind_threshold() -> Finding:
    """Without regard to language, α* is σ times a function of the global kurtosis and the bit width."""
    laws = list(families(KAPPA_GLOBAL).values())
    alphas, _ = optima_at_kappa(KAPPA_GLOBAL)
    shared = minimax_distribution(laws, Grid(4), relative=True)
    return judge(
        shared.worst - 1 < 0.05,
        "no function of σ and κ, whatever its form, is close to optimal for all laws of one σ and one κ",
        smallest_alpha=min(alphas),
        largest_alpha=max(alphas),
        alpha_with_the_smallest_worst_loss=float(Grid(4).alpha(shared.step)),
        its_worst_loss=shared.worst - 1,
        worst_loss_of_the_formula=max(loss(law, 4, kappa_alpha(1.0, KAPPA_GLOBAL)) for law in laws),
    )


@claim("002-07")
def summary_language_threshold() -> Finding:
    """A language's optimal threshold is σ·f(κ_eff(λ), B)."""
    sigma = Mixture(PAIR, [0.5, 0.5]).moments.sigma
    formula = alpha_by_kappa(sigma, [0.5, 0.5], kappa=[0.0, 0.0])  # κ_eff is 0 for every language
    numbers = {"alpha_of_the_formula_both_languages": formula}
    losses = []
    for name, pattern in zip(("first", "second"), PAIR_PATTERNS, strict=True):
        law = Mixture(PAIR, pattern)
        own_sigma = alpha_by_kappa(law.moments.sigma, pattern, kappa=[0.0, 0.0])
        losses.append(loss(law, 4, formula))
        numbers[f"best_alpha_{name}_language"] = best_alpha(law, 4)
        numbers[f"loss_of_the_formula_{name}_language"] = losses[-1]
        numbers[f"loss_with_the_languages_own_sigma_{name}_language"] = loss(law, 4, own_sigma)
    return judge(
        max(losses) < 0.05,
        "languages of equal κ_eff need different thresholds; with a threshold per layer the language does not matter",
        **numbers,
        mean_error_with_a_threshold_per_layer=float(np.mean(pair_damages().per_layer)),
        mean_error_with_a_threshold_per_language=float(np.mean(pair_damages().per_language)),
    )


@claim("002-08")
def summary_quadratic_excess() -> Finding:
    """What a foreign threshold costs a language grows as (κ_eff(λ) − κ_global)²."""
    near, far = (42.0, 44.0), (1.0, 3.0, 10.0, 20.0, 30.0, 60.0, 100.0, 160.0)
    local, wide, logs = {}, {}, {}
    for name in ("t", "ggd"):
        words = family_words(name)
        square = {kappa: foreign_excess(name, kappa) / (kappa - KAPPA_GLOBAL) ** 2 for kappa in near + far}
        log = [foreign_excess(name, kappa) / np.log((1 + kappa) / (1 + KAPPA_GLOBAL)) ** 2 for kappa in far]
        local[f"fold_change_of_the_factor_kappa_42_to_44_{words}"] = _fold(square[kappa] for kappa in near)
        wide[f"fold_change_of_the_factor_kappa_1_to_160_{words}"] = _fold(square[kappa] for kappa in far)
        logs[f"fold_change_with_squared_logs_kappa_1_to_160_{words}"] = _fold(log)
    return judge(
        max(local.values()) < 1.2,
        "true for small differences inside one family of laws only",
        condition=max(wide.values()) > 2,
        **local,
        **wide,
        **logs,
    )


def _fold(values: Iterable[float]) -> float:
    """Returns the largest over the smallest value."""
    numbers = list(values)
    return max(numbers) / min(numbers)


@claim("002-09")
def degradation_against_kappa() -> Finding:
    """Degradation is proportional to −κ_eff, with correlation −0.838."""
    table = published_statistics()
    kappa, damage = table.kappa_weighted, table.degradation
    constant = float(kappa @ damage / (kappa @ kappa))
    slope, intercept = np.polyfit(kappa, damage, 1)
    observed = pearson(kappa, damage)
    return judge(
        constant < 0 and abs(observed.estimate.value + 0.838) < 0.005,
        "proportionality to −κ_eff would make damage negative, and the correlation is a different one",
        best_factor_of_kappa_eff=constant,
        smallest_degradation=damage.min(),
        slope_of_a_line=slope,
        intercept_of_a_line=intercept,
        r=observed.estimate.value,
        p=observed.p,
    )


@claim("002-10")
def deviation_bounds_disparity() -> Finding:
    """Disparity is at most a constant times the standard deviation of κ_eff over languages."""
    laws = [families(20.0)["t"], families(20.0)["gsm 0.001"]]
    patterns = np.array([[0.9, 0.1], [0.1, 0.9]])
    step = clip_distribution(Mixture(laws, [0.5, 0.5]), Grid(4)).step
    shared = np.array([float(mse(law, Grid(4), step)) for law in laws])
    separate = np.array([optimum(law, 4).value for law in laws])
    kappa_eff = [kappa_weighted(pattern, [20.0, 20.0]) for pattern in patterns]
    gap = disparity(patterns @ shared)
    return judge(
        gap <= conjecture_bound(kappa_eff, C=1e6),
        "languages of equal κ_eff differ in damage, so no constant makes it true; the total variation bound holds",
        sd_kappa_eff=float(np.std(kappa_eff)),
        disparity_over_mean_damage_shared_threshold=gap / np.mean(patterns @ shared),
        disparity_over_mean_damage_threshold_per_layer=disparity(patterns @ separate) / np.mean(patterns @ separate),
        total_variation_bound_over_mean_damage=tv_bound(*patterns, errors=shared) / np.mean(patterns @ shared),
    )


@claim("002-11")
def key_results() -> Finding:
    """Outlier activation and degradation correlate at −0.834 with p = 0.0002, a bootstrap interval of [−0.93, −0.65]
    and a permutation p of 0.0001."""
    table = published_statistics()
    x, y = table.outlier_activation, table.degradation
    fisher, bootstrap = outlier_correlation()[0], outlier_correlation()[1].estimate
    short = [pearson(x, y, interval="percentile", resamples=1000, rng=seed).estimate for seed in range(40)]
    noise = max(float(np.std([run.low for run in short])), float(np.std([run.high for run in short])))
    shuffled = permutation_test(x, y, resamples=199_999)
    reproduced = (
        abs(fisher.estimate.value + 0.834) < 0.001
        and round(fisher.p, 4) == 0.0002
        and max(abs(bootstrap.low + 0.93), abs(bootstrap.high + 0.65)) < 2 * noise
        and round(shuffled.p, 4) == 0.0001
    )
    return judge(
        reproduced,
        "arithmetic on a table not measured on one model; the upper limit only within a short bootstrap's noise",
        condition=fisher.estimate.high > -0.65 + 2 * noise,
        r=fisher.estimate.value,
        p=fisher.p,
        p_of_the_same_r_with_13_languages=_p_of(0.834, 13),
        p_of_the_same_r_with_15_languages=_p_of(0.834, 15),
        bootstrap_low=bootstrap.low,
        bootstrap_high=bootstrap.high,
        noise_of_a_limit_at_1000_resamples=noise,
        fisher_low=fisher.estimate.low,
        fisher_high=fisher.estimate.high,
        permutation_p=shuffled.p,
        r_kappa_eff=pearson(table.kappa_weighted, y).estimate.value,
    )


def _p_of(r: float, n: int) -> float:
    """Returns the two-sided p value of a correlation of size r among n pairs."""
    return float(2 * student.sf(r * np.sqrt((n - 2) / (1 - r * r)), n - 2))


@claim("002-12")
def overheads() -> Finding:
    """Calibrating each language costs only forward passes, mixed precision costs nothing, and switching α by language
    costs a lookup."""
    mean_bits, added = mixed_precision()
    scale_gain, own_gain, _ = switching_gains()
    changed = _codes_changed()
    return judge(
        added <= 0 and changed == 0,
        "mixed precision takes more memory, and a lookup of α cannot change codes that are already stored",
        mean_bits_of_mixed_precision=mean_bits,
        share_of_bytes_added=added,
        bits_per_weight_of_a_copy_per_language=4 * LANGUAGES,
        share_of_codes_that_differ_english_hindi=changed,
        gain_of_switching_the_scale=scale_gain,
        gain_of_own_codes=own_gain,
    )


def _codes_changed() -> float:
    """Returns the share of a Gaussian's 4-bit codes that differ between the thresholds of English and Hindi."""
    table = published_statistics()
    w = np.random.default_rng(0).standard_normal(200_000)
    steps = [kappa_alpha(1.0, float(table.kappa_weighted[row])) / 7 for row in table.rows("eng", "hin")]
    codes = [Grid(4).codes(w, step) for step in steps]
    return float(np.mean(codes[0] != codes[1]))


@claim("002-13")
def own_threshold_narrows_gap() -> Finding:
    """Giving each language its own α makes disparity smaller than with one α for all."""
    shared, separate = random_damages(4000)
    before, after = np.ptp(shared, axis=1), np.ptp(separate, axis=1)
    wider = float(np.mean(after > before * (1 + 1e-9)))
    example = int(np.argmax((after - before) / shared.mean(axis=1)))
    computed = judge(
        wider == 0,
        "no language loses, yet the gap widens in about half of the random cases",
        random_cases=len(before),
        share_of_cases_with_a_wider_gap=wider,
        share_of_languages_that_lose=float(np.mean(separate > shared * (1 + 1e-9))),
        largest_widening_gap_before_over_mean_damage=before[example] / shared[example].mean(),
        largest_widening_gap_after_over_mean_damage=after[example] / shared[example].mean(),
    )
    return with_measurements("002-13", computed, "on models")


@claim("002-14")
def width_grows_with_log_kappa() -> Finding:
    """The bit width a language needs grows as the logarithm of its κ_eff."""
    table = published_statistics()
    needed = 4 + 0.5 * np.log2(table.degradation / table.degradation.min())
    correlation = pearson(np.log(table.kappa_weighted), needed)
    logs = np.log(table.kappa_weighted)
    return judge(
        correlation.estimate.value > 0,
        "contradicts the documents' own table, where languages of low κ_eff degrade more and so need more bits",
        r_of_log_kappa_eff_with_bits_needed=correlation.estimate.value,
        p_of_that_r=correlation.p,
        rank_correlation=spearman(table.kappa_weighted, needed).estimate.value,
        bits_between_languages_by_the_claim=4 * (1 - logs.min() / logs.max()),
        bits_between_languages_by_the_table=np.ptp(needed),
    )


@claim("002-15")
def data_raises_kappa() -> Finding:
    """More training data gives a language more activation in the outlier layers and so a higher κ_eff."""
    table = published_statistics()
    activation = table.outlier_activation
    trained = np.isin(table.languages, list(ROOTS_BYTES))
    return from_experiments(
        "002-15",
        "only 6 of the 14 languages were in BLOOM's training data",
        r_activation_and_kappa_eff=pearson(activation, table.kappa_weighted).estimate.value,
        mean_outlier_activation_of_trained_languages=activation[trained].mean(),
        mean_outlier_activation_of_untrained_languages=activation[~trained].mean(),
        untrained_languages_above_the_lowest_trained=np.sum(activation[~trained] > activation[trained].min()),
        power_for_a_correlation_of_one_half=correlation_power(0.5, LANGUAGES),
        languages_for_80_percent_power=sample_size_for_power(0.5, 0.8),
    )
