"""Document 000, sections 5 to 8: the disparity conjecture, the advice and the references."""

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.kurtosis.checklist import published_statistics
from fairbits.models.moments import kappa_weighted
from fairbits.models.scales.clip_formulas import banner_gaussian, banner_laplace, kappa_alpha
from fairbits.models.scales.distributions import Gaussian, Laplace
from fairbits_research.claims.claim import Finding, claim, from_experiments, judge
from fairbits_research.claims.claim_evidence import (
    KAPPA_GLOBAL,
    LANGUAGES,
    LISTED,
    PAIR_PATTERNS,
    best_alpha,
    expected_range,
    loss,
    optima_at_kappa,
    pair_damages,
    random_damages,
)
from fairbits_research.theory.bounds import conjecture_bound, disparity
from fairbits_research.theory.thresholds import families


@claim(
    "000-26",
    statement="Disparity is the largest minus the smallest damage over languages.",
    derivation="A definition, and 0.020 in the public table as stated. Noise alone makes it positive: 14 equal "
    "languages, measured with equal independent noise, range over 3.41 standard errors on average.",
)
def disparity_definition() -> Finding:
    found = disparity(published_statistics().degradation)
    return judge(
        abs(found - 0.020) < 0.0005,
        "a definition, with the stated value in the table; noise biases it upward",
        disparity_of_the_table=found,
        range_of_14_equal_languages_in_standard_errors=expected_range(LANGUAGES),
    )


@claim(
    "000-27",
    statement="Conjecture 1: with a threshold per language, disparity is at most C times the standard deviation of "
    "κ_eff over languages.",
    derivation="Two Gaussian layers, one three times as wide, have κ_eff = 0 for every language, so the bound is 0 for "
    "any C, yet two languages that rely on different layers suffer different errors, both with a threshold per "
    "language and with one for all. 002-10 has a second counterexample, with layers of equal width. A valid bound for "
    "one quantization of the weights is TV(ā, ā′)·(max_l m_l − min_l m_l): the total variation distance of the "
    "activation patterns times the range of the layers' errors.",
)
def conjecture_one() -> Finding:
    damages = pair_damages()
    bound = conjecture_bound([kappa_weighted(pattern, [0.0, 0.0]) for pattern in PAIR_PATTERNS], 1e6)
    return judge(
        disparity(damages.per_language) <= bound,
        "two languages without any kurtosis, for which the bound is 0, differ in damage",
        bound_with_C_of_a_million=bound,
        disparity_over_mean_damage_threshold_per_language=_relative(damages.per_language),
        disparity_over_mean_damage_one_threshold=_relative(damages.shared),
    )


def _relative(damage: Floats) -> float:
    return disparity(damage) / float(np.mean(damage))


@claim(
    "000-28",
    statement="With Var[κ_eff] = 5.1 and C = 0.009 the conjecture predicts the observed disparity of 0.020.",
    derivation="C was chosen so that the two agree, and one constant always fits one number. Nor is the variance "
    "5.1: the four listed languages have a larger one, all 14 a smaller one, and each would need a different C.",
)
def conjecture_check() -> Finding:
    table = published_statistics()
    four, every = table.kappa_weighted[table.rows(*LISTED)], table.kappa_weighted
    variances = {
        "variance_listed_languages": float(np.var(four)),
        "variance_listed_languages_unbiased": float(np.var(four, ddof=1)),
        "variance_14_languages": float(np.var(every)),
        "variance_14_languages_unbiased": float(np.var(every, ddof=1)),
    }
    return judge(
        any(abs(value - 5.1) < 0.05 for value in variances.values()),
        "circular, and no version of the table has the stated variance",
        **variances,
        C_that_fits_listed_languages=disparity(table.degradation) / float(np.std(four)),
        C_that_fits_14_languages=disparity(table.degradation) / float(np.std(every)),
    )


@claim(
    "000-29",
    statement="Penalising uneven layer use during training lowers the disparity after quantization.",
    derivation="A proposal for an experiment; nothing in the documents tests it.",
)
def uniform_training() -> Finding:
    return from_experiments(
        "000-29",
        "nothing in the documents tests it",
    )


