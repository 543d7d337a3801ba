"""The passes that compute weight moments: they combine the counts and sums of the kernels in float64."""

import numpy as np
import torch
from numba import get_num_threads

from fairbits.core.array_checks import Floats, near_one, representable
from fairbits.core.errors import InputError
from fairbits.core.memory import CHECKED_WEIGHTS
from fairbits.models import moment_kernels as kernels
from fairbits.models.moments import Moments
from fairbits.core.numba_lock import LAUNCH
from fairbits.models.weight_histogram import FORMATS, Counts, Histogram, count_beyond

Found = tuple[Moments, float, Histogram, tuple[int, int]]
"""Moments, largest magnitude, counts by value, and the numbers of weights beyond 3σ and 6σ."""

_COUNTED_WHOLE = 1 << 22  # float32 and float64 tensors up to this size are counted completely


def count_16_bit(flat: torch.Tensor) -> Found | None:
    """Returns all statistics of 16-bit weights from the count of each value; None if one is not finite."""
    histogram = Histogram.of(flat.dtype, _count_patterns(flat))
    values = histogram.edges()[0]
    if not np.isfinite(values).all():
        return None
    sums = np.zeros((values.size, 5))  # one chunk per value, whose weights are all equal
    sums[:, 0] = values
    moments = _combined(sums, histogram.counts.astype(np.float64), unit=1.0)
    three, six = (count_beyond([histogram], moments.mean, k * moments.sigma).least for k in (3, 6))
    return moments, float(np.abs(values).max()), histogram, (three, six)


def _count_patterns(flat: torch.Tensor) -> Counts:
    """Returns how often each 16-bit pattern occurs, counted on the device of the weights."""
    if not flat.is_cuda:
        tables = _tables(flat)
        with LAUNCH:
            kernels.count_patterns(flat.view(torch.int16).numpy().view(np.uint16), tables)
        found: Counts = tables.sum(axis=0, dtype=np.int64)
        return found
    return count_patterns_in_torch(flat)


def count_patterns_in_torch(flat: torch.Tensor) -> Counts:
    """Returns how often each 16-bit pattern occurs, on any device.

    >>> int(count_patterns_in_torch(torch.tensor([0.0, 0.0, -0.0]).half()).max())
    2
    """
    counts = torch.zeros(2**16, dtype=torch.int64, device=flat.device)
    for part in torch.split(flat.view(torch.int16), CHECKED_WEIGHTS):
        counts += torch.bincount(part.int() & 0xFFFF, minlength=2**16)
    found: Counts = counts.cpu().numpy()
    return found


