"""The constants of exact clipping against an independent table, quadrature, and the published values."""

import csv
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

from fairbits.models.scales.clip_formulas import banner_gaussian, banner_laplace
from fairbits.models.scales.grid import Grid
from fairbits_research.theory.clip_distribution import clip_distribution
from fairbits_research.theory.distributions import (
    Gaussian,
    GaussianScaleMixture,
    GeneralisedGaussian,
    Laplace,
    StudentT,
    Uniform,
)
from fairbits_research.theory.noise import mse
from fairbits_research.theory.threshold_formulas import REFITTED_CONSTANTS
from fairbits_research.theory.thresholds import loss_curves, refit

TABLE = list(csv.DictReader(Path(__file__).with_name("constants.csv").read_text().splitlines()))


def law_of(family: str, kappa: float):
    if family.startswith("gsm"):
        return GaussianScaleMixture.with_kappa(kappa, epsilon=float(family[3:]))
    fixed = {"uniform": Uniform(), "Gauss": Gaussian(), "Laplace": Laplace()}
    make = {"t": StudentT.with_kappa, "ggd": GeneralisedGaussian.with_kappa}
    return fixed[family] if family in fixed else make[family](kappa)


def half_unit(printed: str) -> float:
    """Half of the last printed digit, and a little for a tie in the rounding."""
    return 0.505 * 10.0 ** int(Decimal(printed).as_tuple().exponent)


def test_table_covers_what_it_must() -> None:
    assert len(TABLE) == 324
    assert {row["grid"] for row in TABLE} == {"symmetric", "twos"}
    assert {int(row["bits"]) for row in TABLE} == {2, 3, 4, 5, 6, 8}


@pytest.mark.parametrize("grid_kind", ["symmetric", "twos"])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_constants_reproduce_to_the_printed_digits(grid_kind, bits) -> None:
    grid = Grid(bits, grid_kind)
    for row in TABLE:
        if row["grid"] == grid_kind and int(row["bits"]) == bits:
            optimum = clip_distribution(law_of(row["family"], float(row["kappa"])), grid)
            assert optimum.gap <= 1e-9
            assert abs(float(grid.alpha(optimum.step)) - float(row["alpha"])) <= half_unit(row["alpha"]), row
            assert abs(optimum.value - float(row["mse"])) <= half_unit(row["mse"]), row


def test_midrise_equals_the_table_of_uniform_quantizers_of_max() -> None:
    published = {2: 1.991, 3: 2.344, 4: 2.682, 5: 3.010, 6: 3.330, 8: 3.938}
    for bits, alpha in published.items():
        grid = Grid(bits, "midrise")
        assert float(grid.alpha(clip_distribution(Gaussian(), grid).step)) == pytest.approx(alpha, abs=6e-4)
    assert clip_distribution(Gaussian(), Grid(4, "midrise")).step == pytest.approx(0.3352, abs=5e-5)


def test_banners_published_constants() -> None:
    # the paper prints 2.55 where its own equation gives 2.559
    for bits, gaussian, laplace in ((2, 1.71, 2.83), (3, 2.15, 3.89), (4, 2.55, 5.03)):
        assert banner_gaussian(1.0, bits) == pytest.approx(gaussian, abs=0.0100)
        assert banner_laplace(1.0, bits) == pytest.approx(laplace, abs=0.0100)
    digits = [1.7106, 2.1516, 2.5591, 2.9362, 3.2869, 3.6151, 3.9240]
    assert [banner_gaussian(1.0, bits) for bits in range(2, 9)] == pytest.approx(digits, abs=6e-5)
    digits = [2.8307, 3.8972, 5.0286, 6.2048, 7.4131, 8.6456, 9.8968]
    assert [banner_laplace(1.0, bits) for bits in range(2, 9)] == pytest.approx(digits, abs=6e-5)


@pytest.mark.parametrize("kind", ["symmetric", "twos", "midrise"])
@pytest.mark.parametrize(
    ("law", "density"),
    [
        (Gaussian(1.3), stats.norm(scale=1.3).pdf),
        (Laplace(1.0, 0.2), stats.laplace(loc=0.2, scale=np.sqrt(0.5)).pdf),
        (StudentT(1.0, -0.1, 7.0), stats.t(7.0, loc=-0.1, scale=np.sqrt(5 / 7)).pdf),
        (GeneralisedGaussian.with_kappa(6.0), None),
        (Uniform(0.7), stats.uniform(-0.7 * np.sqrt(3), 2 * 0.7 * np.sqrt(3)).pdf),
    ],
    ids=["gaussian", "laplace shifted", "t shifted", "ggd", "uniform"],
)
def test_mse_equals_quadrature_of_the_true_quantizer(law, density, kind) -> None:
    if density is None:
        scale = 1 / stats.gennorm(law.shape).std()
        density = stats.gennorm(law.shape, scale=scale).pdf
    for bits, step in ((2, 0.9), (4, 0.31)):
        grid = Grid(bits, kind)
        edges = (np.arange(grid.lowest, grid.highest) + 0.5 + grid.offset) * step
        cells = np.concatenate([[-3000.0], edges, [3000.0]])
        total = 0.0
        for code, low, high in zip(range(grid.lowest, grid.highest + 1), cells[:-1], cells[1:], strict=True):
            level = (code + grid.offset) * step
            points = [
                p for p in (law.mean, -0.7 * np.sqrt(3), 0.7 * np.sqrt(3), -8.0, 8.0, -60.0, 60.0) if low < p < high
            ]
            total += integrate.quad(
                lambda x, v=level: (x - v) ** 2 * density(x), low, high, points=points or None, limit=400
            )[0]
        assert float(mse(law, grid, step)) == pytest.approx(total, rel=2e-6)


def test_optimum_is_no_worse_than_a_dense_scan() -> None:
    # two local minima: a search from the bulk's side would return the worse one
    law = GaussianScaleMixture.with_kappa(100.0, epsilon=0.01)
    alphas = np.geomspace(0.1, 40, 40_001)
    values = mse(law, Grid(2), alphas)
    local = (values[1:-1] < values[:-2]) & (values[1:-1] < values[2:])
    assert local.sum() == 2
    optimum = clip_distribution(law, Grid(2))
    assert optimum.value <= values.min() <= optimum.value * (1 + 1e-6)
    assert optimum.step == pytest.approx(9.36, abs=0.05)


@pytest.mark.long
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
def test_refitted_constants_are_the_fit(bits) -> None:
    curves = loss_curves(bits)
    best, stored = (np.log(curves.losses(*pair)).mean() for pair in (refit(curves), REFITTED_CONSTANTS[bits]))
    assert stored <= best + 1e-4
