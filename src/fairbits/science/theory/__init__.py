"""The mathematics that only the founding documents need: bounds, thresholds, redundancy, mediation."""

from fairbits.science.theory.bounds import (
    alpha_limit,
    conjecture_bound,
    disparity,
    excess_bounds,
    own_optimum_bound,
    revised_estimate,
    total_variation,
    tv_bound,
    variance_bound,
)
from fairbits.science.theory.thresholds import (
    alpha_by_importance,
    alpha_by_kappa,
    alpha_by_mixture,
    alpha_by_product,
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
    "excess_bounds",
    "own_optimum_bound",
    "revised_estimate",
    "separable",
    "total_variation",
    "tv_bound",
    "variance_bound",
]
