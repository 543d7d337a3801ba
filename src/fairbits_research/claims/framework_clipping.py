"""Document 000, sections 1 and 2: the quantizer, its error, the optimal threshold and effective kurtosis."""

import numpy as np

from fairbits.models.moments import Moments, kappa_mixture
from fairbits.models.scales.clip_formulas import banner_laplace
from fairbits.models.scales.exact_clip import clip_blocks
from fairbits.models.scales.grid import Grid, GridKind
from fairbits_research.claims.claim import Finding, claim, judge
from fairbits_research.claims.claim_evidence import (
    GAUSSIAN,
    best_alpha,
    gaussian_threshold_numbers,
    loss,
    optimum,
    rises_with_kappa,
)
from fairbits_research.theory.distributions import Gaussian, GaussianScaleMixture, Laplace, Mixture
from fairbits_research.theory.effective_kurtosis import kappa_weighted, sample_moments
from fairbits_research.theory.noise import noise
from fairbits_research.theory.thresholds import families

KINDS: tuple[GridKind, ...] = ("symmetric", "twos")
SIGMA_RATIOS = {"half": 0.5, "one": 1.0, "two": 2.0}
"""The width σ of the outlier layers, in units of the others."""


@claim(
    "000-01",
    statement="κ_l is the excess kurtosis of the weights of layer l.",
    derivation="A definition: E(W − μ)⁴/σ⁴ − 3, so 0 for a Gaussian. Document 004 drops the −3 without saying so.",
)
def excess_kurtosis() -> Finding:
    kappa = sample_moments(np.random.default_rng(0).standard_normal(1_000_000)).kappa
    return judge(abs(kappa) < 0.02, "a definition; a Gaussian sample has κ ≈ 0", kappa_gaussian_sample=kappa)


@claim(
    "000-02",
    statement="The B-bit quantizer is Q_α(x) = α·round(clip(x)·n/α)/n with n = 2^(B−1) − 1.",
    derivation="A definition. It has 2n + 1 = 2^B − 1 levels, one fewer than B bits can hold, and is undefined at one "
    "bit. The two's complement grid uses the spare code. With a scale of free sign, so that the longer side can face "
    "either way, that lowers the error of 4-bit groups of 128 Gaussian weights by a sixth.",
)
def symmetric_quantizer() -> Finding:
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


@claim(
    "000-03",
    statement="The error is the sum of a clipping part and a rounding part.",
    derivation="Splitting the expectation at |x| = α is exact. Calling the second part Δ²/12 is the high-resolution "
    "limit: it needs a density that is smooth over a step, and only counts the share P(|X| ≤ α) of weights that are "
    "not clipped.",
)
def error_splits() -> Finding:
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


@claim(
    "000-04",
    statement="The clipping error is E[(|X| − α)²; |X| > α].",
    derivation="Exact on the symmetric grid, because ±α are levels: every clipped weight lands on ±α.",
)
def clipping_error() -> Finding:
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


@claim(
    "000-05",
    statement="The rounding error is Δ²/12 with Δ = 2α/(2^B − 1).",
    derivation="The documents' own quantizer has the step α/(2^(B−1) − 1) = 2α/(2^B − 2). With the smaller Δ the "
    "formula is too small by the factor ((2^B − 2)/(2^B − 1))², 0.44 at 2 bits. It also counts the 1 % of weights "
    "that are clipped, which makes it too large by as much; at 8 bits the two nearly cancel.",
)
def rounding_error() -> Finding:
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


@claim(
    "000-06",
    statement="A Gaussian's best threshold at 4 bits is about 2.5σ.",
    derivation="Exact minimisation gives 2.474σ on the symmetric grid; Banner's noise model gives 2.559σ; on two's "
    "complement, where α counts eight steps, it is 2.709σ. 2.5σ costs almost nothing on the grid it is meant for.",
)
def gaussian_threshold() -> Finding:
    numbers = gaussian_threshold_numbers(2.5)
    near = abs(2.5 / numbers["alpha_symmetric"] - 1) < 0.02
    return judge(
        near and numbers["loss_symmetric"] < 0.001,
        "within 2 % of the optimum of the symmetric grid, where it costs under 0.1 % of error",
        **numbers,
    )


@claim(
    "000-07",
    statement="A Laplace law's best threshold at 4 bits is about 2.83σ.",
    derivation="2.83 is Banner's constant for 2 bits, in units of the Laplace scale b = σ/√2. At 4 bits his formula "
    "b·W(3·4⁴) gives 5.03b = 3.56σ, and the symmetric grid's optimum is 3.408σ.",
)
def laplace_threshold() -> Finding:
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


@claim(
    "000-08",
    statement="Heavier tails (higher κ) mean a larger α*/σ.",
    derivation="True along the t and generalised Gaussian families. False in general: when κ comes from a few "
    "extreme weights, the optimum clips them and follows the bulk, whose share of σ shrinks.",
)
def threshold_rises_with_kappa() -> Finding:
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


@claim(
    "000-12",
    statement="κ_eff(λ) = Σ ā_l κ_l is the kurtosis that language λ experiences.",
    derivation="The kurtosis of the mixture Σ ā_l P_l weighs layers by σ_l⁴ and adds the spread of variances: κ_mix "
    "= Σ ā(σ_l⁴/V²)κ_l + 3·Var_ā(σ²)/V² for zero means, V = Σ ā σ_l². It equals κ_eff only when all σ_l (and all "
    "means) are equal. Here ā = (0.2, 0.8) and κ = (150, 8); two Gaussians of σ = 1 and 3 have κ_eff = 0 but κ_mix = "
    "1.92.",
)
def effective_kurtosis() -> Finding:
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
