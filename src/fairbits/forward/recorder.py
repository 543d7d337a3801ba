"""Recorder: hooks that sum activations, gradients and predicted damage at the points of a model (PassSettings)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fairbits.core.errors import InputError
from fairbits.core.memory import KEPT_ERRORS_BYTES
from fairbits.core.progress import Progress
from fairbits.core.tensors import first_tensor
from fairbits.forward.batches import Batch
from fairbits.forward.experts import ExpertCounter, expert_points
from fairbits.forward.points import Point, PointKind
from fairbits.forward.windows import TokenizedText
from fairbits.models.architecture.architecture import Architecture, Weight
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import is_gpu
from fairbits.models.scales.groups import choose_scales, rounding_error
from fairbits.models.scales.scheme import Scheme

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def side_by_side(x: Tensor, positions: Tensor) -> Tensor:
    """Returns the states of a block; several states of a position, first or third in shape, become a wide one."""
    if x.ndim == 4 and x.shape[:2] == positions.shape:
        return x.flatten(2)
    return x.permute(1, 2, 0, 3).flatten(2) if x.ndim == 4 and x.shape[1:3] == positions.shape else x


def as_rows(x: Tensor, positions: Tensor) -> Tensor:
    """Returns activations as (rows, length, channels); some families flatten rows and length."""
    received = x.numel() // x.shape[-1]
    if received != positions.numel():
        raise InputError(
            f"a layer received {received:,} positions for an input of {positions.numel():,} tokens; only layers that "
            "process every token once are supported"
        )
    return x if x.ndim == 3 else x.reshape(*positions.shape, -1)


@contextmanager
def removed_hooks() -> Iterator[list[RemovableHandle]]:
    """Gives a list for the handles of hooks, which are all removed in the end."""
    handles: list[RemovableHandle] = []
    try:
        yield handles
    finally:
        for handle in handles:
            handle.remove()


KINDS: tuple[PointKind, ...] = ("block", "mlp", "attention", "input")
OUTPUTS: Mapping[PointKind, str] = {"mlp": "mlp_down", "attention": "attention_out"}
"""The role of the linear layer whose output is the point: what a block adds to its stream, before any later norm."""


def measuring_points(architecture: Architecture, model: nn.Module) -> tuple[Point, ...]:
    """Returns the points of a model that can be observed, in the order of blocks."""
    modules = dict(model.named_modules())
    points: dict[str, Point] = {}
    for block in architecture.blocks:
        index, stack = block.index, block.stack
        points[f"blocks.{index}"] = Point(f"blocks.{index}", "block", index, stack, block.module)
        for kind, role in OUTPUTS.items():
            for weight in block.linears.values():
                # the name distinguishes self- from cross-attention; experts are summands and cannot be observed
                if weight.sees == f"blocks.{index}.{role}" and is_observable(weight, modules):
                    name = f"blocks.{index}.{kind}"
                    points[name] = Point(name, kind, index, stack, weight.module)
        for weight in block.linears.values():
            if weight.sees is not None and is_observable(weight, modules):
                name = f"{weight.sees}.input"
                seen_stack = "encoder" if weight.sees == "encoder_output" else stack
                points.setdefault(name, Point(name, "input", index, seen_stack, weight.module))
    return tuple(points.values())


def observable_linears(architecture: Architecture, model: nn.Module) -> tuple[dict[str, Weight], dict[str, str]]:
    """Returns the linear layers of the blocks whose inputs and gradients can be observed, and why the others cannot."""
    modules = dict(model.named_modules())
    seen, left_out = {}, {}
    for block in architecture.blocks:
        for name, weight in block.linears.items():
            if weight.is_control:
                left_out[name] = f"a {weight.role} is not quantized"
            elif not is_observable(weight, modules):
                left_out[name] = "experts stacked in one tensor are not separate modules"
            else:
                seen[name] = weight
    return seen, left_out


def is_observable(weight: Weight, modules: Mapping[str, nn.Module]) -> bool:
    """Returns whether this linear layer is a separate module."""
    module = modules.get(weight.module)
    return weight.sees is not None and weight.stacked is None and getattr(module, "weight", None) is not None


FORMS = ("kronecker", "token", "diagonal")
KRONECKER, TOKEN, DIAGONAL = range(3)


class Recorder:
    """The sums over all batches so far, in float64 except second moments.

    Within `attached`, per batch: `start`, run the model, `finish`. In the end: `collect`.

    Activations x are recorded at the points, Fisher gradients g at the output of every linear layer. To first order, a
    weight error ΔW changes logits · ξ by Σ_t g_tᵀ ΔW x_t, and half the mean square of that is the damage.
    The forms differ in their treatment of the products between positions. For a window of T positions they are
    "kronecker"  ½ Σ_s Σ_t (g_sᵀ ΔW x_t)² / T over its T positions of text: g and x independent within the
                 window, as in K-FAC; special tokens, whose x can be huge and g near 0, as in "token"
    "token"      ½ Σ_t (g_tᵀ ΔW x_t)²: positions are treated as independent of each other
    "diagonal"   ½ Σ_t Σ_i (g_ti (ΔW x_t)_i)²: output channels as well
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        points: tuple[Point, ...],
        linears: Mapping[str, Weight],
        *,
        documents: Tensor,
        schemes: tuple[Scheme, ...],
        second_moments: bool,
        left_out: Mapping[str, str] | None = None,
        experts: ExpertCounter | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        """`documents` has the language of each document; `left_out` says which layers are not measured, and why."""
        self.left_out, self.experts = left_out or {}, experts
        self._languages = documents
        self._device = torch.device(model.device if device is None else device)
        self._modules = dict(model.named_modules())
        self.points, self.linears, self.schemes = points, linears, schemes
        self._scales: dict[tuple[Scheme, str], Tensor] = {}
        self._errors: dict[tuple[Scheme, str], Tensor] = {}  # ΔW, if all attached layers together may keep it
        self._second_moments = second_moments
        count = len(documents)
        self.positions, self.norm, self.square = (
            torch.zeros(count, len(points), dtype=torch.float64) for _ in range(3)
        )
        self.channels: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        self.inputs: dict[str, Tensor] = {}
        self.damage = {
            scheme: {form: torch.zeros(count, len(linears), dtype=torch.float64) for form in FORMS}
            for scheme in schemes
        }
        self._point_columns: list[int] = []
        self._linear_columns: list[int] = []
        # documents and columns of batches, with the sums of their rows, on the device
        self._pending: list[tuple[Tensor, list[int], list[int], Tensor, Tensor]] = []

    def start(self, batch: Batch) -> None:
        self._batch = batch
        self._reported = {name: 0 for index, name in enumerate(self.linears) if index in self._linear_columns}
        # of the layers that were applied: column, stack, shapes of input and output, dtype
        self._applications: dict[str, tuple[int, str, torch.Size, torch.Size, torch.dtype]] = {}
        self._passed: set[int] = set()  # a recomputed block fires its hooks a second time
        languages = self._languages[batch.document]
        members = nn.functional.one_hot(languages, int(self._languages.max()) + 1).T.double()
        rows, device = len(batch.document), self._device
        self._members = members.to(device, non_blocking=True)  # a GPU need not finish first
        self._activity = torch.zeros(3, rows, len(self._point_columns), device=device)
        self._damage = torch.zeros(len(self.schemes), len(FORMS), rows, len(self._linear_columns), device=device)
        stacks = {self.points[column].stack for column in self._point_columns}
        self._positions = {stack: batch.positions(stack).on(device) for stack in stacks}
        # a GPU need not finish first
        self._unpadded = {s: not is_gpu(device) and bool(batch.positions(s).real.all()) for s in stacks}
        if self.experts is not None:
            self.experts.start(batch)

    def finish(self) -> None:
        """Keeps the sums of the batch's rows, on a GPU without waiting for them."""
        with_gradient = {self.linears[name].block for name, times in self._reported.items() if times}
        for name, (column, stack, inputs, outputs, dtype) in self._applications.items():
            # no gradient flows through what chooses positions in sparse attention; the rest of its block has some
            if not self._reported[name] and self.linears[name].block in with_gradient:
                x, g = (torch.zeros(shape, dtype=dtype, device=self._device) for shape in (inputs, outputs))
                self._gradient(column, name, stack, x, g)
        for name, times in self._reported.items():
            if times != 1:
                raise InputError(
                    f"{name} was used {times} times in one forward pass; only layers that are used once can be audited"
                )
        columns = self._point_columns, self._linear_columns
        self._pending.append((self._batch.document, *columns, self._activity, self._damage))
        if not is_gpu(self._device):
            self.collect()

    def collect(self) -> None:
        """Adds the sums of all rows so far to their documents, and moves all sums to main memory."""
        for document, points, linears, activity, damage in self._pending:
            for sums, values in zip((self.positions, self.norm, self.square), activity.cpu(), strict=True):
                _add_at(sums, document, points, values)
            for forms, values in zip(self.damage.values(), damage.cpu(), strict=True):
                for form, rows in zip(FORMS, values, strict=True):
                    _add_at(forms[form], document, linears, rows)
        self._pending.clear()
        for kept in (self.channels, self.gradients, self.inputs):
            kept.update({name: sums.cpu() for name, sums in kept.items() if sums.device.type != "cpu"})

    @contextmanager
    def attached(self, block: int | None = None) -> Iterator[None]:
        """Attaches the hooks of all points and linear layers, or of one block, whose weights must be loaded."""
        self._point_columns = [i for i, point in enumerate(self.points) if block is None or point.block == block]
        linears = {name: weight for name, weight in self.linears.items() if block is None or weight.block == block}
        self._linear_columns = [i for i, name in enumerate(self.linears) if name in linears]
        size = sum(self._matrix(weight).numel() for weight in linears.values()) * len(self.schemes)
        for name, weight in linears.items():
            for scheme in self.schemes:
                scales, _ = choose_scales(self._matrix(weight), scheme, dtype=torch.float32)
                self._scales[scheme, name] = scales.to(self._device)
                if size * torch.float32.itemsize <= KEPT_ERRORS_BYTES:
                    self._errors[scheme, name] = self._error(weight, scheme)
        handles = self._attach(linears)
        if self.experts is not None:
            handles += self.experts.attach(self._modules, block=block)
        try:
            yield
        finally:
            self._scales.clear()
            self._errors.clear()
            if block is not None:  # these are as large as weights, and no other block adds to them
                self.inputs.update({name: sums.cpu() for name, sums in self.inputs.items()})
            for handle in handles:
                handle.remove()

    def _attach(self, linears: Mapping[str, Weight]) -> list[RemovableHandle]:
        """Returns the handles of the hooks; each hook has the column of its sums in the tables of a batch."""
        handles = []
        for column, index in enumerate(self._point_columns):
            point = self.points[index]
            module = self._modules[point.module]
            if point.kind == "input":
                hook = partial(self._on_input, column, point)
                handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
            else:
                handles.append(module.register_forward_hook(partial(self._on_output, column, point)))
        stacks = {point.name: point.stack for point in self.points}
        for column, (name, weight) in enumerate(linears.items()):
            hook = partial(self._on_linear, column, name, stacks[f"{weight.sees}.input"])
            handles.append(self._modules[weight.module].register_forward_hook(hook, with_kwargs=True))
        return handles

    def _on_input(self, index: int, point: Point, _module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self._activations(index, point, first_tensor(args or tuple(kwargs.values())))

    def _on_output(self, index: int, point: Point, _module: nn.Module, _args: Any, output: Any) -> None:
        self._activations(index, point, first_tensor((output,)))

    def _on_linear(
        self, index: int, name: str, stack: str, _module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any
    ) -> None:
        y, x = first_tensor((output,)), first_tensor(args or tuple(kwargs.values())).detach()
        self._applications[name] = index, stack, x.shape, y.shape, x.dtype
        if y.requires_grad:
            y.register_hook(lambda g: self._gradient(index, name, stack, x, g.detach()))

    @torch.no_grad()
    def _activations(self, index: int, point: Point, x: Tensor) -> None:
        if index in self._passed:
            return
        self._passed.add(index)
        text = self._positions[point.stack].text
        x = as_rows(side_by_side(x, text) if point.kind == "block" else x, text).detach().float()
        squares = x.square()
        energy = squares.sum(-1).mul_(text)
        for kept, values in zip(self._activity, (text, energy.sqrt(), energy), strict=True):
            kept[:, index] = values.sum(1)
        self._add(self.channels, point.name, torch.bmm(text[:, None], squares)[:, 0])
        if self._second_moments and point.kind == "input":
            self._add_products(self.inputs, point.name, x * text[..., None])

    @torch.no_grad()
    def _gradient(self, index: int, name: str, stack: str, x: Tensor, g: Tensor) -> None:
        positions = self._positions[stack]
        real, text = positions.real[..., None], positions.text
        self._reported[name] += 1
        x, g = as_rows(x, positions.real), as_rows(g, positions.real).float()
        if not self._unpadded[stack]:
            x, g = x * real, g * real
        self._add(self.gradients, name, torch.bmm(positions.text[:, None], g.square())[:, 0])
        products = torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float32
        x, g = x.to(products), g.to(products)
        for kept, scheme in zip(self._damage, self.schemes, strict=True):
            error = self._errors.get((scheme, name))
            error = self._error(self.linears[name], scheme) if error is None else error
            shift = nn.functional.linear(x, error.to(products))  # ΔW x
            effects = torch.bmm(g, shift.transpose(1, 2)).float().square_()  # of the shift at t on the gradient at s
            alone = effects.diagonal(dim1=1, dim2=2)
            kept[TOKEN, :, index] = alone.sum(1) / 2
            pairs = torch.bmm(text[:, None], torch.bmm(effects, text[..., None]))[:, 0, 0]
            special = (alone * (1 - text)).sum(1)
            kept[KRONECKER, :, index] = (pairs / text.sum(1).clamp(min=1) + special) / 2
            kept[DIAGONAL, :, index] = shift.mul_(g).square_().sum((1, 2), dtype=torch.float32) / 2

    def _add(self, sums: dict[str, Tensor], name: str, rows: Tensor) -> None:
        added = self._members @ rows.double()
        sums[name] = sums[name].add_(added) if name in sums else added

    def _add_products(self, sums: dict[str, Tensor], name: str, x: Tensor) -> None:
        """Adds Σ x xᵀ in float32 over the positions of each language; excluded positions are 0."""
        if name not in sums:
            sums[name] = torch.zeros(int(self._languages.max()) + 1, x.shape[-1], x.shape[-1], device=x.device)
        languages = self._languages[self._batch.document]
        for lang in sorted(set(languages.tolist())):
            rows = x[(languages == lang).to(x.device)].flatten(0, 1)
            sums[name][lang].addmm_(rows.T, rows)

    def _error(self, weight: Weight, scheme: Scheme) -> Tensor:
        return rounding_error(self._matrix(weight), scheme, self._scales[scheme, weight.name])

    def _matrix(self, weight: Weight) -> Tensor:
        W: Tensor = self._modules[weight.module].weight.detach()
        return W.T if weight.transposed else W


def _add_at(sums: Tensor, rows: Tensor, columns: list[int], values: Tensor) -> None:
    """Adds values (rows, columns) to some rows and columns of a table; a row may occur several times."""
    sums[:, columns] = sums[:, columns].index_add_(0, rows, values.double())


@dataclass(frozen=True, eq=False)
class PassSettings:
    """A model and the text to measure it on; `dtype` and `device` are what it computes in and on."""

    checkpoint: Checkpoint
    text: TokenizedText
    schemes: tuple[Scheme, ...] = field(kw_only=True)
    second_moments: bool = field(kw_only=True)
    dtype: torch.dtype = field(kw_only=True)
    device: str = field(kw_only=True)
    seed: int = field(kw_only=True)
    progress: Progress | None = field(kw_only=True)

    def recorder(self, model: "PreTrainedModel") -> Recorder:
        """Returns a recorder for the modules of this model, which need not have weights yet."""
        linears, left_out = observable_linears(self.checkpoint.architecture, model)
        if not linears:
            raise InputError(f"{self.checkpoint.target} has no linear layer whose activations can be observed")
        languages = torch.from_numpy(self.text.language_of)
        return Recorder(
            model,
            measuring_points(self.checkpoint.architecture, model),
            linears,
            documents=languages,
            schemes=self.schemes,
            second_moments=self.second_moments,
            left_out=left_out,
            experts=ExpertCounter(expert_points(self.checkpoint.architecture), languages, device=self.device),
            device=self.device,
        )
