"""Quantized activations: thresholds per language at the inputs of linear layers, and hooks that round these inputs."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from fairbits.core.array_checks import Floats, finite_array
from fairbits.core.checks import instance, one_of, same_shape, whole
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.core.records import check_once
from fairbits.core.tensors import first_tensor
from fairbits.forward.batches import Batch, batches
from fairbits.forward.body_and_head import positions_per_batch, split_head
from fairbits.forward.recorder import observable_linears
from fairbits.forward.windows import TokenizedText
from fairbits.models.architecture.architecture import Architecture, Weight
from fairbits.models.scales.clip_formulas import banner_gaussian, banner_laplace
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.sample_clip import clip_sample
from fairbits.quantization.gptq.hessian import input_stack

Clip = Literal["exact", "laplace", "gaussian", "absmax"]
"""How a threshold is chosen: least squared error, ACIQ's formulas from E|x| and E[x²], or no clipping."""
Thresholds = NDArray[np.float32]
Points = dict[str, list[Weight]]

LEADING = 9  # mantissa bits that the magnitudes of a bin share: a bin spans 0.2 % of its value, less than an 8-bit step
TRAILING = 23 - LEADING
BINS = 256 << LEADING
TOLERANCE = 1e-4  # relative distance to the optimum at which the search may stop; binning costs more than that


@dataclass(frozen=True, eq=False)
class Magnitudes:
    """How |x| is distributed: the bins that occur, ascending, and the share of the entries in each.

    A bin holds the float32 magnitudes with the same exponent and leading mantissa bits: the range need not be known.
    """

    bins: NDArray[np.int32]
    share: Floats

    @classmethod
    def from_counts(cls, counts: NDArray[np.integer]) -> "Magnitudes":
        bins = np.flatnonzero(counts)
        return cls(bins.astype(np.int32), counts[bins] / counts.sum())

    @classmethod
    def pooled(cls, parts: Sequence["Magnitudes"]) -> "Magnitudes":
        """Returns the mixture with equal weights for all parts, whatever their numbers of entries."""
        bins, where = np.unique(np.concatenate([part.bins for part in parts]), return_inverse=True)
        share = np.bincount(where, np.concatenate([part.share for part in parts])) / len(parts)
        return cls(bins, share)

    @property
    def values(self) -> Floats:
        """The middle of every bin; 0 for the bin of 0."""
        middles = (self.bins.astype(np.uint32) << TRAILING) + np.uint32(1 << (TRAILING - 1))
        values = middles.view(np.float32).astype(np.float64)
        values[self.bins == 0] = 0.0
        return values

    def alpha(self, bits: int, clip: Clip = "exact") -> float:
        grid, values = Grid(bits), self.values
        if values[-1] == 0:
            return 0.0
        if clip == "laplace":
            return banner_laplace(float(self.share @ values), bits)
        if clip == "gaussian":
            return banner_gaussian(float(np.sqrt(self.share @ values**2)), bits)
        if clip == "absmax":
            return float(values[-1])
        return float(grid.alpha(clip_sample(values, grid, importance=self.share, tolerance=TOLERANCE).step))


def bin_counts(x: Tensor) -> NDArray[np.int64]:
    """Returns how many entries of x have their magnitude in each bin; x must be finite."""
    bins = x.detach().abs().float().flatten().view(torch.int32) >> TRAILING
    counts: NDArray[np.int64] = torch.bincount(bins, minlength=BINS).cpu().numpy()
    return counts


