"""Quantized activations: their distribution per language at the inputs of linear layers, and hooks that round them.

The threshold of activations is not part of the codes of any weight. A table with one row per language therefore costs a
few bytes, and switching languages copies one row.
"""

from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fairbits.core.checks import instance
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.core.tensors import first_tensor
from fairbits.forward.batches import Batch, batches
from fairbits.forward.body_and_head import split_head
from fairbits.forward.collect import positions_at_once
from fairbits.forward.recorder import probed_linears
from fairbits.forward.windows import Text
from fairbits.models.architecture.architecture import Architecture, Weight
from fairbits.models.scales.grid import Grid
from fairbits.quantization.gptq.hessian import stack_of
from fairbits.serve.overlays.activation_table import BINS, ActivationRecord, ActivationTable, Magnitudes, bin_counts

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Points = dict[str, list[Weight]]


def text_of(text: Text, language: str) -> Text:
    """Returns the windows of one language. Documents keep their numbers; those of other languages have no windows."""
    own = text.lang == language
    windows = tuple(window for window in text.windows if own[window.document])
    if not windows:
        raise InputError(
            f"the text has nothing in {language}; every language needs text to compute its thresholds: "
            "add text in it, or leave the language out"
        )
    return replace(text, windows=windows)


def activation_points(architecture: Architecture, model: nn.Module) -> tuple[Points, dict[str, str]]:
    """Returns the linear layers of blocks by the input they share, and why the inputs of others are not quantized."""
    linears, left_out = probed_linears(architecture, model)
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
    model: "PreTrainedModel", architecture: Architecture, text: Text, *, progress: Progress | None = None
) -> ActivationRecord:
    """Returns how |x| is distributed at every point in every language, after one pass over the text.

    All inputs of a map count except padding: a start token is rounded like any other. Languages are processed one by
    one with the model as it is in memory, so its weights may already be quantized.
    """
    points, left_out = activation_points(architecture, model)
    parts = {code: text_of(text, code) for code in text.languages}
    device = str(model.device)
    split = split_head(model, next(batches(text, positions=1)).on(device))
    positions = positions_at_once(model, split)
    seen, done = {}, 0
    for code, own in parts.items():
        with _Watch(model, points) as watch:
            for batch in batches(own, positions=positions):
                watch.batch = batch
                split.body(batch.on(device))
                done += len(batch.document)
                if progress is not None:
                    progress("recording activations", done, len(text.windows))
        seen[code] = tuple(watch.distribution(name, code) for name in points)
    modules = {name: tuple(weight.module for weight in weights) for name, weights in points.items()}
    return ActivationRecord(modules, seen, left_out)


