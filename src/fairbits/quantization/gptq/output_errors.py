"""The error that rounding causes in the outputs of linear layers, for each language."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from fairbits.core.errors import InputError
from fairbits.core.tensors import first_tensor
from fairbits.forward.batches import Batch
from fairbits.forward.recorder import removed_hooks
from fairbits.models.architecture.architecture import Weight
from fairbits.quantization.gptq.hessian import ObservedBatch, TextLanguages, input_stack
from fairbits.quantization.gptq.ranks import ALONE, Ranks

SAMPLE = 128  # about this many positions of a language suffice to measure the error of a linear layer


class OutputErrors:
    """E_λ‖ΔW x‖² / E_λ‖W x‖² of the linear layers of a block, on a sample of the positions.

    x is the input in the quantized block. The block has the weights W + ΔW while it is observed, so W x is its output
    less ΔW x and the bias. Several ranks observe a batch each in turn, and add up in the order of the batches.
    """

    def __init__(
        self, languages: TextLanguages, changes: Mapping[str, tuple[Weight, Tensor]], *, ranks: Ranks = ALONE
    ) -> None:
        self._languages, self._changes, self._ranks = languages, changes, ranks
        self._unshared: list[list[tuple[str, Tensor]]] = []  # of each batch, what the other ranks do not have yet
        count = len(languages.languages)
        self._sums = {
            name: torch.zeros(2, count, dtype=torch.float64, device=change.device)
            for name, (_, change) in changes.items()
        }

    @contextmanager
    def observe(self, model: nn.Module) -> Iterator[Callable[[Batch], None]]:
        """Adds up the errors of what passes through the model; gives the function to call before each batch."""
        observed = ObservedBatch()
        with removed_hooks() as handles:
            for name, (weight, change) in self._changes.items():
                module = model.get_submodule(weight.module)
                hook = self._hook(name, input_stack(weight), change, observed)
                handles.append(module.register_forward_hook(hook, with_kwargs=True))

            def start(batch: Batch) -> None:
                self._unshared.append([])
                observed.start(batch)

            yield observed.start if self._ranks.alone else start
        if not self._ranks.alone:
            self._add_all()

    def _add_all(self) -> None:
        names = [[name for name, _ in batch] for batch in self._unshared]
        sums = [pair for batch in self._unshared for _, pair in batch]
        packed = torch.stack(sums).cpu() if sums else torch.empty(0)  # one message, rather than many small ones
        turns = []
        for rank_names, rank_sums in self._ranks.each((names, packed)):
            unpacked = iter(rank_sums)
            turns.append([[(name, next(unpacked)) for name in batch] for batch in rank_names])
        for turn in zip_longest(*turns, fillvalue=[]):
            for name, pair in (entry for batch in turn for entry in batch):
                self._sums[name] += pair.to(self._sums[name].device)

    def error(self, name: str) -> dict[str, float]:
        """Returns the relative error of each language; empty if the layer's input or output was not observed."""
        if name not in self._sums or not self._sums[name].any():
            return {}
        if not torch.isfinite(self._sums[name]).all():
            raise InputError(f"{name} gives NaN or infinity on the calibration text; check the model's weights")
        damage, energy = self._sums[name].tolist()
        pairs = zip(self._languages.languages, damage, energy, strict=True)
        return {code: d / e if e > 0 else float(d > 0) for code, d, e in pairs}

    def _hook(self, name: str, stack: str, change: Tensor, observed: ObservedBatch) -> Callable[..., None]:
        every = max(int(self._languages.positions_in(stack).min()) // SAMPLE, 1)

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if not isinstance(output, Tensor):  # a router, which returns more than a product
                return
            x = observed.at_text(first_tensor((*args, *kwargs.values())), stack, every)
            y = observed.at_text(output, stack, every)
            if x is None or y is None:
                return
            shift = x @ change.T
            bias = getattr(module, "bias", None)
            before = y.sub_(shift) if bias is None else y.sub_(shift).sub_(bias)
            lang = self._languages.language_of[observed.document(stack, every)].to(x.device)
            one_hot = nn.functional.one_hot(lang, len(self._languages.languages)).double()
            sums = torch.stack([outputs.square_().sum(1) for outputs in (shift, before)]).double() @ one_hot
            if self._ranks.alone:
                self._sums[name] += sums
            else:
                self._unshared[-1].append((name, sums))

        return hook
