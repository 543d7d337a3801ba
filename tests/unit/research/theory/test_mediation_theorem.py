import dataclasses

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits_research.theory.mediation_theorem import SEED_MODEL


def test_the_seeds_numbers():
    assert SEED_MODEL.slope == pytest.approx(0.782)
    assert SEED_MODEL.expected_damage(1.0) == pytest.approx(1.918, abs=5e-4)
    assert SEED_MODEL.effect(1.0) == pytest.approx(-1.918, abs=5e-4)
    assert SEED_MODEL.effect(2.0) == pytest.approx(SEED_MODEL.effect(1.0) / 4)


def test_without_noise_all_orders_and_the_exact_value_agree():
    for t in (0.5, 1.0, 3.0):
        damages = (SEED_MODEL.expected_damage(t, order=2), SEED_MODEL.exact_damage(t))
        assert damages == (SEED_MODEL.expected_damage(t),) * 2
        assert SEED_MODEL.exact_effect(t) == SEED_MODEL.effect(t, order=2) == SEED_MODEL.effect(t)


def test_the_second_order_carries_both_noises():
    model = dataclasses.replace(SEED_MODEL, sd_a=0.1, sd_r=0.1)
    share = (0.85**2 * 0.01 + 0.01) / 0.782**2
    assert model.expected_damage(1.0, order=2) == pytest.approx(1.5 / 0.782 * (1 + share))
    assert model.effect(1.0, order=2) == pytest.approx(-1.5 / 0.782 * (1 + 3 * share))


def test_the_decomposition_restates_the_graph():
    split = SEED_MODEL.decompose(1.0)
    assert (split.direct, split.indirect, split.proportion_mediated) == (0.0, split.total, 1.0)
    assert split.total == SEED_MODEL.effect(1.0)


def test_draws_are_reproducible_and_keep_redundancy_above_its_minimum():
    model = dataclasses.replace(SEED_MODEL, sd_a=0.4, sd_r=0.3, sd_d=0.1, r_min=0.2)
    one, two = (model.simulate(1.0, 5000, rng=np.random.default_rng(3)) for _ in range(2))
    assert one.r.min() >= 0.2
    for field in dataclasses.fields(one):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(two, field.name))
    np.testing.assert_array_equal(one.t, 1.0)


def test_t_may_be_given_per_draw():
    t = np.linspace(0.5, 1.5, 11)
    draws = SEED_MODEL.simulate(t, 11, rng=np.random.default_rng(0))
    np.testing.assert_allclose(draws.d, 1.5 / (0.782 * t))


def test_a_model_whose_redundancy_is_not_positive_is_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="above r_min"):
        SEED_MODEL.effect(-1.0)
    with pytest.raises(InputError, match="of the draws"):
        SEED_MODEL.simulate(-1.0, 4, rng=rng)
    with pytest.raises(InputError, match="of the draws"):
        dataclasses.replace(SEED_MODEL, sd_r=0.1).simulate(-1.0, 4, rng=rng)
