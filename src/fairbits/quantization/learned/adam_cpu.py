"""Adam for the offsets of one layer in six bytes per weight: the moments of its gradient, and a step on the CPU.

A step is one loop that numba compiles. In torch it is about 35 passes over memory and takes 3.5 times as long. bfloat16
is read as the upper half of float32. Second moments are kept relative to the least that their row can hold, so that
float32 is enough. Their logarithm comes from the bits of the number and a polynomial, to 0.002 %. Random numbers are a
hash of seed and position. `adam_gpu` takes the same step in one launch on a GPU.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from fairbits.core.numba_lock import LAUNCH
from fairbits.quantization.learned.learnable_codes import MAX_OFFSET

BETAS = (0.9, 0.99)
EPSILON = 1e-15
"""What is added to the size of a gradient. Adam's usual 10⁻⁸ is near the gradient of one weight and would slow it."""
LARGEST_DIRECTION = (1 - BETAS[0]) / (1 - BETAS[1]) ** 0.5
"""The most that a weight moves in a step, in units of the rate: what Adam's moments allow after one large gradient."""
CODES_PER_OCTAVE = 4
"""Resolution of second moments: 256 codes reach over 64 octaves, so that gradients within a row may differ widely."""
POWERS = np.exp2(np.arange(256) / CODES_PER_OCTAVE).astype(np.float32)
"""Second moments by their code, relative to the least of their row."""
HEADROOM = 8  # octaves by which second moments may grow beyond the largest of their row in the first step
LOG2 = (0.4417403, -0.26602988, 0.14631434, -0.04400469)
"""log₂(1 + t) ≈ t + t (1 − t) (a + b t + c t² + d t³) for t in [0, 1], by least squares."""
LARGEST = np.float32(3e38)  # larger gradients count as infinite


SIXTEEN, TWENTY_THREE, BIAS, MANTISSA, HALF = map(np.int32, (16, 23, 127, 0x7FFFFF, 0x7FFF))
UNIT, SHARE = np.float32(2.0**-23), np.float32(2.0**-16)
"""Parts of a float32, and what makes numbers below 1 of its mantissa and of 16 random bits.

All in 32 bits: numba widens whole numbers, and wide ones are not computed eight at a time.
"""


@dataclass(frozen=True)
class AdamStep:
    """A step: its number, counted from 1, its learning rate, and the seed of its random numbers for one layer."""

    number: int
    rate: float
    seed: int

    @property
    def correction(self) -> float:
        """The factor of √v that removes the bias of moments that began at 0, as in Adam."""
        b1, b2 = BETAS
        return float((1 - b1**self.number) / (1 - b2**self.number) ** 0.5)


@dataclass(frozen=True, eq=False)
class AdamMoments:
    """The moments of the gradient of a layer's offsets (out, in), in three bytes per weight."""

    first: Tensor  # in bfloat16
    second: Tensor  # the number of quarters of an octave by which it exceeds the least that its row can hold, in uint8
    least: Tensor  # log₂ of the least of every row

    @classmethod
    def zeros(cls, offsets: Tensor) -> "AdamMoments":
        like = offsets.detach().reshape(len(offsets), -1)
        first, second = (torch.zeros_like(like, dtype=dtype) for dtype in (torch.bfloat16, torch.uint8))
        return cls(first, second, like.new_zeros(len(like), 1, dtype=torch.float32))

    def set_range(self, gradient: Tensor) -> None:
        """Chooses the range of second moments of every row by the gradient of the first step."""
        octaves = 256 / CODES_PER_OCTAVE - HEADROOM
        largest = gradient.reshape(self.first.shape).abs().nan_to_num_(0.0, 0.0).amax(1, keepdim=True).float()
        self.least.copy_(largest.square_().mul_(1 - BETAS[1]).add_(EPSILON**2).log2_().sub_(octaves))


@njit(inline="always")
def _hashed(number):  # type: ignore[no-untyped-def]
    x = np.uint32(number)  # numba widens the results of its operations
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D))
    x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(x ^ (x >> np.uint32(16)))


@njit(cache=True, parallel=True, fastmath={"contract", "nsz", "arcp"})
def _move(offsets, gradient, first, second, least, seed, rate, size, initial, finite):  # type: ignore[no-untyped-def]
    """Moves all rows; see `move`. Arrays of int16 hold bfloat16."""
    rows, columns = first.shape
    a, b, c, d = np.float32(LOG2[0]), np.float32(LOG2[1]), np.float32(LOG2[2]), np.float32(LOG2[3])
    one, b1, b2, per_octave = np.float32(1), np.float32(BETAS[0]), np.float32(BETAS[1]), np.float32(CODES_PER_OCTAVE)
    largest, bound = np.float32(LARGEST_DIRECTION), np.float32(MAX_OFFSET)
    for row in prange(rows):
        root = np.float32(2.0 ** (-0.5 * least[row]))
        floor = np.float32(EPSILON**2 * 2.0 ** (-least[row]))
        m, v, o = np.empty(columns, np.float32), np.empty(columns, np.float32), np.empty(columns, np.float32)
        m_bits, v_bits, o_bits = m.view(np.int32), v.view(np.int32), o.view(np.int32)
        noise = np.empty(columns, np.uint32)
        row_seed = _hashed(np.uint32(seed) + np.uint32(row))
        for j in range(columns):
            v_bits[j] = np.int32(np.int32(gradient[row, j]) << SIXTEEN)
            m_bits[j] = np.int32(np.int32(first[row, j]) << SIXTEEN)
            o_bits[j] = np.int32(np.int32(offsets[row, j]) << SIXTEEN)
            noise[j] = _hashed(row_seed + np.uint32(j))
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
                v[j] += b2 * POWERS[second[row, j]]
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


def move(offsets: Tensor, gradient: Tensor, moments: AdamMoments, step: AdamStep) -> Tensor:
    """Moves offsets by m̂ / √v̂, as in Adam, and the moments; returns whether the bfloat16 gradient is finite."""
    stored = offsets, gradient, moments.first
    halves = (tensor.detach().view(torch.int16).reshape(moments.first.shape).numpy() for tensor in stored)
    second, least = moments.second.numpy(), moments.least.numpy()[:, 0]
    rate, size = np.float32(step.rate), np.float32(step.correction)
    finite = np.empty(len(moments.first), dtype=np.bool_)
    with LAUNCH:
        _move(*halves, second, least, step.seed, rate, size, step.number == 1, finite)  # type: ignore[call-arg]
    return torch.tensor(finite.all())
