"""Document 003, sections 5 and 6: the derivations it leaves open, and the starting point attributed to Banner."""

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import lambertw

from fairbits.core.array_checks import Floats
from fairbits.models.scales.clip_formulas import banner_gaussian, banner_laplace
from fairbits.models.scales.grid import Grid
from fairbits_research.claims.claim import Finding, claim, judge
from fairbits_research.claims.claim_evidence import layer_errors, loss, optima_at_kappa, optimum, random_patterns
from fairbits_research.theory.bounds import alpha_limit, disparity, own_optimum_bound, tv_bound
from fairbits_research.theory.clip_distribution import SharedStep, minimax_distribution
from fairbits_research.theory.distributions import Distribution, Gaussian, GaussianScaleMixture, Laplace, Mixture
from fairbits_research.theory.noise import additive_mse, mse
from fairbits_research.theory.threshold_formulas import additive_alpha, kappa_alpha, noise_constant


@claim(
    "003-09",
    statement="The optimal threshold has a closed form in the parameters of the distribution.",
    derivation="In the additive model, clipping noise E(|X| − α)²₊ plus rounding noise cα² (Banner's c is 1/(3·4^B), "
    "the grid's own 1/(12(2^(B−1) − 1)²)), the optimum is the one root of cα = E(|X| − α)₊. For a Laplace law that "
    "is α* = b·W(1/c) with Lambert's W. For a mixture Σ ā_l P_l, Laplace layers included, it is a scalar root "
    "without closed form, to which Newton's iteration α ← E[|X|; |X| > α]/(c + P(|X| > α)) rises from 0 for every "
    "law.",
)
def closed_form() -> Finding:
    law = Laplace(sigma=float(np.sqrt(2)))
    constants = {bits: noise_constant(bits, "banner") for bits in (2, 3, 4, 5, 6, 8)}
    forms = {bits: law.laplace_b * float(lambertw(1 / c).real) for bits, c in constants.items()}
    agree = sum(abs(forms[bits] / additive_alpha(law, c) - 1) < 1e-9 for bits, c in constants.items())
    mixture = Mixture([Laplace(1.0), Laplace(3.0)], [0.5, 0.5])
    root = additive_alpha(mixture, constants[4])
    formula = banner_laplace(Laplace(2.0).laplace_b, 4)
    return judge(
        agree == len(forms) and abs(_mean_excess(mixture, root) / (constants[4] * root) - 1) < 1e-9,
        "closed for a Laplace law; a mixture needs a root, which Newton finds",
        condition=abs(formula / root - 1) > 0.01,
        widths_tried=len(forms),
        widths_at_which_the_form_is_the_root=agree,
        **{f"alpha_in_b_{bits}_bits": form for bits, form in forms.items()},
        alpha_of_a_mixture_of_two_laplace_laws=root,
        laplace_form_at_their_mean_b=formula,
    )


@claim(
    "003-10",
    statement="κ_eff is the statistic on which a language's optimal threshold depends.",
    derivation="α* solves cα = E(|X| − α)₊ (c as in 003-09) and so depends on the whole tail, not on its fourth "
    "moment. At one κ, layers of equal σ (where κ_eff is the true kurtosis) have optima and errors that differ by "
    "more than a factor of three. What κ does give, in the additive model, is the limit α*/σ ≤ (27(κ + 3)/(256c))^¼.",
)
def kappa_is_key() -> Finding:
    numbers, spread = {}, []
    for kappa in (3.0, 20.0, 100.0):
        alphas, errors = optima_at_kappa(kappa)
        spread.append(max(alphas) / min(alphas))
        numbers[f"smallest_alpha_kappa_{kappa:g}"], numbers[f"largest_alpha_kappa_{kappa:g}"] = min(alphas), max(alphas)
        numbers[f"upper_limit_of_alpha_kappa_{kappa:g}"] = alpha_limit(kappa, noise_constant(4))
        numbers[f"largest_over_smallest_error_kappa_{kappa:g}"] = max(errors) / min(errors)
    return judge(
        max(spread) < 1.05,
        "laws of equal σ and equal kurtosis have very different optimal thresholds and errors",
        **numbers,
    )


