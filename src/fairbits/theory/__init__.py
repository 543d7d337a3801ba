"""The mathematics of language-aware quantization: NumPy, SciPy and numba, no deep-learning framework.

Grids, distributions and clipping are exported here; `allocation` is a package of its own
(`from fairbits.theory.allocation import allocate_worst`).
"""

from fairbits.theory.clipping.blocks import BlockSteps, SharedSteps, clip_blocks, minimax_blocks
from fairbits.theory.clipping.certified import Certified
from fairbits.theory.clipping.exact import Shared, clip_law, clip_sample, minimax_law, minimax_sample
from fairbits.theory.clipping.formulas import (
    REFITTED_CONSTANTS,
    SEED_CONSTANTS,
    additive_alpha,
    banner_gaussian,
    banner_laplace,
    kappa_alpha,
    noise_constant,
)
from fairbits.theory.distributions import (
    Distribution,
    Gaussian,
    GaussianScaleMixture,
    GeneralisedGaussian,
    Laplace,
    Mixture,
    StudentT,
    Uniform,
)
from fairbits.theory.grid import Grid
from fairbits.theory.moments import Moments, kappa_mixture, kappa_weighted, mixture_moments
from fairbits.theory.noise import Noise, additive_mse, mse, noise, sample_error

__all__ = [
    "REFITTED_CONSTANTS",
    "SEED_CONSTANTS",
    "BlockSteps",
    "Certified",
    "Distribution",
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
    "additive_alpha",
    "additive_mse",
    "banner_gaussian",
    "banner_laplace",
    "clip_blocks",
    "clip_law",
    "clip_sample",
    "kappa_alpha",
    "kappa_mixture",
    "kappa_weighted",
    "minimax_blocks",
    "minimax_law",
    "minimax_sample",
    "mixture_moments",
    "mse",
    "noise",
    "noise_constant",
    "sample_error",
]
