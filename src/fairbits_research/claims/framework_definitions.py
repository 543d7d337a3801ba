"""Document 000, sections 1 to 3: the quantizer and its error, effective kurtosis, what was observed, and redundancy."""

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.kurtosis.checklist import published_statistics
from fairbits.models.scales.clip_formulas import banner_laplace
from fairbits.models.scales.exact_clip import clip_blocks
from fairbits.models.scales.grid import Grid, GridKind
from fairbits.models.weight_moments import Moments, kappa_mixture
from fairbits_research.claims.claim import Finding, claim, from_experiments, judge
from fairbits_research.claims.claim_evidence import (
    GAUSSIAN,
    LISTED,
    best_alpha,
    gaussian_threshold_numbers,
    loss,
    optimum,
    outlier_correlation,
    rises_with_kappa,
)
from fairbits_research.stats.pearson_correlation import pearson
from fairbits_research.theory.distributions import Distribution, Gaussian, GaussianScaleMixture, Laplace, Mixture
from fairbits_research.theory.effective_kurtosis import kappa_weighted, sample_moments
from fairbits_research.theory.noise import noise
from fairbits_research.theory.redundancy_theorem import unique_information
from fairbits_research.theory.thresholds import families

KINDS: tuple[GridKind, ...] = ("symmetric", "twos")
SIGMA_RATIOS = {"half": 0.5, "one": 1.0, "two": 2.0}
"""The width σ of the outlier layers, in units of the others."""


@claim("000-01")
def excess_kurtosis() -> Finding:
    """κ_l is the excess kurtosis of the weights of layer l."""
    kappa = sample_moments(np.random.default_rng(0).standard_normal(1_000_000)).kappa
    return judge(abs(kappa) < 0.02, "a definition; a Gaussian sample has κ ≈ 0", kappa_gaussian_sample=kappa)


@claim("000-02")
def symmetric_quantizer() -> Finding:
    """The B-bit quantizer is Q_α(x) = α·round(clip(x)·n/α)/n with n = 2^(B−1) − 1."""
    levels = len(np.unique(Grid(4).quantize(np.linspace(-2, 2, 10_001), 1 / 7)))
    groups = np.random.default_rng(0).standard_normal((1000, 128))
    symmetric, twos = (clip_blocks(groups, Grid(4, kind), signed=kind == "twos").error.sum() for kind in KINDS)
    return judge(
        levels == 2 * 7 + 1,
        "a definition; it leaves one of the 16 codes of INT4 unused",
        levels_at_4_bits=levels,
        gaussian_error_twos_complement_over_symmetric=optimum(GAUSSIAN, 4, "twos").value / optimum(GAUSSIAN, 4).value,
        same_in_groups_of_128_with_signed_scale=twos / symmetric,
    )


@claim("000-03")
def error_splits() -> Finding:
    """The error is the sum of a clipping part and a rounding part."""
    x = np.linspace(-12, 12, 2_000_001)
    density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    inside = 1 - float(GAUSSIAN.beyond(2.5)[0])
    sums, models = {}, {}
    for bits in (2, 4, 8):
        grid, step = Grid(bits), float(Grid(bits).step(2.5))
        part = noise(GAUSSIAN, grid, step)
        sums[bits] = part.total / float(np.trapezoid((x - grid.quantize(x, step)) ** 2 * density, x))
        models[bits] = part.round / (step**2 / 12 * inside)
    return judge(
        max(abs(ratio - 1) for ratio in sums.values()) < 1e-4,
        "the split is exact; Δ²/12 for its second part is a high-resolution limit",
        condition=max(abs(ratio - 1) for ratio in models.values()) > 0.01,
        **{f"sum_of_parts_over_direct_integral_{bits}_bits": ratio for bits, ratio in sums.items()},
        **{f"rounding_part_over_model_{bits}_bits": ratio for bits, ratio in models.items()},
    )


@claim("000-04")
def clipping_error() -> Finding:
    """The clipping error is E[(|X| − α)²; |X| > α]."""
    grid, step = Grid(4), 2.5 / 7
    x = np.linspace(2.5, 40, 4_000_001)
    density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    direct = 2 * float(np.trapezoid((x - grid.quantize(x, step)) ** 2 * density, x))
    tail = noise(GAUSSIAN, grid, step).clip
    return judge(
        abs(tail / direct - 1) < 1e-6,
        "equals the quantizer's own error beyond α, integrated numerically",
        claimed_error=tail,
        integrated_error_of_the_quantizer=direct,
    )