@claim(
    "003-11",
    statement="The gap between the worst and the best language has an upper bound that can be derived.",
    derivation="With D_λ = Σ p_l(λ)m_l, subtracting the mid-range of m gives |D_λ − D_λ'| ≤ TV(p(λ), p(λ'))·(max_l "
    "m_l − min_l m_l), TV = ½‖p(λ) − p(λ')‖₁, for any quantization that is the same for all languages; two layers "
    "attain it. If each language has its own threshold, the larger of the two ranges of m takes the place of the "
    "range. Neither involves κ_eff.",
)
def disparity_bound() -> Finding:
    rng = np.random.default_rng(0)
    _, errors = layer_errors()
    broken, tightness = 0, []
    for _ in range(2000):
        table = errors[rng.choice(len(errors), int(rng.integers(2, 9)), replace=False)]
        p, q = random_patterns(rng, 2, len(table))
        damage = np.array([p, q]) @ table
        at_p, at_q = damage.argmin(axis=1)
        common = table[:, rng.integers(table.shape[1])]
        bound, gap = tv_bound(p, q, errors=common), disparity([p @ common, q @ common])
        own = own_optimum_bound(p, q, errors_p=table[:, at_p], errors_q=table[:, at_q])
        broken += gap > bound * (1 + 1e-9) or disparity(damage.min(axis=1)) > own * (1 + 1e-9)
        tightness.append(gap / bound)
    return judge(
        broken == 0 and max(tightness) > 1 - 1e-9,
        "the total variation bound follows in one line, holds in every random case and is attained",
        random_cases=len(tightness),
        violations=broken,
        median_gap_over_bound=float(np.median(tightness)),
        largest_gap_over_bound=max(tightness),
    )


@claim(
    "003-12",
    statement="The problem of one threshold for all languages has optimality conditions of the Karush–Kuhn–Tucker "
    "kind.",
    derivation="Where α minimises max_λ c_λ f_λ(α), with f_λ the error of language λ and c_λ = 1, or 1/f_λ* for "
    "regret, there are weights μ ≥ 0 with sum 1, positive only for the worst languages, such that Σ μ_λ c_λ f_λ′(α) "
    "= 0. In one dimension two languages suffice, and α is the optimum of the mixture ∝ Σ μ_λ c_λ P_λ. In the "
    "additive model of 003-09 every f is convex and the condition is also sufficient. On the exact grid it holds on "
    "the piece of the optimum, which branch and bound certifies.",
)
def optimality_conditions() -> Finding:
    rng = np.random.default_rng(0)
    cases = [_random_languages(rng) for _ in range(20)]
    additive = [_minimax_twice(languages, relative=i % 2 == 0) for i, languages in enumerate(cases)]
    exact = [minimax_distribution(languages, Grid(4), relative=True) for languages in cases[:3]]
    better = sum(_scan_beats(languages, found) for languages, found in zip(cases, exact, strict=False))
    agree = sum(abs(mixed / direct - 1) < 1e-5 for direct, mixed, _ in additive)
    stationary = sum(found.stationarity < 1e-4 and found.gap < 1e-8 for found in exact)
    return judge(
        agree == len(additive) and stationary == len(exact) and better == 0,
        "multipliers of at most two languages reproduce every optimum, and no other threshold is better",
        cases_additive_model=len(additive),
        cases_where_search_and_multipliers_agree=agree,
        cases_with_one_active_language=sum(active == 1 for *_, active in additive),
        cases_with_two_active_languages=sum(active == 2 for *_, active in additive),
        cases_exact_grid=len(exact),
        cases_exact_grid_stationary_and_certified=stationary,
        cases_exact_grid_where_a_scan_found_better=better,
    )


