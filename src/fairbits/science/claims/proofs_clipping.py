"""Document 004, theorem 2: the Gaussian threshold, its dependence on kurtosis, and the disparity of a shared one."""

import math

import numpy as np

from fairbits.checks import Floats
from fairbits.measure.audit.founding_documents import founding_statistics
from fairbits.science.claims.claim import Finding, claim, judge
from fairbits.science.claims.evidence import (
    GAUSSIAN,
    KAPPA_GLOBAL,
    best_alpha,
    family_words,
    foreign_excess,
    gaussian_threshold_numbers,
    loss,
    optima_at_kappa,
    rises_with_kappa,
)
from fairbits.science.theory.bounds import excess_bounds
from fairbits.science.theory.thresholds import alpha_by_importance, alpha_by_product, families
from fairbits.stats import pearson
from fairbits.theory.clipping.exact import clip_sample
from fairbits.theory.clipping.formulas import additive_alpha, banner_laplace, kappa_alpha, noise_constant
from fairbits.theory.distributions import Distribution
from fairbits.theory.grid import Grid
from fairbits.theory.moments import Moments
from fairbits.theory.noise import additive_mse, sample_error


@claim(
    "004-10",
    statement="Banner et al. prove that the best INT4 threshold of Gaussian weights is about 2.83σ.",
    derivation="Their Gaussian constant at 4 bits is 2.56σ, and exact minimisation on the documents' grid gives "
    "2.474σ. 2.83 is their constant for a Laplace law at 2 bits, in units of b = σ/√2.",
)
def gaussian_int4_threshold() -> Finding:
    numbers = gaussian_threshold_numbers(2.83)
    return judge(
        numbers["loss_symmetric"] < 0.01,
        "the constant belongs to another law at another width; it costs a ninth more error on the documents' grid",
        **numbers,
        banner_laplace_2_bits_in_b=banner_laplace(1.0, 2),
    )


@claim(
    "004-11",
    statement="Theorem 2: a language's best threshold is a function of its effective standard deviation and kurtosis.",
    derivation="σ and κ do not determine α*: laws that share both have optima twofold apart. The threshold depends "
    "on the language only where weights that share one α matter differently to it: α*(λ) = argmin Σ_j h_j(λ)(w_j − "
    "Q(w_j))². With a threshold per block and importance equal inside it, the same α is best for every language.",
)
def threshold_from_two_moments() -> Finding:
    alphas, _ = optima_at_kappa(20.0)
    narrow = list(families(20.0).values())[int(np.argmin(alphas))]
    w = np.random.default_rng(0).standard_normal(20_000)
    return judge(
        max(alphas) / min(alphas) < 1.05,
        "laws of equal σ and κ need thresholds that differ twofold",
        least_alpha_at_kappa_20=min(alphas),
        largest_alpha_at_kappa_20=max(alphas),
        loss_of_the_first_law_at_the_other_alpha=loss(narrow, 4, max(alphas)),
        alpha_with_equal_importance=alpha_by_importance(w, np.ones_like(w), grid=Grid(4)),
        alpha_with_importance_growing_with_weight=alpha_by_importance(w, np.exp(np.abs(w)), grid=Grid(4)),
    )


@claim(
    "004-12",
    statement="A threshold tuned to a high-resource language induces a disparity proportional to |κ_λ/κ_HR − 1|.",
    derivation="The excess error is quadratic in the deviation near the optimum, as the last step of the proof "
    "itself says, so the exponent is 2 and not 1. In the table of the founding documents the factor of "
    "proportionality differs fivefold between German and Japanese, and damage falls with κ.",
)
def linear_disparity() -> Finding:
    exponents = {f"exponent_{family_words(name)}": _deviation_exponent(name) for name in ("t", "ggd")}
    table = founding_statistics()
    english, german, japanese = table.rows("eng", "deu", "jpn")
    deviation = np.abs(table.kappa_weighted / table.kappa_weighted[english] - 1)
    disparity = table.degradation - table.degradation[english]
    return judge(
        all(abs(exponent - 1) < 0.2 for exponent in exponents.values()),
        "the exponent is near two, which contradicts proportionality",
        **exponents,
        disparity_over_deviation_german=float(disparity[german] / deviation[german]),
        disparity_over_deviation_japanese=float(disparity[japanese] / deviation[japanese]),
        r_of_kappa_with_damage=pearson(table.kappa_weighted, table.degradation).estimate.value,
    )


