"""Weight distributions with exact moments and exact tail moments."""

from fairbits.theory.distributions.distribution import Distribution, Mixture
from fairbits.theory.distributions.laws import (
    Gaussian,
    GaussianScaleMixture,
    GeneralisedGaussian,
    Laplace,
    StudentT,
    Symmetric,
    Uniform,
)

__all__ = [
    "Distribution",
    "Gaussian",
    "GaussianScaleMixture",
    "GeneralisedGaussian",
    "Laplace",
    "Mixture",
    "StudentT",
    "Symmetric",
    "Uniform",
]
