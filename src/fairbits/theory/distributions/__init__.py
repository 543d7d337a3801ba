"""Weight distributions with exact moments and exact tail moments."""

from fairbits.theory.distributions.base import Distribution
from fairbits.theory.distributions.laws import (
    Gaussian,
    GaussianScaleMixture,
    GeneralisedGaussian,
    Laplace,
    StudentT,
    Symmetric,
    Uniform,
)
from fairbits.theory.distributions.samples import Mixture

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