@claim("000-05")
def rounding_error() -> Finding:
    """The rounding error is Δ²/12 with Δ = 2α/(2^B − 1)."""
    ratios = {}
    for bits in (2, 3, 4, 8):
        exact = noise(GAUSSIAN, Grid(bits), float(Grid(bits).step(2.5))).round
        ratios[f"claimed_over_exact_{bits}_bits"] = (2 * 2.5 / (2**bits - 1)) ** 2 / 12 / exact
    return judge(
        max(abs(ratio - 1) for ratio in ratios.values()) < 0.02,
        "the step belongs to another grid; the error is understated most at few bits",
        **ratios,
        factor_from_the_step_alone_2_bits=(2 / 3) ** 2,
    )


@claim("000-06")
def gaussian_threshold() -> Finding:
    """A Gaussian's best threshold at 4 bits is about 2.5σ."""
    numbers = gaussian_threshold_numbers(2.5)
    near = abs(2.5 / numbers["alpha_symmetric"] - 1) < 0.02
    return judge(
        near and numbers["loss_symmetric"] < 0.001,
        "within 2 % of the optimum of the symmetric grid, where it costs under 0.1 % of error",
        **numbers,
    )


@claim("000-07")
def laplace_threshold() -> Finding:
    """A Laplace law's best threshold at 4 bits is about 2.83σ."""
    law = Laplace()
    cost = loss(law, 4, 2.83)
    return judge(
        cost < 0.01,
        "a constant for 2 bits and another unit; at 4 bits it costs a seventh more error",
        alpha_symmetric=best_alpha(law, 4),
        alpha_banner=banner_laplace(law.laplace_b, 4),
        banner_2_bits_in_b=banner_laplace(1.0, 2),
        loss=cost,
    )


@claim("000-08")
def threshold_rises_with_kappa() -> Finding:
    """Heavier tails (higher κ) mean a larger α*/σ."""
    rare = [best_alpha(GaussianScaleMixture.with_kappa(kappa, epsilon=1e-4), 2) for kappa in (1.0, 200.0)]
    ends = {
        f"alpha_{words}_kappa_{kappa:g}": best_alpha(families(kappa)[name], 4)
        for name, words in (("t", "t_law"), ("ggd", "generalised_gaussian"))
        for kappa in (1.0, 200.0)
    }
    return judge(
        rises_with_kappa(lambda law: best_alpha(law, 4)),
        "rises along t and generalised Gaussian laws, falls for rare outliers at 2 bits",
        condition=rare[1] < rare[0],
        **ends,
        alpha_2_bits_rare_outliers_kappa_1=rare[0],
        alpha_2_bits_rare_outliers_kappa_200=rare[1],
    )


@claim("000-12")
def effective_kurtosis() -> Finding:
    """κ_eff(λ) = Σ ā_l κ_l is the kurtosis that language λ experiences."""
    gaussians = Mixture([Gaussian(1.0), Gaussian(3.0)], [0.5, 0.5]).moments.kappa
    mixed = {
        f"kappa_of_mixture_sigma_ratio_{name}": kappa_mixture(
            [0.2, 0.8], [Moments(1, 0, ratio**2, 0, 150.0), Moments(1, 0, 1.0, 0, 8.0)]
        )
        for name, ratio in SIGMA_RATIOS.items()
    }
    weighted = kappa_weighted([0.2, 0.8], [150.0, 8.0])
    agree = all(abs(value - weighted) < 0.01 * weighted for value in mixed.values())
    return judge(
        agree,
        "equals the mixture's kurtosis only for equal variances",
        kappa_weighted=weighted,
        **mixed,
        kappa_of_mixture_of_two_gaussians=gaussians,
    )


