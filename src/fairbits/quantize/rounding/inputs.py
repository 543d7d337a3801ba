"""What the linear maps of a block see of each language, and what rounding them does to what they give."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fairbits.checks import Floats
from fairbits.errors import InputError
from fairbits.measure.passes.batches import Batch
from fairbits.measure.passes.text import Text
from fairbits.model.architecture import Weight
from fairbits.model.groups import Notes
from fairbits.quantize.rounding.gptq import factored
from fairbits.quantize.rounding.layer import KnownInput
from fairbits.quantize.rounding.lockstep import Enough

SAMPLE = 128
"""Positions of a language, about, that tell well enough what rounding a map does to it."""
PANEL = 256
"""Columns of H that are added up at a time: of those before them the mirror image is known."""


@dataclass(frozen=True, eq=False)
class Audience:
    """The languages of a text: that of each document, how many positions of text each has in a stack, its weight π."""

    languages: tuple[str, ...]
    language_of: Tensor
    positions: Mapping[str, Floats]
    pi: Floats


def audience(text: Text, weights: Mapping[str, float]) -> Audience:
    """Returns the languages of a text with the weights of a plan; one that the plan does not name has weight 0."""
    language_of = text.language_of
    counts = {stack: np.zeros(len(text.languages)) for stack in ("main", "encoder")}
    for window in text.windows:
        counts["main"][language_of[window.document]] += sum(window.main.text)
        if window.encoder is not None:
            counts["encoder"][language_of[window.document]] += sum(window.encoder.text)
    pi = np.array([weights.get(code, 0.0) for code in text.languages])
    return Audience(text.languages, torch.from_numpy(language_of), counts, pi)


@dataclass(frozen=True)
class Point:
    """An input that linear maps share: a module that sees it, its stack, and what is to be known of it."""

    module: str
    stack: str
    squares: bool
    products: bool


class Inputs:
    """The inputs of a block by name (`Weight.sees`): E_λ[x_j²] and H = Σ_λ π_λ E_λ[x xᵀ] over positions of text."""

    def __init__(self, audience: Audience, points: Mapping[str, Point]) -> None:
        self._audience, self._points = audience, points
        self._squares: dict[str, Tensor] = {}
        self._products: dict[str, Tensor] = {}
        self._passed: set[str] = set()
        self._scattered: set[str] = set()  # inputs of experts, who get a choice of the positions

    @contextmanager
    def watched(self, model: nn.Module) -> Iterator[Callable[[Batch], None]]:
        """Adds up whatever passes meanwhile; gives the function that is to be called with each batch before it.

        Once a batch has passed all points, Enough is raised.
        """
        with _hooked() as (handles, here):
            for name, point in self._points.items():
                hook = self._hook(name, point, here)
                handles.append(model.get_submodule(point.module).register_forward_pre_hook(hook, with_kwargs=True))
            yield here.start

    def known(self, name: str | None) -> KnownInput | None:
        """Returns what is known of an input; None if it was not seen position by position."""
        if name is None or name not in self._passed or name in self._scattered:
            return None
        notes: Notes = ()
        squares, H, factor = None, self._products.get(name), None
        if name in self._squares:
            squares = self._squares[name].cpu().numpy() / self._counts(name)[:, None]
        if H is not None:
            H = H.tril() + H.tril(-1).T
            if not torch.isfinite(H).all():
                raise InputError(f"{name} is NaN or infinite on the calibration text; check the model's weights")
            factor, notes = factored(H)
        return KnownInput(self._audience.languages, squares, self._audience.pi, H, factor, notes)

    def _counts(self, name: str) -> Floats:
        """Returns how many positions of text each language has at an input, at least 1."""
        own = self._audience.positions["encoder"]
        encoder = self._points[name].stack == "encoder" and own.any()
        return np.maximum(own if encoder else self._audience.positions["main"], 1)

    def _hook(self, name: str, point: Point, here: "_Here") -> Callable[..., None]:
        shares = torch.from_numpy(np.sqrt(self._audience.pi / self._counts(name))).float()
        count = len(self._audience.languages)

        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            here.passed.add(name)
            x = here.text_of(_tensor((*args, *kwargs.values())), point.stack)
            if x is None:
                self._scattered.add(name)
                return
            self._passed.add(name)
            lang = self._audience.language_of[here.document(point.stack)].to(x.device)
            if point.squares:
                sums = (nn.functional.one_hot(lang, count).T.float() @ x.square()).double()
                self._squares[name] = self._squares[name].add_(sums) if name in self._squares else sums
            if point.products:
                if name not in self._products:
                    self._products[name] = torch.zeros(x.shape[1], x.shape[1], device=x.device)
                _add_products(self._products[name], x.mul_(shares.to(x.device)[lang, None]))
            if len(here.passed) == len(self._points) and not self._scattered:  # experts are called one by one
                raise Enough

        return hook


def _add_products(H: Tensor, x: Tensor) -> None:
    """Adds xᵀx to H on and below its diagonal, panel by panel; what lies above within a panel comes along."""
    for start in range(0, len(H), PANEL):
        stop = start + PANEL
        H[start:, start:stop].addmm_(x[:, start:].T, x[:, start:stop])


class Effects:
    """E_λ‖ΔW x‖² / E_λ‖W x‖² of the maps of a block, x as the quantized block has it, on a sample of the positions."""

    def __init__(self, audience: Audience, changes: Mapping[str, tuple[Weight, Tensor]]) -> None:
        """`changes` holds ΔW (out, in) of every map, by its name."""
        self._audience, self._changes = audience, changes
        count = len(audience.languages)
        self._sums = {
            name: torch.zeros(2, count, dtype=torch.float64, device=change.device)
            for name, (_, change) in changes.items()
        }

    @contextmanager
    def watched(self, model: nn.Module) -> Iterator[Callable[[Batch], None]]:
        """Adds up whatever passes meanwhile; gives the function that is to be called with each batch before it."""
        with _hooked() as (handles, here):
            for name, (weight, change) in self._changes.items():
                module = model.get_submodule(weight.module)
                hook = self._hook(name, stack_of(weight), change, here)
                handles.append(module.register_forward_hook(hook, with_kwargs=True))
            yield here.start

    def error(self, name: str) -> dict[str, float]:
        """Returns the relative error of each language; empty where the map's input or output was not seen."""
        if name not in self._sums or not self._sums[name].any():
            return {}
        if not torch.isfinite(self._sums[name]).all():
            raise InputError(f"{name} gives NaN or infinity on the calibration text; check the model's weights")
        damage, energy = self._sums[name].tolist()
        pairs = zip(self._audience.languages, damage, energy, strict=True)
        return {code: d / e if e > 0 else float(d > 0) for code, d, e in pairs}

    def _hook(self, name: str, stack: str, change: Tensor, here: "_Here") -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if not isinstance(output, Tensor):  # a router, which gives more than a product
                return
            every = self._every(stack)
            x, y = here.text_of(_tensor((*args, *kwargs.values())), stack, every), here.text_of(output, stack, every)
            if x is None or y is None:
                return
            shift = x @ change.T
            bias = getattr(module, "bias", None)
            before = y.sub_(shift) if bias is None else y.sub_(shift).sub_(bias)
            lang = self._audience.language_of[here.document(stack, every)].to(x.device)
            marks = nn.functional.one_hot(lang, len(self._audience.languages)).double()
            self._sums[name] += torch.stack([each.square_().sum(1) for each in (shift, before)]).double() @ marks

        return hook

    def _every(self, stack: str) -> int:
        """Returns how many positions there are for one that is looked at."""
        own = self._audience.positions["encoder"]
        counts = own if stack == "encoder" and own.any() else self._audience.positions["main"]
        return max(int(counts.min()) // SAMPLE, 1)


class _Here:
    """The batch that passes now: which of its positions hold text, and of which document.

    Sums over languages are products with what is true of each position: index_add_ adds in any order on a GPU.
    """

    def start(self, batch: Batch) -> None:
        self.passed: set[str] = set()
        self._batch = batch
        self._found: dict[str, tuple[int, Tensor, Tensor]] = {}
        self._placed: dict[tuple[str, int], Tensor] = {}

    def text_of(self, x: Tensor, stack: str, every: int = 1) -> Tensor | None:
        """Returns the positions of text of activations, (positions, width); None if they are not those of the batch.

        Of `every` so many positions one is returned.
        """
        total, at, _ = self._positions(stack)
        flat = x.reshape(-1, x.shape[-1])
        if len(flat) != total:
            return None
        if (stack, every) not in self._placed:
            self._placed[stack, every] = at[::every].to(x.device)
        return flat[self._placed[stack, every]].float()

    def document(self, stack: str, every: int = 1) -> Tensor:
        """Returns the document of each position of text that `text_of` returns."""
        return self._positions(stack)[2][::every]

    def _positions(self, stack: str) -> tuple[int, Tensor, Tensor]:
        if stack not in self._found:
            text = self._batch.positions(stack).text
            at = text.flatten().nonzero()[:, 0]
            self._found[stack] = text.numel(), at, self._batch.document[at // text.shape[1]]
        return self._found[stack]


@contextmanager
def _hooked() -> Iterator[tuple[list[RemovableHandle], _Here]]:
    handles: list[RemovableHandle] = []
    try:
        yield handles, _Here()
    finally:
        for handle in handles:
            handle.remove()


def stack_of(weight: Weight) -> str:
    """Returns the stack whose positions a linear map sees."""
    return "encoder" if weight.sees == "encoder_output" else weight.stack


def _tensor(values: Iterable[Any]) -> Tensor:
    return next(each for each in values if isinstance(each, Tensor))
