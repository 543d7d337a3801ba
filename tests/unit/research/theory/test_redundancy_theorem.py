import math

import numpy as np
import pytest

from fairbits_research.theory.redundancy_theorem import (
    clipping_constant,
    delta_needed,
    disparity_ratio,
    effective_distortion,
    holds_up_to,
    rate_distortion,
    redundancy,
    redundancy_bound,
    taylor_step_holds,
    taylor_step_limit,
    unique_information,
)


def test_the_bound_is_below_the_real_error_at_the_seeds_numbers():
    assert redundancy_bound(3.8, 4, delta=0.1) == pytest.approx(0.0030, abs=5e-5)
    assert redundancy_bound(1.5, 4, delta=0.1) == pytest.approx(0.0073, abs=5e-5)
    assert redundancy_bound(1.5, 4, delta=0.1) < 0.01154


def test_everything_scales_with_the_variance():
    assert clipping_constant(4, 2.0) == 4 * clipping_constant(4)
    assert rate_distortion(4, 2.0) == 4 * rate_distortion(4)
    assert effective_distortion(1.0, 4, sigma=2.0) == 4 * effective_distortion(1.0, 4)
    assert holds_up_to(4, 4 * 0.01154, sigma=2.0) == pytest.approx(holds_up_to(4, 0.01154))


def test_no_redundancy_leaves_the_distortion():
    assert effective_distortion(0.0, 5) == rate_distortion(5)


def test_the_corollary_changes_with_delta_and_never_reaches_what_was_observed():
    assert disparity_ratio(3.8, 1.5, delta=0.1) == pytest.approx(2.4375)
    assert disparity_ratio(3.8, 1.5, delta=4) == pytest.approx(1.42, abs=0.005)
    assert disparity_ratio(3.8, 1.5, delta=0) == pytest.approx(2.53, abs=0.005)
    assert delta_needed(4.24, 3.8, r_low=1.5) == pytest.approx(-0.79, abs=0.001)


def test_the_taylor_step_needs_three_bits_when_delta_is_bits():
    for bits in range(1, 9):
        assert taylor_step_holds(2.0, bits, delta=bits) == (bits <= 3)
    assert taylor_step_limit(3, delta=0.1) == math.inf
    assert taylor_step_limit(4, delta=4) < 0


def test_redundancy_is_negative_for_noise_and_the_entropy_for_a_function():
    assert redundancy([[0.25, 0.25], [0.25, 0.25]]) == pytest.approx(-1.0)
    function = np.array([[0.2, 0.0, 0.0], [0.0, 0.5, 0.0], [0.3, 0.0, 0.0]])
    assert redundancy(function) == pytest.approx(1.0)


def test_unique_information_can_be_all_of_it_where_layers_are_not_functions():
    parity = np.zeros((2, 2, 2))
    for outlier in range(2):
        for generic in range(2):
            parity[outlier, generic, outlier ^ generic] = 0.25
    assert unique_information(parity) == pytest.approx(1.0)
