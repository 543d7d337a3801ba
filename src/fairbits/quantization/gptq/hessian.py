"""The Hessian of GPTQ: H = Σ_λ π_λ E_λ[x xᵀ] of the inputs x of linear layers, and E_λ[x_j²] of each language.

For one linear layer, the mean squared change of its outputs is Σ_rows e H eᵀ, e being the change of a row of weights:
up to a factor 2, H is the Hessian of that loss. π are the weights of the languages, so the mixture of languages enters
GPTQ here and nowhere else. E_λ[x_j²] is the diagonal for one language alone, which the clipping threshold needs.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.core.tensors import all_finite, first_tensor
from fairbits.forward.batches import Batch
from fairbits.forward.experts import ExpertCall
from fairbits.forward.lockstep import StopBlock
from fairbits.forward.recorder import removed_hooks
from fairbits.forward.windows import TokenizedText
from fairbits.models.architecture.architecture import Weight
from fairbits.models.scales.groups import Notes
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization.gptq.columns import Factor, factorize
from fairbits.quantization.gptq.ranks import ALONE, Ranks


@dataclass(frozen=True, eq=False)
class TextLanguages:
    """The languages of a text."""

    languages: tuple[str, ...]
    language_of: Tensor  # the index of the language of each document
    positions: Mapping[str, Floats]  # by stack, how many positions of text each language has
    pi: Floats  # the weight π of each language

    @classmethod
    def of(cls, text: TokenizedText, weights: Mapping[str, float]) -> "TextLanguages":
        """Returns the languages of a text with the weights of a plan; a language without one has weight 0."""
        language_of = text.language_of
        counts = {stack: np.zeros(len(text.languages)) for stack in ("main", "encoder")}
        for window in text.windows:
            counts["main"][language_of[window.document]] += sum(window.main.text)
            counts["encoder"][language_of[window.document]] += window.encoder_text
        pi = np.array([weights.get(code, 0.0) for code in text.languages])
        return cls(text.languages, torch.from_numpy(language_of), counts, pi)

    def positions_in(self, stack: str) -> Floats:
        """Returns how many positions of text each language has in a stack; without an encoder, in the main one."""
        encoder = self.positions["encoder"]
        return encoder if stack == "encoder" and encoder.any() else self.positions["main"]


class ObservedBatch:
    """The batch that passes through the model now: which of its positions hold text, and of which document.

    Observers add up over languages by matrix products with one-hot languages: index_add_ would add in a different
    order each time on a GPU, and results would differ from run to run.
    """

    def start(self, batch: Batch) -> None:
        self.passed: set[str] = set()
        self._batch = batch
        self._text: dict[str, tuple[int, Tensor, Tensor]] = {}
        self._indices: dict[tuple[str, int], Tensor] = {}

    def at_text(self, x: Tensor, stack: str, every: int = 1) -> Tensor | None:
        """Returns activations at one in `every` positions of text; None if they have not the positions of the batch."""
        total, at, _ = self._positions(stack)
        flat = x.reshape(-1, x.shape[-1])
        if len(flat) != total:
            return None
        if (stack, every) not in self._indices:
            self._indices[stack, every] = at[::every].to(x.device)
        return flat.index_select(0, self._indices[stack, every]).float()

    def document(self, stack: str, every: int = 1) -> Tensor:
        """Returns the document of each position that `at_text` returns."""
        return self._positions(stack)[2][::every]

    def documents(self, stack: str) -> Tensor:
        """Returns the document of every position, -1 where there is no text."""
        total, at, document = self._positions(stack)
        documents = torch.full((total,), -1, dtype=document.dtype)
        documents[at] = document
        return documents

    def _positions(self, stack: str) -> tuple[int, Tensor, Tensor]:
        if stack not in self._text:
            text = self._batch.positions(stack).text
            at = text.flatten().nonzero()[:, 0]
            self._text[stack] = text.numel(), at, self._batch.document[at // text.shape[1]]
        return self._text[stack]


def input_stack(weight: Weight) -> str:
    """Returns the stack whose positions a linear layer sees."""
    return "encoder" if weight.sees == "encoder_output" else weight.stack


PANEL = 256  # columns of H that are added up at a time; see `_add_products`
GPU_PANEL = 1024  # the same on a GPU, where few large products are faster


@dataclass(frozen=True)
class InputPoint:
    """An input that layers share; `expert` is which expert of a module, `hidden` whether it is its last layer."""

    module: str
    stack: str
    squares: bool
    products: bool
    largest: bool = False
    expert: int | None = None
    hidden: bool = False


@dataclass(frozen=True, eq=False)
class InputStatistics:
    """The statistics of one input: E_λ[x²] (languages, in), π, H (in, in), and its factor if there is one."""

    languages: tuple[str, ...]
    squares: Floats | None
    pi: Floats
    H: Tensor | None
    factor: Factor | None
    notes: Notes


def input_points(
    weights: Mapping[str, Weight], schemes: Mapping[str, Scheme], *, thresholds: bool
) -> dict[str, InputPoint]:
    """Returns the inputs of layers whose statistics are needed; `thresholds` needs those of each language alone."""
    points: dict[str, InputPoint] = {}
    for name, scheme in schemes.items():
        if name not in weights:
            continue
        weight = weights[name]
        assert weight.sees is not None
        products = scheme.rounding == "gptq"
        squares = thresholds or (scheme.objective is not None and not (products and scheme.objective == "mean"))
        largest = scheme.inputs == "static"
        if products or squares or largest:
            hidden = weight.role == "mlp_down"
            new = InputPoint(weight.module, input_stack(weight), False, False, expert=weight.expert, hidden=hidden)
            point = points.get(weight.sees, new)
            points[weight.sees] = replace(
                point,
                squares=point.squares or squares,
                products=point.products or products,
                largest=point.largest or largest,
            )
    return points


class HessianAccumulator:
    """Adds up E_λ[x_j²] and H of the inputs of a block over all positions of text; their names are `Weight.sees`.

    Several ranks observe their batches in `rounds`, one batch each. After a round all of them get the inputs, and each
    adds them to some columns of H, in the order of the batches.
    """

    def __init__(
        self, languages: TextLanguages, points: Mapping[str, InputPoint], *, ranks: Ranks = ALONE, rounds: int = 0
    ) -> None:
        self._languages, self._points = languages, points
        self._ranks, self._rounds = ranks, rounds
        self._unshared: list[tuple[str, Tensor, Tensor]] = []  # what the other ranks do not have yet
        self._squares: dict[str, Tensor] = {}
        self._products: dict[str, Tensor] = {}
        self._largest: dict[Hashable, Tensor] = {}  # of each language, by `_shared_range`
        self._passed: set[str] = set()
        self._scattered: set[str] = set()  # inputs of experts, each of which gets only some of the positions

    @contextmanager
    def observe(self, model: nn.Module, *, to_the_end: bool = False) -> Iterator[Callable[[Batch], None]]:
        """Adds up the inputs that pass; gives the function to call before each batch. May raise StopBlock."""
        observed = ObservedBatch()
        with removed_hooks() as handles:
            hooks = [
                (point.module, self._hook(name, point, observed, stop=not to_the_end))
                for name, point in self._points.items()
                if point.expert is None
            ]
            experts = dict.fromkeys(point.module for point in self._points.values() if point.expert is not None)
            hooks += [(module, self._expert_hook(module, observed, stop=not to_the_end)) for module in experts]
            for module, hook in hooks:
                handles.append(model.get_submodule(module).register_forward_pre_hook(hook, with_kwargs=True))
            yield from self._start_batches(observed)

    def _start_batches(self, observed: ObservedBatch) -> Iterator[Callable[[Batch], None]]:
        """Yields the function that starts a batch; the round of the batch before it ends then."""
        started = 0

        def start(batch: Batch) -> None:
            nonlocal started
            if started:
                self._end_round()
            started += 1
            observed.start(batch)

        yield start
        for _ in range(max(started - 1, 0), self._rounds):  # also those in which this rank has no batch
            self._end_round()
        self._complete()

    def _end_round(self) -> None:
        if self._ranks.alone:
            return
        unshared, self._unshared = self._unshared, []
        for inputs, scattered in self._ranks.each((unshared, set(self._scattered))):
            self._scattered |= scattered
            for name, x, lang in inputs:
                self._add(name, x, lang)

    def _complete(self) -> None:
        if self._ranks.alone:
            return
        mine = {
            name: {start: H[start:, start : start + _panel_size(H)] for start in self._panels(name)}
            for name, H in self._products.items()
        }
        for products in self._ranks.each(mine):
            for name, panels in products.items():
                H = self._products[name]
                for start, panel in panels.items():
                    H[start:, start : start + _panel_size(H)] = panel

    def _panels(self, name: str) -> Iterable[int]:
        starts = range(0, len(self._products[name]), _panel_size(self._products[name]))
        first = (self._ranks.rank - list(self._points).index(name)) % self._ranks.count  # small H have one panel
        return starts[first :: self._ranks.count]

    def statistics(self, name: str | None) -> InputStatistics | None:
        """Returns the statistics of an input; None if it was not observed position by position."""
        if name is None or name not in self._passed or name in self._scattered:
            return None
        notes: Notes = ()
        squares, H, factor = None, self._products.get(name), None
        if name in self._squares:
            squares = self._squares[name].cpu().numpy() / self._counts(name)[:, None]
        if H is not None:
            H.tril_().add_(H.tril(-1).T)  # in place, and if it was done before, nothing changes
            if not all_finite(H):
                raise InputError(f"{name} is NaN or infinite on the calibration text; check the model's weights")
            factor, notes = factorize(H)
        return InputStatistics(self._languages.languages, squares, self._languages.pi, H, factor, notes)

    def largest(self, name: str | None) -> dict[str, float] | None:
        """Returns the largest |x| of an input in each language; None if it was not observed.

        All experts of a block share it, as servers have one scale for them. So experts that no text reached have one.
        """
        point = self._points.get(str(name))
        if name is None or point is None or not point.largest or name in self._scattered:
            return None
        observed = self._largest.get(self._shared_range(name))
        if observed is None:
            return None if point.expert is None else dict.fromkeys(self._languages.languages, 0.0)
        values = observed.tolist()
        if not np.isfinite(values).all():
            raise InputError(f"{name} is NaN or infinite on the calibration text; check the model's weights")
        return dict(zip(self._languages.languages, values, strict=True))

    def _shared_range(self, name: str) -> Hashable:
        """Returns what names the range of an input: itself, or for experts their module and which layer of them."""
        point = self._points[name]
        return name if point.expert is None else (point.module, point.hidden)

    def is_unreached(self, name: str | None) -> bool:
        return name in self._points and name not in self._passed | self._scattered

    def release(self, name: str | None) -> None:
        """Forgets H of an input, which may be larger than the layers that see it."""
        self._products.pop(str(name), None)

    def _counts(self, name: str) -> Floats:
        return np.maximum(self._languages.positions_in(self._points[name].stack), 1)

    def _add(self, name: str, x: Tensor, lang: Tensor) -> None:
        """Adds positions of an input, given the language of each; x is changed."""
        self._passed.add(name)
        point = self._points[name]
        if point.largest:
            shared = self._shared_range(name)
            before = self._largest.get(shared, torch.zeros(len(self._languages.languages), device=x.device))
            self._largest[shared] = before.scatter_reduce(0, lang, x.abs().amax(1), "amax")
        if point.squares:
            one_hot = nn.functional.one_hot(lang, len(self._languages.languages))
            sums = (one_hot.T.float() @ x.square()).double()
            self._squares[name] = self._squares[name].add_(sums) if name in self._squares else sums
        if point.products:
            if name not in self._products:
                self._products[name] = torch.zeros(x.shape[1], x.shape[1], device=x.device)
            # x is scaled by √(π_λ / n_λ), so that the products of all languages add up to H
            shares = torch.from_numpy(np.sqrt(self._languages.pi / self._counts(name))).float()
            _add_products(self._products[name], x.mul_(shares.to(x.device)[lang, None]), self._panels(name))

    def _hook(self, name: str, point: InputPoint, observed: ObservedBatch, *, stop: bool) -> Callable[..., None]:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            observed.passed.add(name)
            x = observed.at_text(first_tensor((*args, *kwargs.values())), point.stack)
            if x is None:
                self._scattered.add(name)
                return
            self._observe(name, x, self._languages.language_of[observed.document(point.stack)].to(x.device))
            if stop:
                self._stop_if_passed(observed)

        return hook

    def _expert_hook(self, path: str, observed: ObservedBatch, *, stop: bool) -> Callable[..., None]:
        inside = {name: point for name, point in self._points.items() if point.module == path}
        experts = {name: (point, point.expert) for name, point in inside.items() if point.expert is not None}

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            observed.passed.update(experts)
            call = ExpertCall.of(module, (*args, *kwargs.values()))
            documents = observed.documents(next(iter(experts.values()))[0].stack)
            if call is None or len(documents) != call.positions:
                self._scattered.update(experts)
                return
            documents = documents.to(call.states.device)
            for name, (point, expert) in experts.items():
                at = (call.reaches(expert) & (documents >= 0)).nonzero()[:, 0]
                if len(at):
                    x = call.inputs(expert, at)
                    x = (call.hidden(expert, x) if point.hidden else x).float()
                    self._observe(name, x, self._languages.language_of.to(x.device)[documents[at]])
            if stop:
                self._stop_if_passed(observed)

        return hook

    def _observe(self, name: str, x: Tensor, lang: Tensor) -> None:
        if self._ranks.alone:
            self._add(name, x, lang)
        else:
            self._unshared.append((name, x, lang))

    def _stop_if_passed(self, observed: ObservedBatch) -> None:
        if len(observed.passed) == len(self._points) and not self._scattered:  # experts are called one by one
            raise StopBlock


def _add_products(H: Tensor, x: Tensor, starts: Iterable[int]) -> None:
    """Adds xᵀx to panels of the symmetric H, from its diagonal down; what is above it in a panel is dropped later."""
    for start in starts:
        stop = start + _panel_size(H)
        H[start:, start:stop].addmm_(x[:, start:].T, x[:, start:stop])


def _panel_size(H: Tensor) -> int:
    return GPU_PANEL if H.is_cuda else PANEL
