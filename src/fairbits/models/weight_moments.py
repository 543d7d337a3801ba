"""Moments and outliers of the weights of every tensor and block of a model, from one pass over its files.

An outlier is more than 3σ (6σ) from the mean of its own population: |w − mean| > kσ. A block has another mean and σ
than its tensors, and these are known only when the last tensor has been read. So the weights of a block are also
counted by their leading 16 bits (19 of float64): sign, exponent, and at least 7 bits of the mantissa.

All numbers are exact to the rounding of float64, except the shares of outliers of blocks in float32 and float64 where
a threshold cuts a bin of equal leading bits, which spans 2⁻⁷ of its value: it is divided in proportion.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fairbits.core.array_checks import Floats, near_one, representable, weights_vector
from fairbits.core.errors import InputError
from fairbits.core.memory import COUNTED_WEIGHTS, SUMMED_WEIGHTS
from fairbits.core.progress import Progress, begin
from fairbits.models.checkpoint import Checkpoint


@dataclass(frozen=True)
class Moments:
    """Count (infinite for a theoretical distribution), mean, variance, skewness and excess kurtosis."""

    n: float
    mean: float
    variance: float
    skewness: float
    kappa: float

    @property
    def sigma(self) -> float:
        return float(np.sqrt(self.variance))


def central_moments(n: float, mean: float, second: float, third: float, fourth: float, *, unit: float = 1.0) -> Moments:
    """Returns the moments, given the central ones of the data divided by `unit`; the shape of a constant is 0."""
    if second <= 0:
        return Moments(n, mean, 0.0, 0.0, 0.0)
    variance = representable("the variance", second * unit * unit)
    return Moments(n, mean, variance, third / second / math.sqrt(second), fourth / second / second - 3)


def mixture_moments(parts: Sequence[Moments], weights: ArrayLike, *, n: float = np.inf) -> Moments:
    """Returns the exact moments of Σ ā_l P_l, the pairwise formula of Chan and Pébay.

    With d_l = μ_l − μ and V = Σ ā(σ_l² + d_l²):
    κ = Σ ā[(κ_l+3)σ_l⁴ + 4d_lγ_lσ_l³ + 6d_l²σ_l² + d_l⁴]/V² − 3.
    """
    share = weights_vector("weights", weights, size=len(parts))
    parts = [part for part, weight in zip(parts, share, strict=True) if weight > 0]  # 0·∞ is not 0
    share = share[share > 0]
    mu, variance, skewness, kappa = (
        np.array([getattr(part, name) for part in parts]) for name in ("mean", "variance", "skewness", "kappa")
    )
    with np.errstate(over="ignore"):  # relative to the first mean, so that equal means stay exact
        from_first = representable("the distance of the means", mu - mu[0])
    shift = float(share @ from_first)
    mean, d = float(mu[0]) + shift, from_first - shift
    sizes, unit = near_one(np.concatenate([np.sqrt(variance), d]))
    sigma, d = np.split(sizes, 2)
    variance = sigma**2
    second = share @ (variance + d**2)
    third = share @ (skewness * sigma**3 + 3 * d * variance + d**3)
    fourth = share @ ((kappa + 3) * variance**2 + 4 * d * skewness * sigma**3 + 6 * d**2 * variance + d**4)
    return central_moments(n, mean, float(second), float(third), float(fourth), unit=unit)


def kappa_mixture(activation: ArrayLike, parts: Sequence[Moments]) -> float:
    """Returns the excess kurtosis of the mixture Σ ā_l P_l."""
    return mixture_moments(parts, activation).kappa


Counts = NDArray[np.int64]

FORMATS: Mapping[torch.dtype, tuple[torch.dtype, int]] = {  # integers of the same size; bits not counted
    torch.bfloat16: (torch.int16, 0),
    torch.float16: (torch.int16, 0),
    torch.float32: (torch.int32, 16),
    torch.float64: (torch.int64, 45),
}


@dataclass(frozen=True)
class WeightMoments(Moments):
    """Moments of a population of weights, its largest magnitude, its outlier shares, and whether these are exact."""

    n: int
    largest: float
    beyond_3: float
    beyond_6: float
    exact: bool = True

    def as_data(self) -> dict[str, Any]:
        names = ("n", "mean", "sigma", "skewness", "kappa", "largest", "beyond_3", "beyond_6", "exact")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class ModelMoments:
    """Moments of every tensor and of the linear layers of every block; `skipped` says why a tensor has none."""

    tensors: Mapping[str, WeightMoments]
    blocks: tuple[WeightMoments, ...]
    skipped: Mapping[str, str]

    def as_data(self) -> dict[str, Any]:
        return {
            "tensors": {name: moments.as_data() for name, moments in self.tensors.items()},
            "blocks": [moments.as_data() for moments in self.blocks],
            "skipped": dict(self.skipped),
        }


def weight_moments(checkpoint: Checkpoint, *, progress: Progress | None = None) -> ModelMoments:
    """Returns the moments of every tensor and of the linear layers of every block; `progress` is given bytes."""
    blocks = checkpoint.architecture.blocks  # first: a model that cannot be mapped fails before it is read
    counts: list[dict[torch.dtype, Counts]] = [{} for _ in blocks]
    in_blocks: dict[str, list[dict[torch.dtype, Counts]]] = {}
    for block, table in zip(blocks, counts, strict=True):
        for name in block.linears:
            in_blocks.setdefault(name, []).append(table)
    tensors: dict[str, WeightMoments] = {}
    skipped: dict[str, str] = {}
    done, total = 0, sum(info.nbytes for info in checkpoint.tensors.values())
    begin(progress, "reading weights")
    for info, tensor in checkpoint.stream():
        if info.dtype not in FORMATS or not tensor.numel():
            skipped[info.name] = f"it holds {tensor.numel()} element(s) of {info.dtype}"
        else:
            by_value = count_by_value(tensor)
            tensors[info.name] = tensor_moments(tensor, by_value, name=info.name)
            for table in in_blocks.get(info.name, ()):
                table[info.dtype] = table[info.dtype] + by_value if info.dtype in table else by_value
        del tensor  # before the next one is read
        done += info.nbytes
        if progress is not None:
            progress("reading weights", done, total)
    for name in in_blocks:
        if name not in tensors:
            raise InputError(f"{name} has no moments: {skipped[name]}")
    merged = tuple(
        merge_moments([tensors[name] for name in block.linears], table)
        for block, table in zip(blocks, counts, strict=True)
    )
    tensors = {name: tensors[name] for name in checkpoint.tensors if name in tensors}  # in file order
    skipped = {name: skipped[name] for name in checkpoint.tensors if name in skipped}
    return ModelMoments(MappingProxyType(tensors), merged, MappingProxyType(skipped))


def tensor_moments(tensor: torch.Tensor, by_value: Counts | None = None, *, name: str = "tensor") -> WeightMoments:
    """Returns the moments of a tensor, in float64; `by_value` are its counts, which decide all of them for 16 bits."""
    flat = tensor.detach().reshape(-1)
    if flat.dtype.itemsize == 2:
        measured = _from_counts(flat.dtype, count_by_value(flat) if by_value is None else by_value)
    else:
        measured = _from_weights(flat.cpu().numpy())
    if measured is None:
        odd = (~torch.isfinite(tensor)).cpu().numpy()
        at = tuple(int(i) for i in np.unravel_index(odd.argmax(), odd.shape))
        raise InputError(
            f"{name} holds {odd.sum()} NaN or infinite element(s), the first ({float(tensor[at])}) at {at}; every "
            "weight must be finite: repair the checkpoint or download it again"
        )
    return measured


def merge_moments(parts: Sequence[WeightMoments], counts: Mapping[torch.dtype, Counts]) -> WeightMoments:
    """Returns the moments of all weights of the parts together; `counts` are theirs by value, for each dtype."""
    if len(parts) == 1:
        return parts[0]
    sizes = [part.n for part in parts]
    moments = mixture_moments(parts, sizes, n=sum(sizes))
    shares, cut = [0.0, 0.0], 0
    if moments.variance > 0:  # else a threshold would cut the bin of all weights
        for i, k in enumerate((3, 6)):
            beyond = [_count_beyond(dtype, table, moments, k) for dtype, table in counts.items()]
            shares[i] = sum(estimate for estimate, _ in beyond) / moments.n
            cut += sum(uncertain for _, uncertain in beyond)
    return _with_outliers(moments, max(part.largest for part in parts), shares, exact=cut == 0)


def count_by_value(tensor: torch.Tensor, *, dropped: int | None = None) -> Counts:
    """Returns how many weights have each pattern of leading bits, all but `dropped`, counted on their device."""
    integer, default = FORMATS[tensor.dtype]
    dropped = default if dropped is None else dropped
    keys = 1 << (8 * integer.itemsize - dropped)
    counts = torch.zeros(keys, dtype=torch.int64, device=tensor.device)
    for part in torch.split(tensor.detach().reshape(-1).view(integer), COUNTED_WEIGHTS):
        leading = part >> dropped if dropped else part
        counts += torch.bincount(leading.int() & (keys - 1), minlength=keys)
    by_value: Counts = counts.cpu().numpy()
    return by_value


def bin_edges(dtype: torch.dtype, keys: Counts, *, dropped: int | None = None) -> tuple[Floats, Floats]:
    """Returns the smallest and the largest weight with each of these leading bits, all but `dropped`."""
    integer, default = FORMATS[dtype]
    dropped = default if dropped is None else dropped
    inner = torch.from_numpy(keys) << dropped
    outer = inner | ((1 << dropped) - 1)
    inner, outer = (side.to(integer).view(dtype).double() for side in (inner, outer))
    return torch.minimum(inner, outer).numpy(), torch.maximum(inner, outer).numpy()


def _count_beyond(dtype: torch.dtype, table: Counts, moments: Moments, k: float) -> tuple[float, int]:
    """Returns how many weights are beyond kσ, with bins that are cut evenly filled, and how many are in these."""
    keys, reach = np.flatnonzero(table), k * moments.sigma
    low, high = (edge - moments.mean for edge in bin_edges(dtype, keys))
    counts = table[keys]
    beyond = (low > reach) | (high < -reach)
    cut = ((low < -reach) | (high > reach)) & ~beyond
    low, high = low[cut], high[cut]
    outside = np.maximum(0.0, -reach - low) + np.maximum(0.0, high - reach)
    return int(counts[beyond].sum()) + float(counts[cut] @ (outside / (high - low))), int(counts[cut].sum())


def _from_counts(dtype: torch.dtype, table: Counts) -> WeightMoments | None:
    keys = np.flatnonzero(table)
    values, sizes = bin_edges(dtype, keys)[0], table[keys].astype(np.float64)
    if not np.isfinite(values).all():
        return None
    n = sizes.sum()
    mean = values[0] + (sizes * (values - values[0])).sum() / n  # so that the mean of equal weights is exact
    d = values - mean
    second, third, fourth = d * (d * sizes), d * (d * (d * sizes)), d * (d * (d * (d * sizes)))
    moments = _moments(int(n), float(mean), second.sum() / n, third.sum() / n, fourth.sum() / n)
    shares = [float(sizes[np.abs(d) > k * moments.sigma].sum() / n) for k in (3, 6)]
    return _with_outliers(moments, float(np.abs(values).max()), shares)


def _from_weights(w: np.ndarray) -> WeightMoments | None:
    """Returns the moments of wider weights, from sums in float64 over chunks; None if one is not finite."""
    largest = float(max(w.max(), -w.min()))
    if not np.isfinite(largest):
        return None
    # fourth powers of float32 fit float64 as they are
    unit = 1.0 if w.dtype == np.float32 else near_one(np.array([largest]))[1]
    first = float(w[0]) / unit  # so that the mean of equal weights is exact
    mean = first + sum(float((x - first).sum()) for x in _chunks(w, unit)) / w.size
    powers = np.zeros(3)
    for d in _chunks(w, unit):
        d -= mean
        square = d * d
        powers += square.sum(), (square * d).sum(), (square * square).sum()
    second, third, fourth = powers / w.size
    moments = _moments(w.size, mean * unit, second, third, fourth, unit=unit)
    beyond = np.zeros(2, dtype=np.int64)
    for d in _chunks(w, 1.0):
        d -= moments.mean
        np.abs(d, out=d)
        beyond += np.count_nonzero(d > 3 * moments.sigma), np.count_nonzero(d > 6 * moments.sigma)
    return _with_outliers(moments, largest, (beyond / w.size).tolist())


def _chunks(w: np.ndarray, unit: float) -> Iterator[Floats]:
    for start in range(0, w.size, SUMMED_WEIGHTS):
        part = w[start : start + SUMMED_WEIGHTS].astype(np.float64)
        yield part if unit == 1.0 else part / unit


def _moments(n: int, mean: float, m2: float, m3: float, m4: float, *, unit: float = 1.0) -> Moments:
    if m2 <= 0:
        return Moments(n, mean, 0.0, 0.0, 0.0)
    variance = representable("the variance", float(m2) * unit * unit)
    if variance < np.finfo(float).tiny:
        raise InputError("the variance is below the range of float64; scale the weights up first")
    return Moments(n, mean, variance, float(m3 / m2**1.5), float(m4 / m2**2 - 3))


def _with_outliers(moments: Moments, largest: float, shares: Sequence[float], *, exact: bool = True) -> WeightMoments:
    return WeightMoments(**vars(moments), largest=largest, beyond_3=shares[0], beyond_6=shares[1], exact=exact)
