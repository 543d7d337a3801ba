from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from scipy import stats

from fairbits.core.errors import InputError
from fairbits_research.outliers import kurtosis_search as search
from fairbits_research.outliers.couplings import largest_exponent
from fairbits_research.outliers.kurtosis_search import find_staircase, kurtosis, power_sums


def columns(W: np.ndarray):
    """Returns what the search asks for when columns grow and nothing shrinks."""
    by_column = power_sums(torch.from_numpy(W))[1]
    return by_column.sum(0), lambda order, _: (by_column[list(order)], np.zeros((len(order), 4)))


def test_power_sums_do_not_depend_on_the_chunks(monkeypatch):
    W = torch.randn(37, 11, generator=torch.Generator().manual_seed(0), dtype=torch.bfloat16)
    monkeypatch.setattr(search, "WIDENED_WEIGHTS", 50)
    rows, by_column = power_sums(W)
    exact = W.double().numpy()[..., None] ** np.arange(1, 5)
    np.testing.assert_allclose(rows, exact.sum(1), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(by_column, exact.sum(0), rtol=1e-12, atol=1e-12)


def test_kurtosis_agrees_with_scipy():
    w = np.random.default_rng(0).gamma(2.0, size=1000) + 3.0
    assert kurtosis(w.size, (w[:, None] ** np.arange(1, 5)).sum(0)) == pytest.approx(stats.kurtosis(w), rel=1e-9)


@pytest.mark.parametrize("target", [1.0, 4.0, 12.0, 40.0])
def test_the_staircase_gives_the_kurtosis_it_promises(target):
    W = np.random.default_rng(0).standard_normal((50, 80))
    sums, slices = columns(W)
    order = tuple(range(7, 50))
    staircase = find_staircase(target, W.size, sums, orders=[order], slices=slices)
    scaled = W.copy()
    scaled[:, list(order[: len(staircase.exponents)])] *= 2.0 ** np.array(staircase.exponents)
    assert stats.kurtosis(scaled.ravel()) == pytest.approx(staircase.kappa, rel=1e-9)
    assert staircase.kappa == pytest.approx(target, rel=0.02)


@pytest.mark.parametrize("target", [9.0, 30.0])
def test_no_staircase_with_fewer_channels_is_as_near(target):
    W = np.random.default_rng(1).standard_normal((40, 60))
    sums, slices = columns(W)
    staircase = find_staircase(target, W.size, sums, orders=[tuple(range(20))], slices=slices)
    assert abs(staircase.kappa / target - 1) <= search.AIM
    for size in range(1, len(staircase.exponents)):
        for exponents in combinations_with_replacement(range(search.LARGEST_EXPONENT, 0, -1), size):
            if exponents[0] - exponents[-1] <= 2:
                scaled = W.copy()
                scaled[:, :size] *= 2.0 ** np.array(exponents)
                assert abs(stats.kurtosis(scaled.ravel()) / target - 1) > search.AIM


def test_the_message_names_what_is_reachable():
    W = np.random.default_rng(0).standard_normal((50, 80))
    sums, slices = columns(W)
    with pytest.raises(InputError, match=r"2[0-9]{2}\S* is the largest within reach") as caught:
        find_staircase(1e4, W.size, sums, orders=[tuple(range(20))], slices=slices)
    largest = float(str(caught.value).split("; ")[1].split()[0])
    staircase = find_staircase(largest, W.size, sums, orders=[tuple(range(20))], slices=slices)
    assert staircase.kappa == pytest.approx(largest, rel=0.01)


@pytest.mark.parametrize(
    ("grows", "shrinks", "loss", "expected"),
    [
        ([1.0], [1.0], 0.0, 8),
        ([1.0], [2.0**-20], 0.0, 4),  # 2⁻²⁴ is the smallest number of float16
        ([65504.0], [1.0], 0.0, 0),
        ([1.0], [1.0, 2.0**-24], 0.0, 0),
        ([1.0], [1.0, 2.0**-24], 1e-5, 8),
    ],
)
def test_the_largest_exponent_keeps_float16_exact(grows, shrinks, loss, expected):
    half = [torch.tensor(values, dtype=torch.float16) for values in (grows, shrinks)]
    assert largest_exponent(half[:1], half[1:], loss=loss) == expected