def sum_and_count(flat: torch.Tensor) -> Found | None:
    """Returns all statistics of float32 or float64 weights; None if one of them is not finite."""
    form = FORMATS[flat.dtype]
    w = flat.numpy()
    unit = 1.0 if flat.dtype == torch.float32 else _unit(flat)  # fourth powers of float32 fit float64 as they are
    whole = w.size - w.size % kernels.BLOCK
    body, rest = w[:whole], w[whole:]
    thin = w.size > _COUNTED_WHOLE
    tables = np.stack([_tables(flat)] * 2, axis=1)
    sums = np.empty((-(-whole // kernels.CHUNK), 5))
    tops = np.empty(whole // kernels.BLOCK, form.bits)
    with LAUNCH:
        kernels.sum_and_count(body, body.view(form.bits), unit, thin, tables, sums, tops)
    counts = tables.sum(axis=0, dtype=np.int64).T @ np.array([1, kernels.EVERY])
    np.add.at(counts, rest.view(form.bits) >> form.bits(form.shift), 1)
    largest = float(max(tops.max(initial=0).view(form.number), np.abs(rest).max(initial=0.0)))
    if not np.isfinite([largest, *rest]).all():
        return None
    sizes = np.full(len(sums), float(kernels.CHUNK))
    if len(sums):
        sizes[-1] = whole - (len(sums) - 1) * kernels.CHUNK
    if rest.size:
        sums, sizes = np.vstack([sums, _rest_sums(rest, unit)]), np.append(sizes, rest.size)
    moments = _combined(sums, sizes, unit=unit)
    return (
        moments,
        largest,
        Histogram.of(flat.dtype, counts, every=kernels.EVERY if thin else 1),
        _beyond(body, rest, tops, moments),
    )


def first_not_finite(tensor: torch.Tensor) -> tuple[int, tuple[int, ...], float]:
    """Returns how many elements are NaN or infinite, and the position and value of the first."""
    count, first = 0, -1
    flat = tensor.reshape(-1)
    for start in range(0, flat.numel(), CHECKED_WEIGHTS):
        odd = ~torch.isfinite(flat[start : start + CHECKED_WEIGHTS])
        if first < 0 and odd.any():
            first = start + int(odd.int().argmax())
        count += int(odd.sum())
    return count, tuple(int(i) for i in np.unravel_index(first, tensor.shape)), float(flat[first])


def _tables(flat: torch.Tensor) -> Counts:
    """Returns zeroed counts, one row per thread; a small tensor gets fewer threads."""
    threads = max(1, min(get_num_threads(), flat.numel() >> 16))
    return np.zeros((threads, FORMATS[flat.dtype].keys), np.uint32 if flat.numel() < 2**32 else np.uint64)


def _unit(flat: torch.Tensor) -> float:
    ends = np.array([float(end) for end in torch.aminmax(flat)])
    return 1.0 / near_one(ends)[1] if np.isfinite(ends).all() else 1.0


def _rest_sums(rest: np.ndarray, unit: float) -> Floats:
    """Returns the same sums as the kernel, for the rest that is smaller than a block."""
    x = rest.astype(np.float64) * unit
    centre = x[0] + np.mean(x - x[0])
    d = x - centre
    return np.array([centre, d.sum(), (d**2).sum(), (d**3).sum(), (d**4).sum()])


def _combined(sums: Floats, sizes: Floats, *, unit: float) -> Moments:
    """Returns the moments of all chunks: their sums are moved from the centres of the chunks to the common mean."""
    n = sizes.sum()
    centre, first, second, third, fourth = sums.T
    origin = centre[0]  # so that the mean of equal weights is exact
    mean = origin + (sizes * (centre - origin) + first).sum() / n
    e = centre - mean
    m2 = (second + e * (2 * first + e * sizes)).sum() / n
    m3 = (third + e * (3 * second + e * (3 * first + e * sizes))).sum() / n
    m4 = (fourth + e * (4 * third + e * (6 * second + e * (4 * first + e * sizes)))).sum() / n
    if m2 <= 0:
        return Moments(float(n), float(mean / unit), 0.0, 0.0, 0.0)
    variance = representable("the variance", float(m2) / unit / unit)
    if variance < np.finfo(float).tiny:
        raise InputError("the variance is below the range of float64; scale the weights up first")
    return Moments(float(n), float(mean / unit), variance, float(m3 / m2**1.5), float(m4 / m2**2 - 3))


def _beyond(body: np.ndarray, rest: np.ndarray, tops: np.ndarray, moments: Moments) -> tuple[int, int]:
    """Returns the exact numbers of weights beyond 3σ and 6σ."""
    reach = np.array([3.0, 6.0]) * moments.sigma
    # no outlier is smaller than this; slightly reduced to allow for rounding in the comparison
    least = np.maximum(0.0, (reach - abs(moments.mean)) * (1 - 2**-40)).astype(body.dtype)
    least = np.nextafter(least, body.dtype.type(0)).view(tops.dtype)
    counts = np.zeros((-(-tops.size // kernels.PART), 2), np.int64)
    with LAUNCH:
        kernels.count_outside(body, tops, least, moments.mean, reach, counts)
    three, six = counts.sum(axis=0) + np.sum(np.abs(rest.astype(np.float64) - moments.mean) > reach[:, None], axis=1)
    return int(three), int(six)
