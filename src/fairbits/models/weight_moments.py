"""Moments and outliers of the weights of a tensor, a block or any set of tensors, from one pass over the file.

An outlier lies more than 3σ (6σ) from the mean of its own population: |w − mean| > kσ. A merged population has a
different mean and σ from its parts, so outliers cannot simply be added. Every result therefore carries counts of its
weights by value, from which shares are computed after merging.

* n, mean, σ, skewness, κ and max|w| are exact to the rounding of float64, merged or not.
* Outlier shares of one tensor, and of anything merged from bfloat16 and float16, are exact.
* Outlier shares merged from float32 or float64 come from bins of 2⁻⁷ of a weight's size. In tensors with more than 4 M
  weights, all blocks of 64 with a weight beyond 5σ are counted, and a random one in eight of the others. Bins cut by a
  threshold are divided in proportion; `beyond_bounds` gives the limits, `exact` says whether they coincide.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from fairbits.core.checks import in_range, instance, instances
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.models import moment_passes as passes
from fairbits.models.moments import Moments, mixture_moments
from fairbits.models.weight_histogram import FORMATS, Beyond, Histogram, count_beyond, merge_histograms

if TYPE_CHECKING:
    from fairbits.models.checkpoint import Checkpoint


@dataclass(frozen=True)
class WeightMoments:
    """Moments, largest magnitude and outlier shares of some weights; `a + b` are those of both together.

    >>> both = moments_of(torch.arange(5.0)) + moments_of(torch.tensor([1.0, 90.0]))
    >>> both.n, both.largest, round(both.mean, 3)
    (7, 90.0, 14.429)
    """

    moments: Moments
    largest: float
    beyond_3: float
    beyond_6: float
    exact: bool  # whether both shares are exact
    histograms: tuple[Histogram, ...] = field(repr=False, compare=False)

    @property
    def n(self) -> int:
        """The number of weights."""
        return int(self.moments.n)

    @property
    def mean(self) -> float:
        """The mean."""
        return self.moments.mean

    @property
    def sigma(self) -> float:
        """The standard deviation of the population (a mean over n, not n − 1)."""
        return self.moments.sigma

    @property
    def skewness(self) -> float:
        """The skewness, 0 if all weights are equal."""
        return self.moments.skewness

    @property
    def kappa(self) -> float:
        """The excess kurtosis, 0 for a Gaussian and if all weights are equal."""
        return self.moments.kappa

    def beyond(self, k: float) -> float:
        """Returns the share of weights with |w − mean| > kσ for any k, from the counts by value.

        >>> round(moments_of(torch.arange(-50, 51, dtype=torch.float16)).beyond(1.0), 4)
        0.4158
        """
        return self._count(k).estimate / self.n

    def beyond_bounds(self, k: float) -> tuple[float, float]:
        """Returns the least and the greatest share beyond kσ that the counts by value allow.

        They are certain, except for float32 and float64 tensors of more than 4 M weights: there they span 4 standard
        errors.
        """
        count = self._count(k)
        return count.least / self.n, min(1.0, count.greatest / self.n)

    def _count(self, k: float) -> Beyond:
        return _count_beyond(self.histograms, self.moments, in_range("k", k, least=0.0))

    def __add__(self, other: "WeightMoments") -> "WeightMoments":
        return _from_parts([self, instance("what is added", other, WeightMoments)])

    def as_data(self) -> dict[str, Any]:
        """Returns the numbers for JSON."""
        names = ("n", "mean", "sigma", "skewness", "kappa", "largest", "beyond_3", "beyond_6", "exact")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class ModelMoments:
    """The moments of a model: of every tensor, and of the linear layers of every block together.

    `skipped` says why a tensor has none: it is empty, or does not hold floating-point weights.
    """

    tensors: Mapping[str, WeightMoments]
    blocks: tuple[WeightMoments, ...]
    skipped: Mapping[str, str]

    def merge(self, names: Iterable[str]) -> WeightMoments:
        """Returns the moments of all weights in the named tensors together."""
        return _from_parts([self._tensor(name) for name in names])

    def as_data(self) -> dict[str, Any]:
        """Returns the numbers for JSON."""
        return {
            "tensors": {name: moments.as_data() for name, moments in self.tensors.items()},
            "blocks": [moments.as_data() for moments in self.blocks],
            "skipped": dict(self.skipped),
        }

    def _tensor(self, name: str) -> WeightMoments:
        if name not in self.tensors:
            raise InputError(f"{name} has no moments: {self.skipped.get(name, 'the model has no tensor of this name')}")
        return self.tensors[name]


def moments_of(tensor: torch.Tensor, *, name: str = "tensor") -> WeightMoments:
    """Returns the moments of one tensor of bfloat16, float16, float32 or float64, in float64 whatever its dtype.

    On a GPU the values of 16-bit weights are counted there, with the same result; wider weights are moved to the CPU.
    NaN, infinities, integers and empty tensors are refused with an error that calls the tensor `name`.

    >>> moments = moments_of(torch.tensor([1.0, 2.0, 4.0, 9.0]))
    >>> moments.n, moments.mean, round(moments.skewness, 4)
    (4, 4.0, 0.7684)
    """
    flat = _weights(tensor, name).reshape(-1).contiguous()
    if flat.dtype.itemsize > 2:
        flat = flat.cpu()
    found = passes.count_16_bit(flat) if flat.dtype.itemsize == 2 else passes.sum_and_count(flat)
    if found is None:
        raise _not_finite(tensor, name)
    moments, largest, histogram, beyond = found
    n = int(moments.n)
    return WeightMoments(moments, largest, beyond[0] / n, beyond[1] / n, True, (histogram,))


def weight_moments(checkpoint: "Checkpoint", *, progress: Progress | None = None) -> ModelMoments:
    """Returns the moments of every tensor and block of a model; the file is read once, one tensor at a time.

    A block's moments are those of all weights of its linear layers together, without norms and biases. `progress` is
    called after each tensor with the bytes read so far and the bytes of the whole model.
    """
    blocks = checkpoint.architecture.blocks  # first: a model that cannot be mapped fails before it is read
    tensors: dict[str, WeightMoments] = {}
    skipped: dict[str, str] = {}
    done, total = 0, sum(info.nbytes for info in checkpoint.tensors.values())
    for info, tensor in checkpoint.stream():
        if info.dtype not in FORMATS or not tensor.numel():
            skipped[info.name] = f"it holds {tensor.numel()} element(s) of {info.dtype}"
        else:
            tensors[info.name] = moments_of(tensor, name=info.name)
        del tensor  # before the next one is read
        done += info.nbytes
        if progress is not None:
            progress("reading weights", done, total)
    tensors = {name: tensors[name] for name in checkpoint.tensors if name in tensors}  # in file order
    skipped = {name: skipped[name] for name in checkpoint.tensors if name in skipped}
    model = ModelMoments(MappingProxyType(tensors), (), MappingProxyType(skipped))
    return ModelMoments(model.tensors, tuple(model.merge(block.linears) for block in blocks), model.skipped)


def _from_parts(parts: Iterable[WeightMoments]) -> WeightMoments:
    parts = instances("what is merged", parts, WeightMoments)
    if len(parts) == 1:
        return parts[0]
    sizes = [part.n for part in parts]
    moments = mixture_moments([part.moments for part in parts], sizes, n=float(sum(sizes)))
    histograms = merge_histograms(histogram for part in parts for histogram in part.histograms)
    three, six = (_count_beyond(histograms, moments, k) for k in (3, 6))
    exact = three.least == three.greatest and six.least == six.greatest
    largest = max(part.largest for part in parts)
    return WeightMoments(moments, largest, three.estimate / moments.n, six.estimate / moments.n, exact, histograms)


def _count_beyond(histograms: Iterable[Histogram], moments: Moments, k: float) -> Beyond:
    if moments.variance == 0:  # all weights are equal; a threshold would cut their bin
        return Beyond(0, 0, 0.0)
    return count_beyond(histograms, moments.mean, k * moments.sigma)


def _weights(tensor: torch.Tensor, name: str) -> torch.Tensor:
    instance(name, tensor, torch.Tensor)
    if tensor.dtype not in FORMATS:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in FORMATS)
        raise InputError(f"{name} holds {tensor.dtype}; weights must be {known}: dequantize or convert them first")
    if tensor.device.type not in ("cpu", "cuda"):
        raise InputError(f"{name} is on the device {tensor.device}; move it to main memory with .cpu()")
    if not tensor.numel():
        raise InputError(f"{name} has shape {tuple(tensor.shape)} and no elements; moments need at least one")
    return tensor.detach()


def _not_finite(tensor: torch.Tensor, name: str) -> InputError:
    count, at, value = passes.first_not_finite(tensor.detach())
    return InputError(
        f"{name} holds {count} NaN or infinite element(s), the first ({value}) at {at}; every weight must be finite: "
        "repair the checkpoint or download it again"
    )
