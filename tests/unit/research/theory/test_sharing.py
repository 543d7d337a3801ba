"""Concavity, certificates and limits of the price of sharing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbits.core.errors import InputError
from fairbits_research.theory.sharing import (
    ball_constant,
    diagonal_bound,
    feedback_costs,
    least_favourable,
    mix_moments,
    sphere_bound,
    sphere_costs,
)

SEEDS = st.integers(0, 10_000)
SIZES = st.integers(1, 6)


def moments(seed, languages, n):
    roots = np.random.default_rng(seed).normal(size=(languages, n, n + 2))
    roots *= np.exp(np.random.default_rng(seed + 1).normal(size=(languages, n, 1)))
    return roots @ roots.transpose(0, 2, 1)


def by_sphere(H):
    return lambda pi: sphere_costs(H, mix_moments(H, pi))


def by_feedback(H):
    return lambda pi: feedback_costs(H, mix_moments(H, pi), order=np.arange(H.shape[1]))


MANY = settings(max_examples=30, deadline=None)
KINDS = st.sampled_from([by_sphere, by_feedback])


@MANY
@given(SEEDS, SIZES, KINDS)
def test_bounds_are_concave_in_the_mixture_and_costs_are_their_tangent(seed, n, kind) -> None:
    H = moments(seed, 3, n)
    costs_of = kind(H)
    p, q = np.random.default_rng(seed).dirichlet(np.ones(3), size=2)
    middle = (p + q) / 2
    value = {name: pi @ costs_of(pi) for name, pi in (("p", p), ("q", q), ("middle", middle))}
    assert value["middle"] >= (value["p"] + value["q"]) / 2 * (1 - 1e-9)
    assert q @ costs_of(p) >= value["q"] * (1 - 1e-9)  # the tangent at p lies above
    assert 2 * p @ costs_of(2 * p) == pytest.approx(2 * value["p"])


@MANY
@given(SEEDS, SIZES, KINDS)
def test_the_certificate_limits_every_mixture(seed, n, kind) -> None:
    H = moments(seed, 4, n)
    costs_of = kind(H)
    certificate = least_favourable(costs_of, 4, tolerance=1e-3, most=500)
    assert certificate.pi.sum() == pytest.approx(1)
    assert (certificate.pi >= 0).all()
    assert certificate.bound <= certificate.reached <= certificate.bound * 1.01
    for pi in np.random.default_rng(seed).dirichlet(np.ones(4), size=20):
        assert pi @ costs_of(pi) <= certificate.reached * (1 + 1e-9)
    alone = [costs_of(pi)[i] for i, pi in enumerate(np.eye(4))]
    assert certificate.reached >= max(alone) * (1 - 1e-9)  # one code for all is no cheaper than the dearest alone


@MANY
@given(SEEDS, SIZES)
def test_any_code_may_cost_less_than_feedback_and_never_more(seed, n) -> None:
    H = moments(seed, 1, n)
    cost = feedback_costs(H, H[0])[0]
    assert sphere_bound(H[0]) <= cost * (1 + 1e-9)
    for order in (np.arange(n), np.arange(n)[::-1]):  # any order costs at least a box of the same volume
        assert feedback_costs(H, H[0], order=order)[0] >= n / 12 * np.linalg.det(H[0]) ** (1 / n) * (1 - 1e-9)


@MANY
@given(SEEDS, SIZES)
def test_feedback_for_a_language_itself_is_the_cheapest(seed, n) -> None:
    H = moments(seed, 2, n)
    order = np.random.default_rng(seed).permutation(n)
    cost = feedback_costs(H, H[0], order=order)[0]
    assert cost <= feedback_costs(H, H[1], order=order)[0] * (1 + 1e-9)
    assert cost <= np.trace(H[0]) / 12 * (1 + 1e-9)  # rounding to nearest


def test_languages_alike_share_without_a_price() -> None:
    H = np.repeat(moments(0, 1, 5), 3, axis=0)
    certificate = least_favourable(by_sphere(H), 3, tolerance=1e-9)
    assert certificate.bound == pytest.approx(sphere_bound(H[0]))
    assert certificate.pi == pytest.approx(np.full(3, 1 / 3))


def test_languages_with_nothing_in_common_pay_the_most() -> None:
    small = 1e-6
    H = np.stack([np.diag([1.0, 1.0, small, small]), np.diag([small, small, 1.0, 1.0])])
    alone = np.array([sphere_bound(moment) for moment in H])
    certificate = least_favourable(by_sphere(H / alone[:, None, None]), 2)
    assert certificate.bound == pytest.approx(0.5 / np.sqrt(small), rel=0.01)


def test_the_ball_approaches_its_limit() -> None:
    assert ball_constant(100_000) / 100_000 == pytest.approx(1 / (2 * np.pi * np.e), rel=1e-3)
    assert ball_constant(2) == pytest.approx(1 / (2 * np.pi))


def test_rows_may_have_steps_of_their_own() -> None:
    H = moments(3, 1, 4)[0]
    W, steps = np.random.default_rng(0).normal(size=(5, 4)), np.array([0.5, 1.0, 2.0, 0.1, 0.3])
    total = sum(diagonal_bound(row[None], H, step=float(step)) for row, step in zip(W, steps, strict=True))
    assert diagonal_bound(W, H, step=steps) == pytest.approx(total)


def test_dead_columns_cost_nothing() -> None:
    assert diagonal_bound([[0.5, 0.3]], [[1.0, 0.0], [0.0, 0.0]]) == pytest.approx(0.25)
    assert diagonal_bound([[0.5]], [[0.0]]) == 0
    assert diagonal_bound([[1.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]]) == 0


def test_second_moments_that_are_not_positive_definite_are_refused() -> None:
    with pytest.raises(InputError, match="not positive definite"):
        sphere_bound([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(InputError, match="NaN or infinite"):
        sphere_costs([[[np.inf]]], [[1.0]])