@claim("000-09")
def fivefold_gap() -> Finding:
    """A 2023 study measured a perplexity increase of 0.005 for English and 0.025 for Arabic, five times as much."""
    table = published_statistics()
    english, arabic = (table.degradation[row] for row in table.rows("eng", "ara"))
    return from_experiments(
        "000-09",
        "the ratio is arithmetic on numbers read off the figures of a study that cannot be repeated here",
        about=("Command R", "Command R+", "Aya 23"),
        ratio=arabic / english,
    )


@claim("000-10")
def activation_magnitude() -> Finding:
    """a_l(λ) = E‖h_l‖ measures how much language λ uses layer l."""
    norm = np.random.default_rng(0).lognormal(0, 1, 100_000)
    steady, louder, bursty = np.ones(norm.size), np.full(norm.size, 1.5), 0.8 * norm / norm.mean()

    def share(power: int, layer: Floats) -> float:
        """Returns the share of E‖h‖^power against the steady layer."""
        return float(np.mean(layer**power) / (np.mean(layer**power) + np.mean(steady**power)))

    return judge(
        share(1, louder) > 0.5 and share(2, louder) > 0.5,
        "ranks layers as the energy of their errors does only if their norms vary alike",
        condition=(share(1, bursty) > 0.5) != (share(2, bursty) > 0.5),
        share_of_louder_layer_by_norm=share(1, louder),
        share_of_louder_layer_by_energy=share(2, louder),
        share_of_bursty_layer_by_norm=share(1, bursty),
        share_of_bursty_layer_by_energy=share(2, bursty),
    )


@claim("000-11")
def activation_fraction() -> Finding:
    """ā_l(λ) = a_l(λ)/Σ a_l(λ) is the fraction of activation in layer l."""
    raw = np.random.default_rng(0).lognormal(0, 1, (14, 24))
    loudness = np.geomspace(0.1, 10, 14)[:, None]
    quiet, loud = (a / a.sum(axis=1, keepdims=True) for a in (raw, loudness * raw))
    sums = int(np.isclose(loud.sum(axis=1), 1).sum())
    same = int(np.isclose(loud, quiet).all(axis=1).sum())
    return judge(
        sums == same == len(raw),
        "a definition; every pattern sums to 1 and does not depend on loudness",
        languages=len(raw),
        patterns_that_sum_to_1=sums,
        patterns_unchanged_by_loudness=same,
    )


@claim("000-13")
def higher_kurtosis_needs_wider_clip() -> Finding:
    """A language with higher effective kurtosis needs a larger clip threshold."""

    def alphas(heavy: Distribution) -> list[float]:
        """Returns α* of a language with a tenth and with nine tenths of its activation in the heavy layer."""
        light = families(3.0)["ggd"]
        return [best_alpha(Mixture([heavy, light], [share, 1 - share]), 4) for share in (0.1, 0.9)]

    alike, rare = alphas(families(100.0)["ggd"]), alphas(families(100.0)["gsm 0.0001"])
    return judge(
        alike[1] > alike[0],
        "true of layers whose tails are of one kind and which share a threshold, reversed by a few extreme weights",
        condition=rare[1] < rare[0],
        kappa_eff_low=0.1 * 100 + 0.9 * 3,
        kappa_eff_high=0.9 * 100 + 0.1 * 3,
        alpha_low_kappa_eff_same_kind=alike[0],
        alpha_high_kappa_eff_same_kind=alike[1],
        alpha_low_kappa_eff_rare_outliers=rare[0],
        alpha_high_kappa_eff_rare_outliers=rare[1],
    )


@claim("000-14")
def listed_rows() -> Finding:
    """English and French spend 20 % of their activation in outlier layers and have κ_eff = 43; Hindi and
    Arabic less."""
    table = published_statistics()
    rows = table.rows(*LISTED)
    listed = np.array([[0.205, 43.0], [0.202, 43.0], [0.172, 37.5], [0.177, 38.8]])
    off = np.max(np.abs(np.column_stack([table.outlier_activation[rows], table.kappa_weighted[rows]]) - listed), axis=0)
    return from_experiments(
        "000-14",
        "the listed values are those of the public table, from one sentence per language",
        about=("BLOOM-560M",),
        largest_difference_in_activation=off[0],
        largest_difference_in_kappa=off[1],
        fewest_tokens=table.tokens.min(),
        most_tokens=table.tokens.max(),
    )


