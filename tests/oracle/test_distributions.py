"""Tail moments and moments of every distribution against SciPy's own laws, quadrature and sampling."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, stats

from fairbits.models.scales.grid import Grid
from fairbits.models.weight_moments import Moments, kappa_mixture, mixture_moments
from fairbits_research.theory.clip_distribution import clip_distribution
from fairbits_research.theory.distributions import (
    Gaussian,
    GaussianScaleMixture,
    GeneralisedGaussian,
    Laplace,
    Mixture,
    StudentT,
    Uniform,
)
from fairbits_research.theory.effective_kurtosis import kappa_weighted, sample_moments

PEERS = [
    (Gaussian(2.0, 0.3), stats.norm(0.3, 2.0)),
    (Uniform(1.5, -0.4), stats.uniform(-0.4 - 1.5 * np.sqrt(3), 3.0 * np.sqrt(3))),
    (Laplace(1.2, 0.5), stats.laplace(0.5, 1.2 / np.sqrt(2))),
    (StudentT(0.8, -0.2, 9.0), stats.t(9.0, -0.2, 0.8 * np.sqrt(7 / 9))),
    (GeneralisedGaussian(1.1, 0.1, 0.7), stats.gennorm(0.7, 0.1, 1.1 / stats.gennorm(0.7).std())),
]


@pytest.mark.parametrize(("law", "peer"), PEERS, ids=lambda value: type(value).__name__)
def test_moments_equal_scipy(law, peer) -> None:
    mean, variance, skewness, kappa = (float(value) for value in peer.stats("mvsk"))
    assert law.moments.mean == pytest.approx(mean)
    assert law.moments.variance == pytest.approx(variance, rel=1e-9)
    assert law.moments.skewness == pytest.approx(skewness, abs=1e-9)
    assert law.moments.kappa == pytest.approx(kappa, rel=1e-9)


@pytest.mark.parametrize(("law", "peer"), PEERS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("x", [-1.3, 0.0, 0.4, 2.5])
def test_tail_moments_equal_quadrature(law, peer, x) -> None:
    low, high = peer.support()
    low, high = max(low, -400.0), min(high, 400.0)
    middle = float(peer.mean())

    def partial(order, a, b):
        cuts = sorted({a, b, *[p for p in (middle, middle - 20, middle + 20) if a < p < b]})
        return sum(integrate.quad(lambda t: t**order * peer.pdf(t), u, v, limit=400)[0] for u, v in pairwise(cuts))

    upper = law.upper(np.array(x))
    for order in range(3):
        assert float(upper[order]) == pytest.approx(partial(order, x, high) if x < high else 0.0, rel=3e-6, abs=1e-9)
    lower = law.lower(np.array(abs(x)))
    for order in range(3):
        expected = (-1) ** order * partial(order, low, -abs(x)) if -abs(x) > low else 0.0
        assert float(lower[order]) == pytest.approx(expected, rel=3e-6, abs=1e-9)


@pytest.mark.parametrize("kappa", [0.5, 3.0, 40.0, 200.0])
def test_laws_are_built_to_their_kurtosis(kappa) -> None:
    assert StudentT.with_kappa(kappa).kappa == pytest.approx(kappa)
    assert GeneralisedGaussian.with_kappa(kappa).kappa == pytest.approx(kappa, rel=1e-9)
    assert GaussianScaleMixture.with_kappa(kappa, epsilon=1e-3).kappa == pytest.approx(kappa, rel=1e-9)
    assert GaussianScaleMixture.with_kappa(kappa, epsilon=1e-3).second_moment == pytest.approx(1.0)


def test_special_shapes_coincide() -> None:
    z = np.array([0.0, 0.7, 3.0])
    for law, twin in ((GeneralisedGaussian(shape=1.0), Laplace()), (GeneralisedGaussian(shape=2.0), Gaussian())):
        for mine, other in zip(law.upper(z), twin.upper(z), strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-12)
    spread = GaussianScaleMixture(spread=1.0)
    assert spread.kappa == pytest.approx(0.0)


def test_mixture_moments_equal_those_of_the_pooled_sample() -> None:
    rng = np.random.default_rng(1)
    samples = [rng.gamma(2.0, 1.0, 3000), rng.normal(-1.0, 3.0, 5000), rng.exponential(0.5, 700) + 4]
    pooled = sample_moments(np.concatenate(samples))
    weights = [sample.size for sample in samples]
    parts = [sample_moments(sample) for sample in samples]
    merged = mixture_moments(parts, weights)
    assert merged.mean == pytest.approx(pooled.mean)
    assert merged.variance == pytest.approx(pooled.variance)
    assert merged.skewness == pytest.approx(pooled.skewness)
    assert merged.kappa == pytest.approx(pooled.kappa)
    assert kappa_mixture(weights, parts) == pytest.approx(stats.kurtosis(np.concatenate(samples)))
    assert pooled.skewness == pytest.approx(stats.skew(np.concatenate(samples)))


def test_mixture_kurtosis_worked_examples() -> None:
    assert Mixture([Gaussian(1.0), Gaussian(3.0)], [0.5, 0.5]).moments.kappa == pytest.approx(1.92)
    assert kappa_weighted([0.2, 0.8], [150.0, 8.0]) == pytest.approx(36.4)
    for ratio, kappa in ((0.5, 11.8), (1.0, 36.4), (2.0, 191.7)):
        parts = [Moments(1, 0, ratio**2, 0, 150.0), Moments(1, 0, 1.0, 0, 8.0)]
        assert kappa_mixture([0.2, 0.8], parts) == pytest.approx(kappa, abs=0.05)


def test_moments_survive_a_large_offset() -> None:
    x = np.random.default_rng(2).standard_normal(100_000)
    shifted = sample_moments(x + 1e6)
    assert shifted.variance == pytest.approx(x.var(), rel=1e-6)
    assert shifted.kappa == pytest.approx(stats.kurtosis(x), abs=1e-4)
    chunks = [sample_moments(part) for part in np.array_split(x + 1e6, 7)]
    merged = mixture_moments(chunks, [chunk.n for chunk in chunks])
    assert merged.kappa == pytest.approx(shifted.kappa, abs=1e-4)


def test_families_at_their_ends() -> None:
    sharp = GeneralisedGaussian(shape=1e6)
    for x in (0.0, 0.3, 1.0, 1.7, 1.8):
        np.testing.assert_allclose(sharp.beyond(x), Uniform().beyond(x), atol=2e-6)
    for dof in (1e6, 1e12):
        np.testing.assert_allclose(StudentT(dof=dof).beyond([0.5, 3.0]), Gaussian().beyond([0.5, 3.0]), rtol=1e-4)
    for bits in (2, 8):
        heavy = clip_distribution(StudentT(dof=2.05), Grid(bits))
        assert 0 < heavy.value < 1
        assert heavy.gap < 1e-8
    for sigma in (1e-100, 1e100):
        best = clip_distribution(Gaussian(sigma=sigma), Grid(4))
        assert best.step / sigma == pytest.approx(clip_distribution(Gaussian(), Grid(4)).step, rel=1e-6)


@pytest.mark.parametrize("scale", [1e-300, 1e-80, 1e150])
def test_moments_of_any_scale(scale) -> None:
    x = np.random.default_rng(0).standard_normal(96)
    plain, scaled = sample_moments(x), sample_moments(scale * x)
    assert scaled.kappa == pytest.approx(plain.kappa)
    assert scaled.variance == pytest.approx(plain.variance * scale * scale)
    assert sample_moments([0.0, scale], weights=[1.0, 1e-200]).kappa == pytest.approx(1e200)


def test_a_part_without_weight_leaves_no_trace() -> None:
    heavy = StudentT(dof=3.0)
    assert Mixture([Gaussian(), heavy], [1.0, 0.0]).moments.kappa == pytest.approx(0.0)
    assert Mixture([Gaussian(), heavy], [1.0, 1e-300]).moments.kappa == np.inf
