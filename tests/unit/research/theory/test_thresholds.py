"""The four readings of a language's threshold, and when language-awareness has nothing to choose."""

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.sample_clip import clip_sample
from fairbits_research.theory.clip_distribution import clip_distribution
from fairbits_research.theory.distributions import Gaussian, Laplace, Mixture
from fairbits_research.theory.noise import sample_error
from fairbits_research.theory.threshold_formulas import kappa_alpha
from fairbits_research.theory.thresholds import (
    alpha_by_importance,
    alpha_by_kappa,
    alpha_by_mixture,
    alpha_by_product,
    separable,
)

GRID = Grid(4)


def test_one_threshold_per_layer_is_best_for_every_language_at_once() -> None:
    layers = [Gaussian(1.0), Laplace(0.3), Gaussian(4.0)]
    patterns = np.random.default_rng(0).dirichlet(np.ones(3), size=30)
    separate, shared = separable(layers, patterns, grid=GRID)
    assert (separate < shared).all()
    best = np.array([clip_distribution(layer, GRID).value for layer in layers])
    np.testing.assert_allclose(separate, patterns @ best)


def test_readings_agree_where_they_must() -> None:
    layers = [Gaussian(2.0), Gaussian(2.0)]
    assert alpha_by_mixture(layers, [0.3, 0.7], grid=GRID) == pytest.approx(2 * 2.474, abs=2e-3)
    assert alpha_by_kappa(2.0, [0.3, 0.7], kappa=[0.0, 0.0]) == pytest.approx(kappa_alpha(2.0, 0.0)) == 5.0
    w = np.random.default_rng(1).standard_normal(500)
    plain = float(GRID.alpha(clip_sample(w, GRID).step))
    assert alpha_by_importance(w, np.ones(500), grid=GRID) == pytest.approx(plain)
    assert alpha_by_product(w, np.ones(500), grid=GRID) == pytest.approx(plain)
    mask = (w > 0).astype(float)
    product, right = alpha_by_product(w, mask, grid=GRID), alpha_by_importance(w, mask, grid=GRID)
    errors = [sample_error(w, GRID, alpha / 7, importance=mask) for alpha in (product, right)]
    assert errors[0] == pytest.approx(errors[1])


def test_kappa_below_0_counts_as_0_and_below_minus_2_is_refused() -> None:
    assert [kappa_alpha(2.0, kappa) for kappa in (-2.0, -1.0, -0.5, 0.0)] == [5.0] * 4
    assert kappa_alpha(1.0, np.e - 1) == pytest.approx(2.8)
    with pytest.raises(InputError, match=r"κ is -2\.5; no distribution has an excess kurtosis below -2"):
        kappa_alpha(1.0, -2.5)


def test_scaling_the_activation_moves_only_the_product_reading() -> None:
    w = np.random.default_rng(2).laplace(size=2000)
    a = np.full(2000, 0.1)
    assert alpha_by_importance(w, a**2, grid=GRID) == pytest.approx(alpha_by_importance(w, np.ones(2000), grid=GRID))
    wrong = alpha_by_product(w, a, grid=GRID)
    assert wrong == pytest.approx(0.1 * alpha_by_product(w, np.ones(2000), grid=GRID))
    best = clip_sample(w, GRID, importance=a**2).value
    assert sample_error(w, GRID, wrong / 7, importance=a**2) > 16 * best


def test_mixture_threshold_lies_between_those_of_its_layers() -> None:
    layers = [Gaussian(1.0), Gaussian(1.5)]
    ends = [float(GRID.alpha(clip_distribution(layer, GRID).step)) for layer in layers]
    for share in (0.2, 0.5, 0.8):
        assert ends[0] < alpha_by_mixture(layers, [share, 1 - share], grid=GRID) < ends[1]
    assert Mixture(layers, [1, 0]).moments.kappa == pytest.approx(0.0)
