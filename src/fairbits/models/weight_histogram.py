"""Compact, mergeable counts of weights by value, from which outlier shares of merged tensors are computed."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
import torch
from numpy.typing import NDArray

from fairbits.core.array_checks import Floats
from fairbits.models.moment_kernels import DROPPED_32, DROPPED_64

Counts = NDArray[np.integer]


@dataclass(frozen=True)
class Format:
    """How the counted leading bits (the key) are converted back to a value."""

    bits: type[np.unsignedinteger]
    number: type[np.floating]  # the floating-point type of the same width
    shift: int  # bits by which the key is shifted to the left
    merged: int  # trailing bits in which weights of one key may differ

    @property
    def keys(self) -> int:
        """The number of different keys."""
        return 1 << (8 * self.number().itemsize - self.shift)


FORMATS: Mapping[torch.dtype, Format] = {
    torch.bfloat16: Format(np.uint32, np.float32, 16, 0),
    torch.float16: Format(np.uint16, np.float16, 0, 0),
    torch.float32: Format(np.uint32, np.float32, DROPPED_32, DROPPED_32),
    torch.float64: Format(np.uint64, np.float64, DROPPED_64, DROPPED_64),
}


@dataclass(frozen=True, eq=False)
class Histogram:
    """How many weights of one dtype there are of each 16-bit value, or in each bin of width 2⁻⁷ of its value.

    If only one in `every` blocks without outliers was counted, each counted weight of these represents `every` weights.
    """

    dtype: torch.dtype
    keys: Counts
    counts: Counts
    every: int = 1

    @classmethod
    def of(cls, dtype: torch.dtype, dense: Counts, *, every: int = 1) -> "Histogram":
        """Returns the histogram with the counts in `dense`, one per key, stored in as few bytes as possible."""
        keys = np.flatnonzero(dense)
        counts = dense[keys]
        narrow = counts.max(initial=0) < 2**32
        key_type = np.min_scalar_type(FORMATS[dtype].keys - 1)
        return cls(dtype, keys.astype(key_type), counts.astype(np.uint32 if narrow else np.int64), every)

    def __add__(self, other: "Histogram") -> "Histogram":
        return Histogram.of(self.dtype, self.dense() + other.dense(), every=max(self.every, other.every))

    def dense(self) -> Counts:
        """Returns the count of every key."""
        counts = np.zeros(FORMATS[self.dtype].keys, np.int64)
        counts[self.keys] = self.counts
        return counts

    def edges(self) -> tuple[Floats, Floats]:
        """Returns the smallest and the largest weight of each key."""
        form = FORMATS[self.dtype]
        inner = self.keys.astype(form.bits) << form.bits(form.shift)
        outer = inner | form.bits((1 << form.merged) - 1)
        inner, outer = (side.view(form.number).astype(np.float64) for side in (inner, outer))
        return np.minimum(inner, outer), np.maximum(inner, outer)


def merge_histograms(histograms: Iterable[Histogram]) -> tuple[Histogram, ...]:
    """Returns one histogram per dtype."""
    by_dtype: dict[torch.dtype, list[Histogram]] = {}
    for histogram in histograms:
        by_dtype.setdefault(histogram.dtype, []).append(histogram)
    return tuple(reduce(add, same) for same in by_dtype.values())


@dataclass(frozen=True)
class Beyond:
    """How many weights lie more than `reach` from `mean`: the least and greatest likely number, and an estimate."""

    least: int
    greatest: int
    estimate: float


def count_beyond(histograms: Iterable[Histogram], mean: float, reach: float) -> Beyond:
    """Returns how many weights have |w − mean| > reach; a bin cut by the threshold is treated as evenly filled.

    The limits are certain if every weight was counted. Otherwise they are 4 standard errors wider, as if all counted
    weights were a random sample. This is conservative, because outliers are counted completely.
    """
    least, greatest, estimate = 0, 0, 0.0
    for histogram in histograms:
        low, high = (edge - mean for edge in histogram.edges())
        counts = histogram.counts.astype(np.int64)
        wholly, partly = (low > reach) | (high < -reach), (low < -reach) | (high > reach)
        cut = partly & ~wholly
        low, high = low[cut], high[cut]
        outside = np.maximum(0.0, -reach - low) + np.maximum(0.0, high - reach)
        inside, touched = int(counts[wholly].sum()), int(counts[partly].sum())
        least += max(0, inside - _sampling_error(inside, histogram.every))
        greatest += touched + _sampling_error(touched, histogram.every)
        estimate += inside + float(counts[cut] @ (outside / (high - low)))
    return Beyond(least, greatest, estimate)


def _sampling_error(count: int, every: int) -> int:
    """Returns four standard errors of a count for which one weight in `every` was sampled."""
    return 0 if every == 1 else math.ceil(4 * math.sqrt(every * (count + every)))