def _deviation_exponent(name: str) -> float:
    """Returns d log(excess error)/d log|κ/κ_HR − 1| of a family around κ_HR = 43 at the threshold tuned to κ_HR."""
    small, large = (foreign_excess(name, KAPPA_GLOBAL * (1 + change)) for change in (0.02, 0.04))
    return math.log(large / small) / math.log(2)


@claim(
    "004-16",
    statement="Beyond Gaussian weights the best threshold is σ·g(κ) with an increasing g.",
    derivation="The document cites ACIQ, which treats Gaussian and Laplace laws and has no κ. Along one family (t, "
    "generalised Gaussian) the threshold does rise with κ; across families a law of higher κ can need a lower "
    "threshold, so no single g exists.",
)
def threshold_increases_with_kappa() -> Finding:
    light = best_alpha(families(1.0)["t"], 4)
    heavy = best_alpha(families(100.0)["gsm 0.0001"], 4)
    return judge(
        rises_with_kappa(lambda law: best_alpha(law, 4)),
        "true inside a family; a mixture with rare outliers has a hundred times the κ of a t law and a lower threshold",
        condition=heavy < light,
        alpha_t_law_kappa_1=light,
        alpha_rare_outliers_kappa_100=heavy,
        alpha_t_law_kappa_200=best_alpha(families(200.0)["t"], 4),
        alpha_generalised_gaussian_kappa_200=best_alpha(families(200.0)["ggd"], 4),
    )


@claim(
    "004-17",
    statement="Low-resource languages have higher effective kurtosis, so a threshold tuned to high-resource ones "
    "clips them hard.",
    derivation="The table of document 000 says the opposite: κ_eff is lower for Hindi and Arabic than for English "
    "and French, and its correlation with damage is negative. Document 004 measures no kurtosis itself.",
)
def low_resource_kurtosis() -> Finding:
    table = founding_statistics()
    high = table.kappa_weighted[table.rows("eng", "fra")]
    low = table.kappa_weighted[table.rows("hin", "ara")]
    return judge(
        float(low.min()) > float(high.max()),
        "the order is reversed in the documents' own table",
        kappa_english=float(high[0]),
        kappa_french=float(high[1]),
        kappa_hindi=float(low[0]),
        kappa_arabic=float(low[1]),
        r_of_kappa_with_damage=pearson(table.kappa_weighted, table.degradation).estimate.value,
    )


@claim(
    "004-18",
    statement="The excess error of a foreign threshold is proportional to |Δα|², and this to |Δκ|².",
    derivation="In the additive model of 003-09 the excess lies between c·Δα² and (c + P(|X| > min(α, α*)))·Δα², so "
    "it is quadratic up to a factor that varies with the tail. The second proportionality is local, |Δκ| ≪ κ + 1, "
    "and within one family of laws: the ratio to Δκ² falls 24-fold (generalised Gaussian) or 2400-fold (t) over κ = "
    "1 … 160.",
)
def quadratic_excess() -> Finding:
    c = noise_constant(4, "true")
    laws = [GAUSSIAN, families(43.0)["t"], families(43.0)["ggd"]]
    inside = all(_within_bounds(law, ratio, c) for law in laws for ratio in np.geomspace(0.3, 3, 25))
    drops = {
        family_words(name): _excess_per_square(name, 1.0) / _excess_per_square(name, 160.0) for name in ("t", "ggd")
    }
    best = additive_alpha(GAUSSIAN, c)
    beyond = float(GAUSSIAN.beyond(best)[0])
    return judge(
        inside,
        "the square of Δα holds up to a bounded factor, the square of Δκ only near the optimum",
        condition=max(drops.values()) > 2,
        least_factor_of_squared_alpha_gaussian=c,
        largest_factor_above_the_optimum_gaussian=c + beyond,
        **{f"fold_change_of_the_factor_kappa_1_to_160_{words}": drop for words, drop in drops.items()},
    )


