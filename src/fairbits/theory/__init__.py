"""The mathematics of language-aware quantization: NumPy, SciPy and numba, no deep-learning framework.

Grids, distributions, clipping and bounds are exported here; `allocation`, `redundancy`, `mediation` and `refit` are
modules of their own (`from fairbits.theory.allocation import allocate_worst`).
"""

from fairbits.theory.bounds import (
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
from fairbits.theory.clipping.blocks import BlockSteps, SharedSteps, clip_blocks, minimax_blocks
from fairbits.theory.clipping.certified import Certified
from fairbits.theory.clipping.exact import Shared, clip_law, clip_sample, minimax_law, minimax_sample, regret
from fairbits.theory.clipping.formulas import (
    REFITTED_CONSTANTS,
    SEED_CONSTANTS,
    additive_alpha,
    banner_gaussian,
    banner_laplace,
    kappa_alpha,
    noise_constant,
)
from fairbits.theory.clipping.stream import WeightHistogram
from fairbits.theory.distributions import (
    Distribution,
    Empirical,
    Gaussian,
    GaussianScaleMixture,
    GeneralisedGaussian,
    Laplace,
    Mixture,
    StudentT,
    Uniform,
)
from fairbits.theory.grid import Grid
from fairbits.theory.language import (
    alpha_by_importance,
    alpha_by_kappa,
    alpha_by_mixture,
    alpha_by_product,
    foreign_regret,
    separable,
)
from fairbits.theory.moments import Moments, kappa_mixture, kappa_weighted, mixture_moments
from fairbits.theory.noise import Noise, additive_mse, mse, noise, sample_error

__all__ = [
    "REFITTED_CONSTANTS",
    "SEED_CONSTANTS",
    "BlockSteps",
    "Certified",
    "Distribution",
    "Empirical",
    "Gaussian",
    "GaussianScaleMixture",
    "GeneralisedGaussian",
    "Grid",
    "Laplace",
    "Mixture",
    "Moments",
    "Noise",
    "Shared",
    "SharedSteps",
    "StudentT",
    "Uniform",
    "WeightHistogram",
    "additive_alpha",
    "additive_mse",
    "alpha_by_importance",
    "alpha_by_kappa",
    "alpha_by_mixture",
    "alpha_by_product",
    "alpha_limit",
    "banner_gaussian",
    "banner_laplace",
    "clip_blocks",
    "clip_law",
    "clip_sample",
    "conjecture_bound",
    "disparity",
    "exact_mse_limit",
    "excess_bounds",
    "foreign_alpha_bound",
    "foreign_regret",
    "kappa_alpha",
    "kappa_mixture",
    "kappa_weighted",
    "minimax_blocks",
    "minimax_law",
    "minimax_sample",
    "mixture_moments",
    "mse",
    "mse_limit",
    "noise",
    "noise_constant",
    "own_optimum_bound",
    "regret",
    "revised_estimate",
    "sample_error",
    "sample_limits",
    "separable",
    "total_variation",
    "tv_bound",
    "variance_bound",
]