@claim("000-15")
def kurtosis_correlation() -> Finding:
    """κ_eff and damage correlate with r = −0.838, p < 0.001."""
    table = published_statistics()
    rows = table.rows(*LISTED)
    four = pearson(table.kappa_weighted[rows], table.degradation[rows])
    all_rows = pearson(table.kappa_weighted, table.degradation)
    matches = any(
        abs(correlation.estimate.value + 0.838) < 0.0005 and correlation.p < 0.001 for correlation in (four, all_rows)
    )
    return judge(
        matches,
        "neither the four rows nor all 14 languages give the stated correlation",
        r_four_rows=four.estimate.value,
        p_four_rows=four.p,
        r_14_languages=all_rows.estimate.value,
        p_14_languages=all_rows.p,
    )


@claim("000-16")
def reinterpretation() -> Finding:
    """The negative correlation calls for a reinterpretation of the effective-kurtosis hypothesis."""
    table = published_statistics()
    r = pearson(table.kappa_weighted, table.degradation).estimate
    return judge(
        r.high < 0,
        "the correlation has the sign opposite to the hypothesis, beyond chance",
        r=r.value,
        interval_low=r.low,
        interval_high=r.high,
    )


@claim("000-17")
def redundancy_story() -> Finding:
    """Well-represented languages survive quantization because outlier layers give them redundant representations."""
    table = published_statistics()
    script = pearson(table.latin, table.degradation).estimate
    return from_experiments(
        "000-17",
        "in the public table it cannot be separated from script, which orders the languages similarly",
        r_latin_script_with_damage=script.value,
        r_latin_script_with_activation=pearson(table.latin, table.outlier_activation).estimate.value,
    )


@claim("000-18")
def redundancy_definition() -> Finding:
    """R(λ) = I(h_outlier; y | h_generic)/I(h_all; y) measures representational redundancy."""
    rng = np.random.default_rng(0)
    above = 0
    for _ in range(50):
        generic_and_target = rng.dirichlet(np.ones(4 * 3)).reshape(4, 3)
        layer = rng.integers(0, 3, size=4)
        joint = np.zeros((3, 4, 3))
        joint[layer, np.arange(4)] = generic_and_target
        above += abs(unique_information(joint)) > 1e-9
    return judge(
        above > 0,
        "0 for every language, because an outlier layer is a function of the layer before it",
        random_networks=50,
        networks_with_R_above_0=above,
    )


@claim("000-19")
def unique_information_is_fragile() -> Finding:
    """High R(λ) makes a language robust to quantization."""
    outlier, generic, target = np.meshgrid([0, 1], [0, 1], [0, 1], indexing="ij")
    only_outlier = np.where(outlier == target, 0.25, 0.0)
    copied = np.where((outlier == target) & (generic == target), 0.5, 0.0)
    unique, redundant = unique_information(only_outlier), unique_information(copied)
    kept_unique = _information_without_outlier(only_outlier)
    kept_redundant = _information_without_outlier(copied)
    return judge(
        unique > redundant and kept_unique > kept_redundant,
        "with the outlier layer destroyed, the language with the higher R loses everything, that with R = 0 nothing",
        R_of_the_language_known_to_outliers_only=unique,
        R_of_the_language_known_twice=redundant,
        bits_left_to_the_first=kept_unique,
        bits_left_to_the_second=kept_redundant,
    )


def _information_without_outlier(joint: np.ndarray) -> float:
    pair = joint.sum(axis=0)
    product = pair.sum(axis=1, keepdims=True) * pair.sum(axis=0, keepdims=True)
    used = pair > 0
    return float(np.sum(pair[used] * np.log2(pair[used] / product[used])))


@claim("000-20")
def activation_proxy() -> Finding:
    """The outlier activation fraction R̂(λ) stands in for redundancy and correlates with damage, r = −0.834."""
    table = published_statistics()
    outlier, _ = outlier_correlation()
    twin = pearson(table.outlier_activation, table.kappa_weighted).estimate.value
    return from_experiments(
        "000-20",
        "the arithmetic holds for the public table, which does not measure redundancy",
        r=outlier.estimate.value,
        p=outlier.p,
        r_with_kappa_eff=twin,
    )
