"""Compiled kernels of the weight moments (numba). They read every weight once, while it is in the cache.

A 16-bit weight has only 65536 possible values: it is enough to count each value, and every statistic follows from the
counts. For wider weights the leading bits are counted by the store unit while the vector units sum powers in float64.
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, prange
from numba.core import types
from numba.extending import intrinsic

from fairbits.models.scales.clip_kernels import FAST

CHUNK = 4096
"""Weights that share one centre."""

BLOCK = 64
"""Weights per alternation of summing and counting: few enough for the processor to overlap the two.

The largest magnitude of each block is stored, so that blocks without outliers need not be read again to count outliers.
"""

PART = 4096
"""Blocks that one thread searches for outliers at a time."""

EVERY = 8
"""One in this many ordinary blocks of a large tensor is counted by value, because counting is the slowest part."""

DROPPED_32, DROPPED_64 = 16, 45
"""Trailing bits of float32 and float64 that are not counted: what remains is sign, exponent and 7 bits of mantissa."""

_AHEAD = 8192  # bytes between the data being computed and the data being prefetched
_LINE = 64  # bytes of a cache line
_SOON = 8  # blocks between the one being read and the one being prefetched


def _fetch_code(_typing: Any, array: Any, _offset: Any) -> Any:
    """Prefetches the cache line at this offset in bytes from the start of `array`; reads nothing itself.

    Several loops over one block read nothing from memory in between, so the hardware prefetcher falls behind: without
    this hint summing takes 50 % longer.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = builder.ptrtoint(context.make_array(signature.args[0])(context, builder, arguments[0]).data, _WORD)
        address = builder.inttoptr(builder.add(start, arguments[1]), ir.IntType(8).as_pointer())
        flag = ir.IntType(32)
        hint = ir.FunctionType(ir.VoidType(), [address.type, flag, flag, flag])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [address.type], hint)
        builder.call(prefetch, [address, flag(0), flag(2), flag(1)])  # to read, into the L2 cache, data
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


_WORD = ir.IntType(64)
_fetch: Any = intrinsic(_fetch_code)