@dataclass(frozen=True, eq=False)
class ActivationTable:
    """The threshold α of every point, an input shared by `modules`, for every language, and the language-blind one.

    The latter is for the mixture of all languages with equal weight. Codes are −n … n, n = 2^(bits−1) − 1, of step α/n.
    """

    bits: int
    clip: Clip
    modules: Mapping[str, tuple[str, ...]]
    languages: tuple[str, ...]
    alpha: Thresholds
    blind: Thresholds

    def __post_init__(self) -> None:
        whole("bits", self.bits, least=2, most=8)
        one_of("clip", self.clip, get_args(Clip))
        check_once("languages", self.languages)
        check_once("modules", [module for modules in self.modules.values() for module in modules])
        if not self.modules or not all(self.modules.values()) or not self.languages:
            raise InputError("the table has a point without modules, or no point or language; it must have each")
        for name, rows, shape in (
            ("alpha", self.alpha, (len(self.languages), len(self.modules))),
            ("the language-blind row", self.blind, (len(self.modules),)),
        ):
            same_shape(name, finite_array(name, rows).shape, "the table", shape)
            if rows.dtype != np.float32 or (rows <= 0).any():
                raise InputError(f"{name} is {rows.dtype} from {rows.min():g}; thresholds are float32 and above 0")

    @property
    def points(self) -> tuple[str, ...]:
        return tuple(self.modules)

    @property
    def extra_bytes(self) -> int:
        """The bytes of the rows of the languages, in addition to the language-blind row."""
        return int(self.alpha.nbytes)

    def row(self, language: str | None) -> Thresholds:
        row: Thresholds = self.blind if language is None else self.alpha[self.position(language)]
        return row

    def position(self, language: str) -> int:
        if language not in self.languages:
            raise InputError(
                f"language {language!r} has no thresholds; available are {', '.join(self.languages)}: "
                "calibrate with text in it, or use the language-blind row (None)"
            )
        return self.languages.index(language)

    def tensors(self) -> dict[str, Tensor]:
        return {"alpha": torch.from_numpy(self.alpha.copy()), "blind": torch.from_numpy(self.blind.copy())}


@dataclass(frozen=True, eq=False)
class ActivationRecord:
    """The distributions of activations by language and point; `left_out` says why other inputs are not quantized."""

    modules: Mapping[str, tuple[str, ...]]
    seen: Mapping[str, tuple[Magnitudes, ...]]
    left_out: Mapping[str, str]

    @property
    def mixed(self) -> tuple[Magnitudes, ...]:
        return tuple(Magnitudes.pooled(parts) for parts in zip(*self.seen.values(), strict=True))

    def table(self, bits: int = 8, clip: Clip = "exact") -> ActivationTable:
        one_of("clip", clip, get_args(Clip))
        rows = {**self.seen, "all languages": self.mixed}
        alpha = np.array([[point.alpha(bits, clip) for point in row] for row in rows.values()], dtype=np.float32)
        for code, row in zip(rows, alpha, strict=True):
            if (row <= 0).any():
                raise InputError(
                    f"{list(self.modules)[int(np.argmin(row))]} is 0 everywhere in the text of {code}; a threshold "
                    "needs activations that differ from 0: give more text, or check the model's weights"
                )
        return ActivationTable(bits, clip, dict(self.modules), tuple(self.seen), alpha[:-1], alpha[-1])


def language_windows(text: TokenizedText, language: str) -> TokenizedText:
    """Returns the windows of one language. Documents keep their numbers; those of other languages have no windows."""
    wanted = text.lang == language
    windows = tuple(window for window in text.windows if wanted[window.document])
    if not windows:
        raise InputError(
            f"the text has nothing in {language}; every language needs text to compute its thresholds: "
            "add text in it, or leave the language out"
        )
    return replace(text, windows=windows)


def activation_points(architecture: Architecture, model: nn.Module) -> tuple[Points, dict[str, str]]:
    """Returns the linear layers of blocks by the input they share, and why the inputs of others are not quantized."""
    linears, left_out = observable_linears(architecture, model)
    points: Points = {}
    for name, weight in linears.items():
        if weight.expert is not None:
            left_out[name] = "an expert sees only some of the positions"
        else:
            points.setdefault(str(weight.sees), []).append(weight)
    if not points:
        raise InputError(
            "no linear layer in a block has an input that can be observed; there is no activation to quantize"
        )
    return points, left_out


@torch.no_grad()
def record_activations(
    model: PreTrainedModel, architecture: Architecture, text: TokenizedText, *, progress: Progress | None = None
) -> ActivationRecord:
    """Returns how |x| is distributed at every point in every language, without padding, in the model as it is."""
    points, left_out = activation_points(architecture, model)
    parts = {code: language_windows(text, code) for code in text.languages}
    device = str(model.device)
    split = split_head(model, next(batches(text, positions=1)).on(device))
    positions = positions_per_batch(model, split)
    current: list[Batch] = []
    counts: dict[str, NDArray[np.int64]] = {}
    seen, done = {}, 0
    with ExitStack() as hooks:
        for name, weights in points.items():
            hook = _counting_hook(name, weights[0], current, counts)
            module = model.get_submodule(weights[0].module)
            hooks.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        for code, part in parts.items():
            counts.clear()
            for batch in batches(part, positions=positions):
                current[:] = [batch]
                split.body(batch.on(device))
                done += len(batch.document)
                if progress is not None:
                    progress("recording activations", done, len(text.windows))
            for name in points:
                if name not in counts:
                    raise InputError(f"text in {code} does not reach {name}; every linear layer of a block must see it")
            seen[code] = tuple(Magnitudes.from_counts(counts[name]) for name in points)
    modules = {name: tuple(weight.module for weight in weights) for name, weights in points.items()}
    return ActivationRecord(modules, seen, left_out)


