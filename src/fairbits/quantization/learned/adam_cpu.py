"""One step of `CodeOptimizer` for the offsets of a map on the CPU, in one loop that numba compiles.

In torch it is about 35 passes over memory, and drawing the random numbers alone takes longer than this loop. bfloat16
is read as the upper half of float32. Second moments are kept relative to the least that their row can hold, so that
float32 is enough. Their logarithm comes from the bits of the number and a polynomial, to 0.002 %. Random numbers are a
hash of seed and position.
"""

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from fairbits.core.numba_lock import LAUNCH
from fairbits.quantization.learned.adam_torch import BETAS, CODES_PER_OCTAVE, EPSILON, LARGEST_DIRECTION, Moments, Step
from fairbits.quantization.learned.learnable_codes import MAX_OFFSET

LOG2 = (0.4417403, -0.26602988, 0.14631434, -0.04400469)
"""log₂(1 + t) ≈ t + t (1 − t) (a + b t + c t² + d t³) for t in [0, 1], by least squares."""
LARGEST = np.float32(3e38)
"""Larger gradients count as infinite."""


SIXTEEN, TWENTY_THREE, BIAS, MANTISSA, HALF = map(np.int32, (16, 23, 127, 0x7FFFFF, 0x7FFF))
UNIT, SHARE = np.float32(2.0**-23), np.float32(2.0**-16)
"""Parts of a float32, and what makes numbers below 1 of its mantissa and of 16 random bits.

All in 32 bits: numba widens whole numbers, and wide ones are not computed eight at a time.
"""


@njit(inline="always")
def _hashed(number):  # type: ignore[no-untyped-def]
    """Returns 32 bits that look random, by a well-tested mix of multiplications and shifts."""
    x = np.uint32(number)  # numba widens the results of its operations
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D))
    x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(x ^ (x >> np.uint32(16)))


@njit(cache=True, parallel=True, fastmath={"contract", "nsz", "arcp"})
def _move(  # type: ignore[no-untyped-def]
    offsets,
    gradient,
    first,
    second,
    least,
    powers,
    seed,
    per_octave,
    rate,
    size,
    b1,
    b2,
    largest,
    bound,
    epsilon,
    initial,
    finite,
):
    """Moves all rows; see `move`. Arrays of int16 hold bfloat16."""
    rows, columns = first.shape
    a, b, c, d = np.float32(LOG2[0]), np.float32(LOG2[1]), np.float32(LOG2[2]), np.float32(LOG2[3])
    one = np.float32(1)
    for row in prange(rows):
        root = np.float32(2.0 ** (-0.5 * least[row]))
        floor = np.float32(epsilon * 2.0 ** (-least[row]))
        m, v, o = np.empty(columns, np.float32), np.empty(columns, np.float32), np.empty(columns, np.float32)
        m_bits, v_bits, o_bits = m.view(np.int32), v.view(np.int32), o.view(np.int32)
        noise = np.empty(columns, np.uint32)
        own = _hashed(np.uint32(seed) + np.uint32(row))
        for j in range(columns):
            v_bits[j] = np.int32(np.int32(gradient[row, j]) << SIXTEEN)
            m_bits[j] = np.int32(np.int32(first[row, j]) << SIXTEEN)
            o_bits[j] = np.int32(np.int32(offsets[row, j]) << SIXTEEN)
            noise[j] = _hashed(own + np.uint32(j))
        bad = np.int32(0)
        for j in range(columns):
            good = abs(v[j]) <= LARGEST
            bad = np.int32(bad + np.int32(not good))
            v[j] = v[j] if good else np.float32(0)
        for j in range(columns):
            g = v[j]
            m[j] += (g - m[j]) * (one - b1)
            v[j] = (g * root) * (g * root) * (one - b2) + floor
        if not initial:
            for j in range(columns):
                v[j] += b2 * powers[second[row, j]]
        for j in range(columns):
            t = np.float32(np.int32(v_bits[j] & MANTISSA)) * UNIT
            exponent = np.float32(np.int32(np.int32(v_bits[j] >> TWENTY_THREE) - BIAS))
            log = exponent + t + t * (one - t) * (a + t * (b + t * (c + t * d)))
            code = np.floor(log * per_octave + np.float32(np.int32(noise[j] >> np.uint32(16))) * SHARE)
            second[row, j] = np.uint8(np.int32(min(max(code, np.float32(0)), np.float32(255))))
        for j in range(columns):
            direction = min(max(m[j] * root / (np.sqrt(v[j]) * size), -largest), largest)
            o[j] = min(max(o[j] - rate * direction, -bound), bound)
        for j in range(columns):
            moved = np.int32(o_bits[j] + np.int32(noise[j] & np.uint32(0xFFFF)))
            offsets[row, j] = np.int16(np.int32(moved >> SIXTEEN))
            even = np.int32(np.int32(m_bits[j] >> SIXTEEN) & np.int32(1))
            first[row, j] = np.int16(np.int32(np.int32(m_bits[j] + HALF + even) >> SIXTEEN))
        finite[row] = bad == 0


def move(offsets: Tensor, gradient: Tensor, moments: Moments, step: Step) -> Tensor:
    """Does what `move_in_torch` does, with other random numbers; tensors are contiguous, the gradient in bfloat16."""
    given = offsets, gradient, moments.first
    halves = (each.detach().view(torch.int16).reshape(moments.first.shape).numpy() for each in given)
    powers = np.exp2(np.arange(256) / CODES_PER_OCTAVE).astype(np.float32)  # of 2, by code
    single = (CODES_PER_OCTAVE, step.rate, step.correction, *BETAS, LARGEST_DIRECTION, MAX_OFFSET)
    finite = np.empty(len(moments.first), dtype=np.bool_)
    with LAUNCH:
        _move(  # type: ignore[call-arg]
            *halves,
            moments.second.numpy(),
            moments.least.numpy()[:, 0],
            powers,
            step.seed,
            *map(np.float32, single),
            EPSILON**2,
            step.number == 1,
            finite,
        )
    return torch.tensor(finite.all())