def _within_bounds(law: Distribution, ratio: float, c: float) -> bool:
    """Returns whether the excess of `ratio`·α* in the additive model lies within its bounds."""
    best = additive_alpha(law, c)
    excess = float(additive_mse(law, ratio * best, c) - additive_mse(law, best, c))
    low, high = excess_bounds(law, ratio * best, c=c)
    return low - 1e-12 <= excess <= high + 1e-12


def _excess_per_square(name: str, kappa: float) -> float:
    """Returns (MSE − MSE*)/(κ − 43)² of a family's law at the threshold of κ = 43."""
    return foreign_excess(name, kappa) / (kappa - KAPPA_GLOBAL) ** 2


_GRID = Grid(4)


@claim(
    "004-13",
    statement="The weights that a language uses are w ⊙ a, each weight scaled by how much it is activated.",
    derivation="Scaling before rounding is another quantizer: Q(w ⊙ a) ≠ Q(w) ⊙ a, and a ≡ 0.1 shrinks the threshold "
    "of unchanged weights tenfold. The error that counts for a language is Σ a_j²(w_j − Q(w_j))²: the activation "
    "weighs the error, not the weight. The two agree for masks of zeros and ones.",
)
def effective_weights() -> Finding:
    rng = np.random.default_rng(0)
    w = rng.laplace(size=100_000)
    patterns = {
        "activation_of_one_tenth": np.full(w.size, 0.1),
        "uniform_activation": rng.random(w.size),
        "mask_of_zeros_and_ones": (rng.random(w.size) < 0.3).astype(np.float64),
    }
    ratios = {f"error_over_least_{name}": _product_loss(w, a) + 1 for name, a in patterns.items()}
    return judge(
        max(ratios.values()) < 1.01,
        "the threshold of w ⊙ a raises the error of the language, except for masks of zeros and ones",
        **ratios,
    )


def _product_loss(w: Floats, a: Floats) -> float:
    """Returns the relative excess of Σ a²(w − Q(w))² at the threshold of w ⊙ a."""
    steps = [float(_GRID.step(alpha)) for alpha in _thresholds(w, a)]
    foreign, own = (sample_error(w, _GRID, step, importance=a**2) for step in steps)
    return foreign / own - 1


def _thresholds(w: Floats, a: Floats) -> tuple[float, float]:
    """Returns the threshold of w ⊙ a and the one that is best for importance a²."""
    return alpha_by_product(w, a, grid=_GRID), alpha_by_importance(w, a**2, grid=_GRID)


@claim(
    "004-14",
    statement="Effective weights have mean about μ·E[a], variance Var(wa) and, as κ, their standardised fourth moment.",
    derivation="The mean needs Cov(w, a) = 0. The variance is a name. The fourth moment lacks the −3 with which the "
    "other documents define κ, so a Gaussian has κ = 3 here and 0 there, and must not be put into their formulas: in "
    "2.5 + 0.3·ln(1 + κ) it moves the threshold of a Gaussian by 0.42σ.",
)
def effective_moments() -> Finding:
    rng = np.random.default_rng(0)
    w = 0.5 + rng.standard_normal(500_000)
    chance, tied = rng.random(w.size), 1 / (1 + np.exp(-w))
    raw, excess = float(np.mean((w - w.mean()) ** 4) / np.var(w) ** 2), Moments.of(w).kappa
    means = [float(np.mean(w * a) / (w.mean() * a.mean())) for a in (chance, tied)]
    shift = kappa_alpha(1.0, 3.0) - kappa_alpha(1.0, 0.0)
    return judge(
        abs(means[0] - 1) < 0.02,
        "the mean needs activation and weight to be uncorrelated, and the kurtosis is not the κ of the other documents",
        condition=abs(means[1] - 1) > 0.02,
        mean_over_claimed_uncorrelated=means[0],
        mean_over_claimed_correlated=means[1],
        kappa_of_a_gaussian_sample_here=raw,
        kappa_of_a_gaussian_sample_elsewhere=excess,
        shift_of_the_formula_threshold_in_sigma=shift,
        loss_of_that_shift=loss(GAUSSIAN, 4, kappa_alpha(1.0, 3.0)),
    )