def _counting_hook(name: str, weight: Weight, current: list[Batch], counts: dict[str, NDArray[np.int64]]) -> Any:
    stack = input_stack(weight)

    def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = first_tensor((*args, *kwargs.values()))
        flat, real = x.reshape(-1, x.shape[-1]), current[0].positions(stack).real.flatten().bool()
        if len(flat) != len(real):
            raise InputError(
                f"{weight.module} sees {len(flat)} positions of a batch of {len(real)}; it must see each once"
            )
        chosen = flat[real.to(x.device)]
        if not torch.isfinite(chosen).all():
            raise InputError(f"{name} is NaN or infinite on the calibration text; check the model's weights")
        counts[name] = counts.get(name, 0) + bin_counts(chosen)

    return hook


class ActivationQuantizer:
    """Hooks that round the inputs of linear layers; `use` copies a row of the table into the buffer they read."""

    def __init__(self, model: PreTrainedModel, table: ActivationTable) -> None:
        self.table = instance("table", table, ActivationTable)
        modules = dict(model.named_modules())
        _check_modules(modules, table)
        highest = Grid(table.bits).highest
        scales = np.vstack([table.blind, table.alpha]) / np.float32(highest)
        self._scales = torch.from_numpy(scales).to(model.device)
        self._row = self._scales[0].clone()
        self._hooks: list[_Rounding] = []
        self._handles: list[RemovableHandle] = []
        for i, names in enumerate(table.modules.values()):
            hook = _Rounding(self._row[i], highest, len(names))
            self._hooks.append(hook)
            self._handles += [modules[name].register_forward_pre_hook(hook, with_kwargs=True) for name in names]

    def use(self, language: str | None = None) -> None:
        row = 0 if language is None else 1 + self.table.position(language)
        self._row.copy_(self._scales[row])
        self._forget()

    def close(self) -> None:
        """Removes the hooks; the model then computes as before."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._forget()

    def __enter__(self) -> "ActivationQuantizer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forget(self) -> None:
        for hook in self._hooks:
            hook.kept = None


class _Rounding:
    """The hook of a point: all `layers` that see it get the same rounded input, which is computed once."""

    def __init__(self, scale: Tensor, highest: int, layers: int) -> None:
        self._scale, self._highest, self._layers = scale, highest, layers
        self.kept: tuple[Tensor, int, Tensor] | None = None
        self._uses = 0

    def __call__(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        x = first_tensor((*args, *kwargs.values()))
        rounded = self._once(x)
        changed = tuple(rounded if value is x else value for value in args)
        return changed, {name: rounded if value is x else value for name, value in kwargs.items()}

    def _once(self, x: Tensor) -> Tensor:
        if x.is_inference():  # has no version counter, so in-place changes cannot be detected
            return self.rounded(x)
        # the version tells whether the tensor was changed in place, or another has its address
        if self.kept is None or self.kept[0] is not x or self.kept[1] != x._version:
            self.kept, self._uses = (x, x._version, self.rounded(x)), 0
        rounded = self.kept[2]
        self._uses += 1
        if self._uses == self._layers:  # no other layer needs it
            self.kept = None
        return rounded

    def rounded(self, x: Tensor) -> Tensor:
        return (x / self._scale).round_().clamp_(-self._highest, self._highest).mul_(self._scale)


def _check_modules(modules: dict[str, nn.Module], table: ActivationTable) -> None:
    for name in (name for names in table.modules.values() for name in names):
        if name not in modules:
            raise InputError(f"the model has no module {name}; the table must be made from the same model")
        if any(isinstance(hook, _Rounding) for hook in modules[name]._forward_pre_hooks.values()):
            raise InputError(f"the input of {name} is already rounded; close the other activation quantizer first")
