import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbits.core.errors import InputError
from fairbits.models.scales.grid import Grid

KINDS = ["symmetric", "twos", "midrise"]


@pytest.mark.parametrize("bits", range(2, 9))
def test_levels_and_steps(bits) -> None:
    n = 2 ** (bits - 1)
    symmetric, twos, midrise = (Grid(bits, kind) for kind in KINDS)
    assert (symmetric.lowest, symmetric.highest) == (1 - n, n - 1)
    assert (twos.lowest, twos.highest) == (-n, n - 1)
    assert float(symmetric.step(1.0)) == 1 / (n - 1)
    assert float(twos.step(1.0)) == float(midrise.step(1.0)) == 1 / n
    assert float(symmetric.alpha(symmetric.step(3.7))) == pytest.approx(3.7)


def test_int4_uses_minus_eight() -> None:
    assert Grid(4, "twos").codes([-10.0, 10.0], 1.0).tolist() == [-8, 7]
    assert Grid(4, "twos").codes([-10.0, 10.0], -1.0).tolist() == [7, -8]
    assert Grid(4, "twos").quantize([-10.0, 10.0], -1.0).tolist() == [-7.0, 8.0]


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20),
    st.floats(1e-3, 1e3),
    st.integers(2, 8),
    st.sampled_from(KINDS),
)
def test_codes_are_the_nearest_levels(x, step, bits, kind) -> None:
    grid = Grid(bits, kind)
    levels = (np.arange(grid.lowest, grid.highest + 1) + grid.offset) * step
    nearest = np.abs(np.array(x)[:, None] - levels).min(axis=1)
    error = np.abs(np.array(x) - grid.quantize(x, step))
    np.testing.assert_allclose(error, nearest, rtol=1e-9, atol=1e-9 * step)


def test_steps_broadcast_per_row_and_zero_marks_an_empty_block() -> None:
    x = np.array([[1.0, 2.0], [0.0, 0.0]])
    assert Grid(4).quantize(x, [[0.5], [0.0]]).tolist() == [[1.0, 2.0], [0.0, 0.0]]


@pytest.mark.parametrize("bits", [1, 0, -4, 17, 32])
def test_bits_out_of_range_name_the_range(bits) -> None:
    with pytest.raises(InputError, match=f"bits is {bits}; it must be 2 to 16"):
        Grid(bits)


def test_a_negative_step_needs_the_twos_grid() -> None:
    with pytest.raises(InputError, match="only the twos grid takes a negative step"):
        Grid(4).codes([1.0], -1.0)