@claim(
    "000-30",
    statement="Per-language thresholds lower the disparity.",
    derivation="They lower every language's error, but not equally: where the better-off language gains more, max − "
    "min grows. The random layers and languages are those of 002-13; how often the gap grows depends on how they are "
    "drawn.",
)
def own_thresholds_lower_disparity() -> Finding:
    shared, own = random_damages(4000)
    before, after = np.ptp(shared, axis=1), np.ptp(own, axis=1)
    grows = float(np.mean(after > before * (1 + 1e-9)))
    return judge(
        grows == 0,
        "no language loses, yet the gap grows in about half of the random cases",
        random_cases=len(before),
        share_of_cases_with_a_wider_gap=grows,
        share_of_languages_that_lose=float(np.mean(own > shared * (1 + 1e-9))),
    )


@claim(
    "000-31",
    statement="A language's risk can be assessed from κ_eff before quantizing.",
    derivation="At one κ the least possible error differs severalfold between laws. And the threshold shift between "
    "the documents' extreme languages (κ_eff 43 and 37.5) changes the error by a quarter of a percent at most, "
    "nothing like a fivefold damage.",
)
def risk_by_kurtosis() -> Finding:
    _, errors = optima_at_kappa(20.0)
    excess = {name: loss(families(37.5)[name], 4, best_alpha(families(KAPPA_GLOBAL)[name], 4)) for name in ("t", "ggd")}
    spread = max(errors) / min(errors)
    return judge(
        max(excess.values()) > 0.5 or spread < 1.05,
        "equal κ does not determine the error, and the threshold explains no visible part of a fivefold gap",
        largest_over_least_error_at_kappa_20=spread,
        threshold_shift_in_sigma=kappa_alpha(1.0, KAPPA_GLOBAL) - kappa_alpha(1.0, 37.5),
        loss_at_the_other_threshold_t_law=excess["t"],
        loss_at_the_other_threshold_generalised_gaussian=excess["ggd"],
    )


@claim(
    "000-32",
    statement="In short, α* = f(κ) for standard and α*(λ) = f(κ_eff) for language-aware clipping.",
    derivation="σ is missing: thresholds scale with the weights, α*(t·w) = t·α*(w). With σ restored, 000-21 and "
    "000-22 apply.",
)
def summary_formula() -> Finding:
    one, two = best_alpha(Gaussian(1.0), 4), best_alpha(Gaussian(2.0), 4)
    return judge(
        abs(two - one) < 1e-3,
        "of two laws with the same κ, the one twice as wide needs twice the threshold",
        alpha_sigma_1=one,
        alpha_sigma_2=two,
    )


CITATIONS = {
    "Banner 2019": True,
    "Chmiel 2025": False,  # the first author is Fishman
    "Marchisio 2023": False,  # of 2024, and the title given is MiniCPM-V's
    "Soudry 2018": False,  # on gradient descent
}
"""The references of document 000, and whether each is correct and relevant."""

_LAPLACE_SIGMA = banner_laplace(Laplace().laplace_b, 4)

ATTRIBUTED = {
    "Gaussian 2.5": (2.5, banner_gaussian(1.0, 4)),
    "Gaussian 2.83": (2.83, banner_gaussian(1.0, 4)),
    "Gaussian 3": (3.0, banner_gaussian(1.0, 4)),
    "Laplace 2.83": (2.83, _LAPLACE_SIGMA),
    "Laplace 2.5 + 0.3 ln 4": (kappa_alpha(1.0, 3.0), _LAPLACE_SIGMA),
}
"""The 4-bit thresholds in σ that the documents take from Banner et al., and those of the paper's noise model."""


@claim(
    "000-33",
    statement="The four references are right and support the framework.",
    derivation="Banner, Nahshan, Soudry (NeurIPS 2019, arXiv 1810.05723) covers Gaussian and Laplace laws only and, "
    "of the five 4-bit thresholds that the documents take from it (2.5σ, 2.83σ and 3σ for a Gaussian, 2.83σ and "
    "2.92σ for a Laplace law), gives one, to 2 %. The FP8 paper's first author is Fishman (ICLR 2025). The disparity "
    "study is Marchisio et al. in the Findings of EMNLP 2024 (arXiv 2407.03211); the title given belongs to "
    "MiniCPM-V (arXiv 2408.01800). The fourth exists and is about gradient descent.",
)
def references() -> Finding:
    right = sum(CITATIONS.values())
    supported = sum(abs(claimed / paper - 1) < 0.05 for claimed, paper in ATTRIBUTED.values())
    return judge(
        right == len(CITATIONS) and supported == len(ATTRIBUTED),
        "one of the four is right and relevant, and most thresholds taken from it are not in it",
        references=len(CITATIONS),
        right_and_relevant=right,
        thresholds_taken_from_banner=len(ATTRIBUTED),
        thresholds_within_5_percent_of_the_paper=supported,
    )