@claim(
    "004-15",
    statement="Sparse activation, as of low-resource languages, makes the effective weights more heavy-tailed.",
    derivation="If a share p of zero-mean weights is active at random, the raw kurtosis E w⁴/(E w²)² grows from K to "
    "K/p: the zeros fatten it. An activation that favours weights of medium size lowers it. Neither bears on the "
    "threshold: zeros have no error, so a random mask leaves the best α where it was, up to sampling noise.",
)
def sparsity_and_tails() -> Finding:
    rng = np.random.default_rng(0)
    w = rng.laplace(size=400_000)
    random_mask = rng.random(w.size) < 0.05
    size = np.abs(w)
    middle = (size > np.quantile(size, 0.25)) & (size < np.quantile(size, 0.75))
    dense, sparse, band = (Moments.of(w * mask).kappa + 3 for mask in (np.ones(w.size), random_mask, middle))
    return judge(
        sparse > dense,
        "true of activation that ignores the size of the weights, false where it favours medium ones",
        condition=band < dense,
        raw_kurtosis_all=dense,
        raw_kurtosis_random_twentieth=sparse,
        K_over_p_random_twentieth=6 / 0.05,
        raw_kurtosis_middle_half=band,
        alpha_all=alpha_by_importance(w, np.ones(w.size), grid=_GRID),
        alpha_random_twentieth=alpha_by_importance(w, random_mask.astype(np.float64), grid=_GRID),
    )


@claim(
    "004-19",
    statement="The LA-ACIQ algorithm, α_λ = argmin MSE(Q_α(w ⊙ a_λ)), gives each language its best threshold.",
    derivation="It minimises the error of weights that are never stored. Two languages with the same pattern at "
    "different magnitudes get different thresholds, although the best one is the same; σ_λ and κ_λ are estimated and "
    "then not used. Correct is argmin Σ_j a_j²(w_j − Q(w_j))², and one stored copy of the weights needs one α, such "
    "as the minimax one.",
)
def clipping_algorithm() -> Finding:
    rng = np.random.default_rng(0)
    w = rng.standard_normal(20_000)
    loud = rng.random(w.size)
    chosen_loud, best_loud = _thresholds(w, loud)
    chosen_quiet, best_quiet = _thresholds(w, loud / 2)
    costs = [_product_loss(w, a) for a in (loud, loud / 2)]
    return judge(
        max(costs) < 0.01,
        "its thresholds follow the magnitude of a language's activation and raise its error",
        algorithm_alpha_loud=chosen_loud,
        algorithm_alpha_quiet=chosen_quiet,
        best_alpha_loud=best_loud,
        best_alpha_quiet=best_quiet,
        loss_loud=costs[0],
        loss_quiet=costs[1],
    )


@claim(
    "004-20",
    statement="Calibrating the thresholds costs O(|Λ|·N) for |Λ| languages and N weights.",
    derivation="An exact search sorts the weights once and takes suffix sums per language: O(N log N + |Λ|·N), plus "
    "a number of evaluations, each O(2^B log N), that grows far slower than N. The claim omits the sort, which for a "
    "million weights takes more comparisons than 14 languages take passes, and the |Λ| copies of the codes that "
    "thresholds per language would need.",
)
def calibration_cost() -> Finding:
    sample = np.random.default_rng(0).standard_normal(100_000)
    few, many = (clip_sample(sample[:size], _GRID).evaluations for size in (1_000, 100_000))
    languages = len(founding_statistics().languages)
    comparisons = math.log2(1e6)
    return judge(
        many < 10 * few,
        "linear passes per language suffice once the weights are sorted",
        condition=comparisons > languages,
        evaluations_for_a_thousand_weights=few,
        evaluations_for_a_hundred_thousand_weights=many,
        comparisons_per_weight_to_sort_a_million=comparisons,
        passes_per_weight_for_the_languages=languages,
    )
