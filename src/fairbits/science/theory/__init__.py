"""The mathematics that only the founding documents need: bounds, language weights, redundancy, mediation."""

from fairbits.science.theory.bounds import (
    alpha_limit,
    conjecture_bound,
    disparity,
    exact_mse_limit,
    excess_bounds,
    foreign_alpha_bound,
    mse_limit,
    own_optimum_bound,
    revised_estimate,
    sample_limits,
    total_variation,
    tv_bound,
    variance_bound,
)
from fairbits.science.theory.language import (
    alpha_by_importance,
    alpha_by_kappa,
    alpha_by_mixture,
    alpha_by_product,
    foreign_regret,
    separable,
)

__all__ = [
    "alpha_by_importance",
    "alpha_by_kappa",
    "alpha_by_mixture",
    "alpha_by_product",
    "alpha_limit",
    "conjecture_bound",
    "disparity",
    "exact_mse_limit",
    "excess_bounds",
    "foreign_alpha_bound",
    "foreign_regret",
    "mse_limit",
    "own_optimum_bound",
    "revised_estimate",
    "sample_limits",
    "separable",
    "total_variation",
    "tv_bound",
    "variance_bound",
]