@njit(cache=True, parallel=True)
def count_patterns(bits, tables):  # type: ignore[no-untyped-def]
    """Adds to `tables` (threads, 65536) how often each 16-bit pattern occurs."""
    share = -(-bits.size // len(tables))
    for t in prange(len(tables)):
        part, table = bits[t * share : (t + 1) * share], tables[t]
        for i in range(part.size):
            table[part[i]] += np.uint32(1)


@njit(cache=True, parallel=True)
def sum_and_count(w, bits, unit, thin, tables, sums, tops):  # type: ignore[no-untyped-def]
    """Fills `sums` (chunks, 5) with c, Σd, Σd², Σd³, Σd⁴ of each chunk of w·unit, d = w·unit − c; whole blocks only.

    The mean μ is not known in a single pass, so powers are summed about a centre c near it and moved to μ later. c is
    the mean of the chunk's first block. By Jensen's inequality n·|c − μ|ᵏ is then at most CHUNK/BLOCK = 64 times Σ|w −
    μ|ᵏ, so moving the sums to μ never loses more than two digits, whatever the weights. Fills `tops` with the bits of
    each block's largest magnitude.

    Adds to `tables[:, 0]` (threads, patterns) how often each leading pattern occurs; if `thin`, only in blocks with a
    weight beyond 5σ (σ as in the chunk's first block), and to `tables[:, 1]` in one of EVERY of the others. A hash of
    the block's number selects it: a regular stride could count all weights of a column, or none.
    """
    share = -(-len(sums) // len(tables))
    for t in prange(len(tables)):
        for c in range(t * share, min((t + 1) * share, len(sums))):
            part = slice(c * CHUNK, (c + 1) * CHUNK)
            _one_chunk(w[part], bits[part], unit, thin, c * (CHUNK // BLOCK), tables[t], sums[c], tops)


@njit(cache=True, fastmath=FAST)
def _one_chunk(w, bits, unit, thin, number, tables, sums, tops):  # type: ignore[no-untyped-def]
    kind = bits.dtype.type
    unsigned = kind(~(np.uint64(1) << np.uint64(8 * bits.itemsize - 1)))
    centre = _mean(w[:BLOCK], unit)
    limit = 5.0**4 * _variance(w[:BLOCK], unit, centre) ** 2
    first, second, third, fourth = 0.0, 0.0, 0.0, 0.0
    for start in range(0, w.size, BLOCK):
        x, y = w[start : start + BLOCK], bits[start : start + BLOCK]
        for line in range(0, BLOCK * w.itemsize, _LINE):
            _fetch(x, line + _AHEAD)
        d1, d2, d3, d4 = 0.0, 0.0, 0.0, 0.0
        for i in range(BLOCK):  # a length known at compile time makes these loops twice as fast
            d = np.float64(x[i]) * unit - centre
            square = d * d
            d1, d2, d3, d4 = d1 + d, d2 + square, d3 + square * d, d4 + square * square
        first, second, third, fourth = first + d1, second + d2, third + d3, fourth + d4
        top, where = kind(0), 0
        for i in range(BLOCK):
            top = max(top, kind(y[i] & unsigned))
        block = number + start // BLOCK
        tops[block] = top
        if thin and d4 < limit:  # no weight of the block lies beyond 5σ
            if _mixed(block) % EVERY:
                continue
            where = 1
        table = tables[where]
        if bits.itemsize == 4:  # decided at compile time; a shift by a variable would cost a third
            for i in range(BLOCK):
                table[y[i] >> np.uint32(DROPPED_32)] += np.uint32(1)
        else:
            for i in range(BLOCK):
                table[y[i] >> np.uint64(DROPPED_64)] += np.uint32(1)
    sums[0], sums[1], sums[2], sums[3], sums[4] = centre, first, second, third, fourth


@njit(cache=True, fastmath=FAST)
def _variance(x, unit, centre):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(x.size):
        total += (np.float64(x[i]) * unit - centre) ** 2
    return total / x.size


@njit(cache=True)
def _mixed(number):  # type: ignore[no-untyped-def]
    """A hash in which every bit depends on all bits of the number (the finalizer of splitmix64)."""
    z = np.uint64(number) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return (z ^ (z >> np.uint64(27))) >> np.uint64(32)


@njit(cache=True, parallel=True)
def count_outside(w, tops, least, mean, reach, counts):  # type: ignore[no-untyped-def]
    """Adds to `counts` (parts, 2) how many weights have |w − mean| > reach, for each of two ascending reaches.

    A part is `PART` blocks. Blocks whose top is below the first (second) `least` have none of that kind and are
    skipped.
    """
    for p in prange(len(counts)):
        chosen, some = np.empty(PART + _SOON, np.int64), 0
        for block in range(p * PART, min(tops.size, (p + 1) * PART)):
            chosen[some] = block
            some += tops[block] >= least[0]
        for j in range(some, some + _SOON):
            chosen[j] = 0
        for j in range(some):
            for line in range(0, BLOCK * w.itemsize, _LINE):
                _fetch(w, chosen[j + _SOON] * BLOCK * w.itemsize + line)
            x = w[chosen[j] * BLOCK : (chosen[j] + 1) * BLOCK]
            counts[p, 0] += _outside(x, mean, reach[0])
            if tops[chosen[j]] >= least[1]:
                counts[p, 1] += _outside(x, mean, reach[1])


@njit(cache=True)
def _outside(x, mean, reach):  # type: ignore[no-untyped-def]
    found = np.int32(0)
    for i in range(BLOCK):
        found = np.int32(found + np.int32(abs(np.float64(x[i]) - mean) > reach))
    return found


@njit(cache=True, fastmath=FAST)
def _mean(x, unit):  # type: ignore[no-untyped-def]
    origin, total = np.float64(x[0]) * unit, 0.0  # so that the mean of equal weights is exact
    for i in range(x.size):
        total += np.float64(x[i]) * unit - origin
    return origin + total / x.size