def _minimax_twice(languages: list[Distribution], *, relative: bool) -> tuple[float, float, int]:
    """Returns the additive model's minimax α by search and by mixture of its multipliers, and how many are active."""
    c = noise_constant(4)
    own = [additive_alpha(law, c) for law in languages]
    best = np.array([float(additive_mse(law, a, c)) for law, a in zip(languages, own, strict=True)])
    scale = 1 / best if relative else np.ones(len(languages))

    def damages(alpha: float) -> Floats:
        values: Floats = scale * np.array([float(additive_mse(law, alpha, c)) for law in languages])
        return values

    def worst(alpha: float) -> float:
        return float(damages(alpha).max())

    found = minimize_scalar(worst, bounds=(min(own), max(own)), method="bounded", options={"xatol": 1e-9})
    alpha = float(found.x)
    second, first = np.argsort(damages(alpha))[-2:]
    if damages(alpha)[second] < damages(alpha)[first] * (1 - 1e-7):
        return alpha, own[first], 1
    slope = scale * [c * alpha - _mean_excess(law, alpha) for law in languages]
    weights = np.zeros(len(languages))
    weights[[first, second]] = np.abs(slope[[second, first]]) * scale[[first, second]]
    return alpha, additive_alpha(Mixture(languages, weights), c), 2


def _mean_excess(law: Distribution, alpha: float) -> float:
    """Returns E(|X| − α)₊."""
    p, first, _ = (float(tail) for tail in law.beyond(alpha))
    return first - alpha * p


def _scan_beats(languages: list[Distribution], found: SharedStep) -> bool:
    """Returns whether a step of a fine scan is better for the worst language, on the exact grid."""
    steps = found.step * np.geomspace(0.2, 5.0, 400)
    worst = np.max([mse(law, Grid(4), steps) / optimum(law, 4).value for law in languages], axis=0)
    return bool(worst.min() < found.worst * (1 - 1e-7))


def _random_languages(rng: np.random.Generator) -> list[Distribution]:
    """Returns four languages as mixtures of a Gaussian, a Laplace and an outlier layer of random σ."""
    sigma = rng.lognormal(0.0, 0.7, 3)
    outliers = GaussianScaleMixture.with_kappa(20.0, epsilon=0.01, sigma=sigma[2])
    layers = [Gaussian(sigma[0]), Laplace(sigma[1]), outliers]
    return [Mixture(layers, pattern) for pattern in random_patterns(rng, 4, 3)]


@claim(
    "003-13",
    statement="Banner et al. (2019) prove that a Gaussian's optimal INT4 threshold is 2.5 + 0.3·ln(1 + max(0, κ)) in "
    "units of σ.",
    derivation="Banner, Nahshan and Soudry (NeurIPS 2019, arXiv 1810.05723) give thresholds for Gaussian and Laplace "
    "laws per bit width and no κ: 1.71σ, 2.15σ, 2.56σ for a Gaussian and b·W(3·4^B) for a Laplace law at 2, 3, 4 "
    "bits. A theorem on Gaussians cannot contain κ, which is 0 there; on the Laplace law, κ = 3, the formula "
    "contradicts the paper it is attributed to.",
)
def attributed_theorem() -> Finding:
    law = Laplace()
    formula, paper = kappa_alpha(1.0, law.kappa), banner_laplace(law.laplace_b, 4)
    return judge(
        abs(formula / paper - 1) < 0.05,
        "not Banner's result: the paper has no κ, and its Laplace constant contradicts the formula",
        formula_gaussian=kappa_alpha(1.0, 0.0),
        **{f"banner_gaussian_{bits}_bits": banner_gaussian(1.0, bits) for bits in (2, 3, 4)},
        formula_laplace=formula,
        banner_laplace_in_sigma=paper,
        loss_of_the_formula_laplace=loss(law, 4, formula),
    )
