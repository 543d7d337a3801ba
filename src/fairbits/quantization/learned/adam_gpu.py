"""One step of Adam for the offsets of a layer on a GPU, in one launch of a Triton kernel.

In torch it is about 35 launches and as many passes over memory; here every number is read and written once. Random
numbers are drawn by Philox from the seed. Triton is optional: where it is missing (`AVAILABLE`), `adam_cpu` does it.
"""

from contextlib import nullcontext

import torch
from torch import Tensor

from fairbits.quantization.learned.adam_cpu import (
    BETAS,
    CODES_PER_OCTAVE,
    EPSILON,
    LARGEST_DIRECTION,
    AdamMoments,
    AdamStep,
)
from fairbits.quantization.learned.learnable_codes import MAX_OFFSET

try:
    import triton
    import triton.language as tl
except ImportError:  # pragma: no cover
    AVAILABLE = False
else:
    AVAILABLE = True

WEIGHTS_AT_ONCE = 1024  # weights of one program of the kernel

if AVAILABLE:

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def _move(  # type: ignore[no-untyped-def]
        offsets,
        gradient,
        first,
        second,
        least,
        finite,
        count,
        columns,
        seed,
        rate,
        size,
        decay1,
        decay2,
        largest,
        bound,
        per_octave,
        epsilon,
        INITIAL: tl.constexpr,
        WEIGHTS: tl.constexpr,
    ):
        at = tl.program_id(0).to(tl.int64) * WEIGHTS + tl.arange(0, WEIGHTS)
        inside = at < count
        g = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
        good = tl.abs(g) <= 3.0e38  # false for NaN as well
        if tl.sum(tl.where(good, 0, 1), axis=0) > 0:
            tl.store(finite, 0)
        g = tl.where(good, g, 0.0)
        m = tl.load(first + at, mask=inside, other=0.0).to(tl.float32)
        m += (g - m) * (1.0 - decay1)
        tl.store(first + at, m.to(tl.bfloat16), mask=inside)
        base = tl.load(least + at // columns, mask=inside, other=0.0)
        v = g * g * (1.0 - decay2) + epsilon
        if not INITIAL:
            code = tl.load(second + at, mask=inside, other=0).to(tl.float32)
            v += decay2 * tl.exp2(code / per_octave + base)
        code = tl.floor((tl.log2(v) - base) * per_octave + tl.rand(seed, at))
        tl.store(second + at, tl.minimum(tl.maximum(code, 0.0), 255.0).to(tl.uint8), mask=inside)
        direction = tl.minimum(tl.maximum(m / (tl.sqrt(v) * size), -largest), largest)
        moved = tl.load(offsets + at, mask=inside, other=0.0).to(tl.float32) - rate * direction
        moved = tl.minimum(tl.maximum(moved, -bound), bound)
        # to bfloat16, up or down at random: noise in the bits that it does not have, which are then cut off
        noise = tl.randint(seed, at + count).to(tl.int32, bitcast=True) & 0xFFFF
        bits = (moved.to(tl.int32, bitcast=True) + noise) & -65536
        tl.store(offsets + at, bits.to(tl.float32, bitcast=True).to(tl.bfloat16), mask=inside)


def move(offsets: Tensor, gradient: Tensor, moments: AdamMoments, step: AdamStep) -> Tensor:
    """Does what `adam_cpu.move` does, with other random numbers."""
    finite = torch.ones((), dtype=torch.int32, device=offsets.device)
    count = offsets.numel()
    with torch.cuda.device(offsets.device) if offsets.is_cuda else nullcontext():
        _move[(triton.cdiv(count, WEIGHTS_AT_ONCE),)](
            *(offsets, gradient, moments.first, moments.second, moments.least, finite),
            *(count, moments.first.shape[1], step.seed, step.rate, step.correction),
            *(*BETAS, LARGEST_DIRECTION, MAX_OFFSET, float(CODES_PER_OCTAVE), EPSILON**2),
            INITIAL=step.number == 1,
            WEIGHTS=WEIGHTS_AT_ONCE,
        )
    return finite
