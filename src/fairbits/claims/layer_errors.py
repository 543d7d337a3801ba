"""Layers of many shapes and widths with their exact error at many thresholds: evidence for claims on languages."""

from functools import cache

import numpy as np

from fairbits.checks import Floats
from fairbits.claims.evidence import families
from fairbits.theory.grid import Grid
from fairbits.theory.noise import mse

KAPPAS = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)


@cache
def layer_errors(bits: int = 4) -> tuple[Floats, Floats]:
    """Returns thresholds α and the exact error (layer, α) of layers of every family; σ is lognormal."""
    rng = np.random.default_rng(0)
    grid = Grid(bits)
    alphas = np.geomspace(0.1, 60.0, 600)
    laws = [law for kappa in KAPPAS for law in families(kappa).values()]
    sigmas = rng.lognormal(0.0, 0.5, len(laws))
    errors = [sigma**2 * mse(law, grid, grid.step(alphas / sigma)) for law, sigma in zip(laws, sigmas, strict=True)]
    return alphas, np.array(errors)