class _Watch:
    """Counts magnitudes by bin at every point during a `with` statement; `batch` is the current batch."""

    batch: Batch

    def __init__(self, model: nn.Module, points: Points) -> None:
        self._model, self._points = model, points
        self._counts: dict[str, NDArray[np.int64]] = {}
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> "_Watch":
        for name, weights in self._points.items():
            module = self._model.get_submodule(weights[0].module)
            self._handles.append(module.register_forward_pre_hook(self._hook(name, weights[0]), with_kwargs=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def distribution(self, name: str, language: str) -> Magnitudes:
        """Returns the distribution at a point."""
        if name not in self._counts:
            raise InputError(f"text in {language} does not reach {name}; every linear layer of a block must see it")
        return Magnitudes.of(self._counts[name])

    def _hook(self, name: str, weight: Weight) -> Any:
        stack = stack_of(weight)

        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = first_tensor((*args, *kwargs.values()))
            flat, real = x.reshape(-1, x.shape[-1]), self.batch.positions(stack).real.flatten().bool()
            if len(flat) != len(real):
                raise InputError(
                    f"{weight.module} sees {len(flat)} positions of a batch of {len(real)}; it must see each once"
                )
            chosen = flat[real.to(x.device)]
            if not torch.isfinite(chosen).all():
                raise InputError(f"{name} is NaN or infinite on the calibration text; check the model's weights")
            counts = self._counts.setdefault(name, np.zeros(BINS, dtype=np.int64))
            counts += bin_counts(chosen)

        return hook


class ActivationQuantizer:
    """Hooks on a loaded model that round the inputs of its linear layers to the grid of a table, until `close`.

    All hooks read their steps from one buffer on the model's device: `use` copies a row of the table into it. It starts
    with the language-blind row.
    """

    def __init__(self, model: "PreTrainedModel", table: ActivationTable) -> None:
        self.table = instance("table", table, ActivationTable)
        modules = dict(model.named_modules())
        _check_modules(modules, table)
        grid = Grid(table.bits)
        scales = np.vstack([table.blind, table.alpha]) / np.float32(grid.highest)
        self._scales = torch.from_numpy(scales).to(model.device)
        self._row = self._scales[0].clone()
        self._hooks = [
            _Rounding(self._row[i], grid.highest, len(seeing)) for i, seeing in enumerate(table.modules.values())
        ]
        self._handles = [
            modules[name].register_forward_pre_hook(hook, with_kwargs=True)
            for hook, seeing in zip(self._hooks, table.modules.values(), strict=True)
            for name in seeing
        ]

    def use(self, language: str | None = None) -> None:
        """Switches to the thresholds of a language; None: the language-blind ones."""
        row = 0 if language is None else 1 + self.table.position(language)
        self._row.copy_(self._scales[row])
        self._start(per_token=False)

    def dynamic(self) -> None:
        """Switches to dynamic thresholds: the largest magnitude of every position, without the table."""
        self._start(per_token=True)

    def close(self) -> None:
        """Removes the hooks; the model then computes as before."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._start(per_token=False)

    def __enter__(self) -> "ActivationQuantizer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, *, per_token: bool) -> None:
        for hook in self._hooks:
            hook.start(per_token=per_token)


class _Rounding:
    """The hook of a point: all maps that see it get the same rounded input, which is computed once."""

    def __init__(self, scale: Tensor, highest: int, maps: int) -> None:
        """`scale` is a view of the buffer of all points, `maps` the number of linear layers that see this one."""
        self._scale, self._highest, self._maps = scale, highest, maps
        self.start(per_token=False)

    def start(self, *, per_token: bool) -> None:
        """Clears the cached result and sets the mode."""
        self._per_token = per_token
        self._kept: tuple[Tensor, int, Tensor] | None = None
        self._given = 0

    def __call__(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        x = first_tensor((*args, *kwargs.values()))
        rounded = self._once(x)
        changed = tuple(rounded if each is x else each for each in args)
        return changed, {name: rounded if each is x else each for name, each in kwargs.items()}

    def _once(self, x: Tensor) -> Tensor:
        if x.is_inference():  # has no version counter, so in-place changes cannot be detected
            return self.rounded(x)
        # the version tells whether the tensor was changed in place, or another has its address
        if self._kept is None or self._kept[0] is not x or self._kept[1] != x._version:
            self._kept, self._given = (x, x._version, self.rounded(x)), 0
        found = self._kept[2]
        self._given += 1
        if self._given == self._maps:  # no other map needs it
            self._kept = None
        return found

    def rounded(self, x: Tensor) -> Tensor:
        """Returns every entry rounded to the nearest grid value, in the type of x."""
        scale = self._scale
        if self._per_token:
            # a position of zeros stays 0 with any scale
            scale = x.abs().amax(-1, keepdim=True).div_(self._highest).clamp_(min=torch.finfo(x.dtype).tiny)
        return (x / scale).round_().clamp_(-self._highest, self._highest).mul_(scale)


def _check_modules(modules: dict[str, nn.Module], table: ActivationTable) -> None:
    for names in table.modules.values():
        for name in names:
            if name not in modules:
                raise InputError(f"the model has no module {name}; the table must be made from the same model")
            if any(isinstance(hook, _Rounding) for hook in modules[name]._forward_pre_hooks.values()):
                raise InputError(f"the input of {name} is already rounded; close the other activation quantizer first")
