"""The hooks that sum activations at the points of a model."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fairbits.errors import InputError
from fairbits.measure.passes.batches import Batch
from fairbits.measure.passes.point import Point, PointKind
from fairbits.model.architecture import Architecture, Weight
from fairbits.model.groups import choose_scales, error_of
from fairbits.model.scheme import Scheme

if TYPE_CHECKING:
    from transformers import PreTrainedModel


KINDS: tuple[PointKind, ...] = ("block", "mlp", "attention", "input")
OUTPUTS: Mapping[PointKind, str] = {"mlp": "mlp_down", "attention": "attention_out"}
"""The role of the linear map whose output is the point: what a block adds to its stream, before any later norm."""


def points_of(architecture: Architecture, model: nn.Module) -> tuple[Point, ...]:
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


def probed_linears(architecture: Architecture, model: nn.Module) -> tuple[dict[str, Weight], dict[str, str]]:
    """Returns the linear maps of the blocks whose inputs and gradients can be observed, and why the others cannot."""
    modules = dict(model.named_modules())
    seen, left_out = {}, {}
    for block in architecture.blocks:
        for name, weight in block.linears.items():
            if weight.role == "router":
                left_out[name] = "a router is not quantized"
            elif not is_observable(weight, modules):
                left_out[name] = "experts stacked in one tensor have no modules of their own"
            else:
                seen[name] = weight
    return seen, left_out


def is_observable(weight: Weight, modules: Mapping[str, nn.Module]) -> bool:
    """Returns whether this linear map has a module of its own."""
    module = modules.get(weight.module)
    return weight.sees is not None and weight.stacked is None and getattr(module, "weight", None) is not None


FORMS = ("kronecker", "token", "diagonal")
KRONECKER, TOKEN, DIAGONAL = range(3)


class Recorder:
    """The sums over all batches so far, in float64 except second moments. Per batch: `start`, run the model, `finish`.

    Activations x are recorded at the points, Fisher gradients g at the output of every linear map. To first order, a
    weight error ΔW changes logits · ξ by Σ_t g_tᵀ ΔW x_t, and half the mean square of that is the damage (see `run`).
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
    ) -> None:
        """`documents` holds the language of each document, by index."""
        self._languages, self._device = documents, model.device
        self._modules = dict(model.named_modules())
        self.points, self.linears = points, linears
        self._schemes = {
            scheme: {
                name: choose_scales(self._matrix(weight), scheme, dtype=torch.float32)[0].to(self._device)
                for name, weight in linears.items()
            }
            for scheme in schemes
        }
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

    def start(self, batch: Batch) -> None:
        """Makes this batch the one that the hooks record."""
        self._batch = batch
        self._reported = dict.fromkeys(self.linears, 0)
        self._passed: set[int] = set()  # a recomputed block fires its hooks a second time
        languages = self._languages[batch.document]
        members = nn.functional.one_hot(languages, int(self._languages.max()) + 1).T.double()
        rows, device = len(batch.document), self._device
        self._members = members.to(device)
        self._activity = torch.zeros(3, rows, len(self.points), device=device)
        self._damage = torch.zeros(len(self._schemes), len(FORMS), rows, len(self.linears), device=device)
        stacks = {point.stack for point in self.points}
        self._positions = {stack: batch.positions(stack).on(device) for stack in stacks}

    def finish(self) -> None:
        """Adds the sums of the batch's rows to their documents."""
        for name, times in self._reported.items():
            if times != 1:
                raise InputError(
                    f"{name} was used {times} times in one forward pass; only maps that are used once can be audited"
                )
        rows = self._batch.document
        for sums, values in zip((self.positions, self.norm, self.square), self._activity.cpu(), strict=True):
            sums.index_add_(0, rows, values.double())
        for forms, values in zip(self.damage.values(), self._damage.cpu(), strict=True):
            for form, each in zip(FORMS, values, strict=True):
                forms[form].index_add_(0, rows, each.double())

    def attach(self) -> list[RemovableHandle]:
        """Returns the handles of all hooks, which must be removed after the pass."""
        handles = []
        for index, point in enumerate(self.points):
            module = self._modules[point.module]
            if point.kind == "input":
                handles.append(module.register_forward_pre_hook(self._seen(index, point), with_kwargs=True))
            else:
                handles.append(module.register_forward_hook(self._given(index, point)))
        stacks = {point.name: point.stack for point in self.points}
        for index, (name, weight) in enumerate(self.linears.items()):
            stack = stacks[f"{weight.sees}.input"]
            hook = self._applied(index, name, stack)
            handles.append(self._modules[weight.module].register_forward_hook(hook, with_kwargs=True))
        return handles

    def _seen(self, index: int, point: Point) -> Callable[..., None]:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._activations(index, point, _tensor(args or tuple(kwargs.values())))

        return hook

    def _given(self, index: int, point: Point) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
            self._activations(index, point, _tensor(output))

        return hook

    def _applied(self, index: int, name: str, stack: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
            if output.requires_grad:
                x = _tensor(args or tuple(kwargs.values())).detach()
                output.register_hook(  # type: ignore[no-untyped-call]
                    lambda g: self._gradient(index, name, stack, x, g.detach())
                )

        return hook

    @torch.no_grad()
    def _activations(self, index: int, point: Point, x: Tensor) -> None:
        if index in self._passed:
            return
        self._passed.add(index)
        text = self._positions[point.stack].text
        x = _rows_of(x.detach(), text).float()
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
        g = _rows_of(g, positions.real).float() * real
        self._add(self.gradients, name, torch.bmm(positions.text[:, None], g.square())[:, 0])
        x = _rows_of(x, positions.real).float() * real
        W = self._matrix(self.linears[name])
        for kept, (scheme, scales) in zip(self._damage, self._schemes.items(), strict=True):
            shift = nn.functional.linear(x, error_of(W, scheme, scales[name]))  # ΔW x
            effects = torch.bmm(g, shift.transpose(1, 2)).square_()  # of the shift at t on the gradient at s
            alone = effects.diagonal(dim1=1, dim2=2)
            kept[TOKEN, :, index] = alone.sum(1) / 2
            pairs = torch.bmm(text[:, None], torch.bmm(effects, text[..., None]))[:, 0, 0]
            special = (alone * (1 - text)).sum(1)
            kept[KRONECKER, :, index] = (pairs / text.sum(1).clamp(min=1) + special) / 2
            kept[DIAGONAL, :, index] = shift.mul_(g).square_().sum((1, 2)) / 2

    def _add(self, sums: dict[str, Tensor], name: str, rows: Tensor) -> None:
        """Adds the rows of the batch (rows, width) to the sums of their languages."""
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

    def _matrix(self, weight: Weight) -> Tensor:
        """Returns the weights of a linear map as (out, in)."""
        W: Tensor = self._modules[weight.module].weight.detach()
        return W.T if weight.transposed else W


def _tensor(value: Any) -> Tensor:
    while not isinstance(value, Tensor):
        value = value[0]
    return value


def _rows_of(x: Tensor, positions: Tensor) -> Tensor:
    """Returns activations as (rows, length, width); some families flatten rows and length."""
    return x if x.ndim == 3 else x.reshape(*positions.shape, -1)
