"""Layers that share a threshold, with their exact error: evidence for claims on what languages suffer."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fairbits.checks import Floats
from fairbits.science.claims.evidence import optimum, random_patterns
from fairbits.science.theory.thresholds import families
from fairbits.theory.distributions import Gaussian, Mixture
from fairbits.theory.grid import Grid
from fairbits.theory.noise import mse

KAPPAS = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)

PAIR = (Gaussian(1.0), Gaussian(3.0))
"""Two layers without any kurtosis, one three times as wide as the other."""
PAIR_PATTERNS = np.array([[0.9, 0.1], [0.1, 0.9]])
"""Two languages, each of which leans on one layer of the pair."""


@dataclass(frozen=True)
class PairDamages:
    """The error of both languages on the pair at 4 bits, by who shares a threshold."""

    fixed: Floats
    """One α for all, 2.5 times the mean σ."""
    shared: Floats
    """One α for all, the best for both languages together."""
    per_language: Floats
    """One α per language, shared by its layers."""
    per_layer: Floats
    """One α per layer, the same for every language."""


@cache
def pair_damages() -> PairDamages:
    """Returns the damages of the two languages on the Gaussian pair."""
    grid = Grid(4)
    mixtures = [Mixture(PAIR, pattern) for pattern in PAIR_PATTERNS]
    steps = float(grid.step(2.5 * 2.0)), optimum(Mixture(PAIR, [0.5, 0.5]), 4).step
    fixed, shared = (PAIR_PATTERNS @ np.array([float(mse(law, grid, step)) for law in PAIR]) for step in steps)
    return PairDamages(
        fixed=fixed,
        shared=shared,
        per_language=np.array([optimum(law, 4).value for law in mixtures]),
        per_layer=PAIR_PATTERNS @ np.array([optimum(law, 4).value for law in PAIR]),
    )


def worst_over_best(damage: Floats) -> float:
    """Returns the largest over the smallest damage."""
    return float(damage.max() / damage.min())


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


@cache
def random_damages(cases: int) -> tuple[Floats, Floats]:
    """Returns damage (case, language) of 4 languages on 6 random layers: one best α for all, then each its own."""
    rng = np.random.default_rng(0)
    _, errors = layer_errors()
    shared, own = np.empty((2, cases, 4))
    for case in range(cases):
        layers: NDArray[np.int64] = rng.choice(len(errors), 6, replace=False)
        damage = random_patterns(rng, 4, 6) @ errors[layers]
        shared[case], own[case] = damage[:, damage.mean(axis=0).argmin()], damage.min(axis=1)
    return shared, own
