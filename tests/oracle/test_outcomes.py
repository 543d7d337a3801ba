"""Tango's limits from a likelihood that is maximised by brute force, and McNemar's test of scipy."""

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import binomtest

from fairbits.stats.outcomes import mcnemar_p, score_limit

CASES = [(9, 2, 100), (0, 0, 100), (3, 0, 50), (0, 7, 40), (40, 31, 900), (1, 1, 200)]


def score(lost, gained, items, loss):
    """Returns the score of a loss, with the share of gained items that maximises the likelihood under it."""

    def surprise(q):
        shares = q + loss, q, 1 - 2 * q - loss
        counts = lost, gained, items - lost - gained
        return -sum(count * np.log(share) for count, share in zip(counts, shares, strict=True) if count)

    tiny = 1e-12
    minimum = minimize_scalar(
        surprise, bounds=(max(0, -loss) + tiny, (1 - loss) / 2 - tiny), method="bounded", options={"xatol": 1e-13}
    )
    return (lost - gained - items * loss) / np.sqrt(items * (2 * minimum.x + loss * (1 - loss)))


@pytest.mark.parametrize(("lost", "gained", "items"), CASES)
@pytest.mark.parametrize("z", [1.96, -1.96])
def test_a_limit_is_the_loss_that_the_score_test_just_rejects(lost, gained, items, z) -> None:
    limit = brentq(lambda loss: score(lost, gained, items, loss) - z, -0.9, 0.9, xtol=1e-12)
    assert score_limit(lost, gained, items, z=z) == pytest.approx(limit, abs=2e-6)


def test_the_limits_without_a_change_are_known() -> None:
    z = 1.96
    assert score_limit(0, 0, 100, z=-z) == pytest.approx(z**2 / (100 + z**2))


@pytest.mark.parametrize(("lost", "gained"), [(9, 2), (2, 9), (5, 5), (0, 6), (31, 40)])
def test_mcnemar_is_a_binomial_test(lost, gained) -> None:
    assert mcnemar_p([lost], [gained])[0] == pytest.approx(binomtest(lost, lost + gained).pvalue)
