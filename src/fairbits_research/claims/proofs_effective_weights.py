"""Document 004, theorem 2: weights as a language activates them, and the algorithm that clips them."""

import math

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.kurtosis.checklist import published_statistics
from fairbits.models.moments import Moments
from fairbits.models.scales.clip_formulas import kappa_alpha
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.noise import sample_error
from fairbits.models.scales.sample_clip import clip_sample
from fairbits_research.claims.claim import Finding, claim, judge
from fairbits_research.claims.claim_evidence import GAUSSIAN, loss
from fairbits_research.theory.thresholds import alpha_by_importance, alpha_by_product

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
    languages = len(published_statistics().languages)
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
