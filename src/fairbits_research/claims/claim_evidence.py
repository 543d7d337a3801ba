"""Evidence that several claims share, computed once: optimal thresholds, losses, and layers that share a threshold."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from fairbits.core.array_checks import Floats
from fairbits.kurtosis.checklist import published_statistics
from fairbits.models.scales.clip_formulas import SEED_CONSTANTS, banner_gaussian
from fairbits.models.scales.grid import Grid, GridKind
from fairbits.models.scales.sample_clip import Certified
from fairbits.stats.correlation import Correlation
from fairbits_research.stats.pearson_correlation import pearson
from fairbits_research.theory.clip_distribution import clip_distribution
from fairbits_research.theory.distributions import Distribution, Gaussian, Mixture
from fairbits_research.theory.noise import mse
from fairbits_research.theory.thresholds import LossCurves, families, loss_curves

GAUSSIAN = Gaussian()
LANGUAGES = len(published_statistics().languages)
LISTED = ("eng", "fra", "hin", "ara")
"""The four languages that document 000 lists."""
KAPPA_GLOBAL = 43.0
"""The κ_eff of English and French in the founding table."""


@cache
def optimum(law: Distribution, bits: int, kind: GridKind = "symmetric") -> Certified:
    """Returns the certified optimum of a law."""
    return clip_distribution(law, Grid(bits, kind))


def best_alpha(law: Distribution, bits: int, kind: GridKind = "symmetric") -> float:
    """Returns the certified α*."""
    return float(Grid(bits, kind).alpha(optimum(law, bits, kind).step))


def loss(law: Distribution, bits: int, alpha: float, kind: GridKind = "symmetric") -> float:
    """Returns MSE(α) / MSE* − 1."""
    grid = Grid(bits, kind)
    return float(mse(law, grid, grid.step(alpha))) / optimum(law, bits, kind).value - 1


def mean_loss(ratios: ArrayLike) -> float:
    """Returns the geometric mean of MSE / MSE*, less 1."""
    return float(np.exp(np.mean(np.log(ratios))) - 1)


def gaussian_threshold_numbers(alpha: float) -> dict[str, float]:
    """Returns the best 4-bit thresholds of a unit Gaussian on three grids, and what α costs on two of them."""
    return {
        "alpha_symmetric": best_alpha(GAUSSIAN, 4),
        "alpha_banner": banner_gaussian(1.0, 4),
        "alpha_twos_complement": best_alpha(GAUSSIAN, 4, "twos"),
        "loss_symmetric": loss(GAUSSIAN, 4, alpha),
        "loss_twos_complement": loss(GAUSSIAN, 4, alpha, "twos"),
    }


def family_words(name: str) -> str:
    """Returns the name of a family of laws as part of a number's name."""
    if name.startswith("gsm "):
        return f"outliers_1_in_{round(1 / float(name.removeprefix('gsm ')))}"
    return {"t": "t_law", "ggd": "generalised_gaussian"}.get(name, name)


def optima_at_kappa(kappa: float) -> tuple[list[float], list[float]]:
    """Returns α* and MSE* at 4 bits of every family's unit-variance law of this κ."""
    laws = families(kappa).values()
    return [best_alpha(law, 4) for law in laws], [optimum(law, 4).value for law in laws]


def rises_with_kappa(measure: Callable[[Distribution], float]) -> bool:
    """Returns whether a measure of a law rises with κ from 1 to 200 along the t and the generalised Gaussian laws."""
    kappas = (1.0, 10.0, 50.0, 100.0, 200.0)
    return all(
        measure(families(low)[name]) < measure(families(high)[name])
        for name in ("t", "ggd")
        for low, high in pairwise(kappas)
    )


def foreign_excess(name: str, kappa: float) -> float:
    """Returns MSE − MSE* of a family's law at 4 bits with the threshold of the same family's law of κ = 43."""
    law = families(kappa)[name]
    return loss(law, 4, best_alpha(families(KAPPA_GLOBAL)[name], 4)) * optimum(law, 4).value


@cache
def curves(bits: int) -> LossCurves:
    """Returns the loss curves of all families over κ = 0 … 200."""
    return loss_curves(bits)


def formula_losses(bits: int) -> Floats:
    """Returns MSE / MSE* of α = 2.5 + 0.3·ln(1 + κ) for all families over κ = 0 … 200."""
    return curves(bits).losses(*SEED_CONSTANTS)


@cache
def outlier_correlation() -> tuple[Correlation, Correlation]:
    """Returns the table's correlation of outlier activation with damage, with Fisher's interval and the bootstrap's."""
    table = published_statistics()
    x, y = table.outlier_activation, table.degradation
    return pearson(x, y), pearson(x, y, interval="percentile", resamples=50_000)


def expected_range(n: int) -> float:
    """Returns E[max − min] of n standard normal numbers: ∫ 1 − Φⁿ − (1 − Φ)ⁿ."""
    x = np.linspace(-9, 9, 20_001)
    p = stats.norm.cdf(x)
    return float(np.trapezoid(1 - p**n - (1 - p) ** n, x))


def random_patterns(rng: np.random.Generator, languages: int, blocks: int) -> Floats:
    """Returns random activation patterns, one probability vector per language."""
    return rng.dirichlet(np.ones(blocks), size=languages)


KAPPAS = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)

PAIR = (Gaussian(1.0), Gaussian(3.0))
"""Two layers without any kurtosis, one three times as wide as the other."""
PAIR_PATTERNS = np.array([[0.9, 0.1], [0.1, 0.9]])
"""Two languages, each of which relies mostly on one layer of the pair."""


@dataclass(frozen=True)
class PairDamages:
    """The error of both languages on the pair at 4 bits, by what shares a threshold."""

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
    """Returns damage (case, language) of 4 languages on 6 random layers: one best α for all, and one α each."""
    rng = np.random.default_rng(0)
    _, errors = layer_errors()
    shared, separate = np.empty((2, cases, 4))
    for case in range(cases):
        layers: NDArray[np.int64] = rng.choice(len(errors), 6, replace=False)
        damage = random_patterns(rng, 4, 6) @ errors[layers]
        shared[case], separate[case] = damage[:, damage.mean(axis=0).argmin()], damage.min(axis=1)
    return shared, separate
