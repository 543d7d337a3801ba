"""Evidence that several claims share, computed once."""

from functools import cache

import numpy as np

from fairbits.checks import Floats
from fairbits.theory.clipping.certified import Certified
from fairbits.theory.clipping.exact import clip_law
from fairbits.theory.distributions import Distribution, Gaussian
from fairbits.theory.grid import Grid, GridKind
from fairbits.theory.noise import mse
from fairbits.theory.refit import families

__all__ = ["GAUSSIAN", "best_alpha", "families", "loss", "optimum", "random_patterns"]


@cache
def optimum(law: Distribution, bits: int, kind: GridKind = "symmetric") -> Certified:
    """Returns the certified optimum of a law."""
    return clip_law(law, Grid(bits, kind))


def best_alpha(law: Distribution, bits: int, kind: GridKind = "symmetric") -> float:
    """Returns the certified α*."""
    return float(Grid(bits, kind).alpha(optimum(law, bits, kind).step))


def loss(law: Distribution, bits: int, alpha: float, kind: GridKind = "symmetric") -> float:
    """Returns MSE(α) / MSE* − 1."""
    grid = Grid(bits, kind)
    return float(mse(law, grid, grid.step(alpha))) / optimum(law, bits, kind).value - 1


def random_patterns(rng: np.random.Generator, languages: int, blocks: int) -> Floats:
    """Returns random activation patterns, one probability vector per language."""
    return rng.dirichlet(np.ones(blocks), size=languages)


GAUSSIAN = Gaussian()
