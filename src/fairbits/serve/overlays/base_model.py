"""OverlayBase: a loaded quantized base, and the original model, whose weights are read one at a time."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from fairbits.core.errors import InputError
from fairbits.core.memory import INPUT_PRODUCTS_BYTES, OVERLAY_POSITIONS
from fairbits.forward.batches import batches
from fairbits.forward.lockstep import StopBlock
from fairbits.forward.recorder import is_observable
from fairbits.forward.windows import TokenizedText
from fairbits.models.architecture.architecture import Weight
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.layer_files import read_packed
from fairbits.models.scales.groups import Codes
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization.gptq.block_rounding import matrix
from fairbits.quantization.gptq.hessian import (
    HessianAccumulator,
    InputPoint,
    InputStatistics,
    TextLanguages,
    input_stack,
)
from fairbits.quantization.plan import Plan, schemes_by_name


class OverlayBase:
    """The base in float32, and everything needed to give some of its rows another form."""

    def __init__(self, checkpoint: Checkpoint, base: Checkpoint, *, device: str = "cpu") -> None:
        self.checkpoint, self.base = checkpoint, base
        self.plan = check_base(base, checkpoint)
        self.model: PreTrainedModel = base.load(device=device)
        modules = dict(self.model.named_modules())
        weights = checkpoint.architecture.weights
        layers = [layer for layer in self.plan.quantized if layer.block is not None]
        # layers with the same input are adjacent, so its statistics are computed once
        layers.sort(key=lambda layer: (layer.block, str(weights[layer.name].sees)))
        self.schemes: dict[str, Scheme] = schemes_by_name(
            layer for layer in layers if is_observable(weights[layer.name], modules)
        )
        other = next((scheme.format for scheme in self.schemes.values() if scheme.format != "integer"), None)
        if other is not None:
            raise InputError(f"{base.target} is stored as {other}; the base of overlays must have integers")
        if not self.schemes:
            raise InputError(
                f"{base.target} has no quantized linear layer whose input can be observed; "
                "give a base whose blocks are quantized"
            )

    @cached_property
    def size_bytes(self) -> int:
        return sum(info.nbytes for info in self.base.tensors.values())

    def weight(self, name: str) -> Weight:
        return self.checkpoint.architecture.weights[name]

    def codes(self, name: str) -> Codes:
        names = (f"{name}_packed", f"{name}_scale", f"{name}_shape")
        return read_packed({tensor: self.base.read(tensor) for tensor in names}, name, bits=self.schemes[name].bits)

    def original(self, name: str) -> Tensor:
        return matrix(self.checkpoint, self.weight(name))

    def input_statistics(self, text: TokenizedText, *, products: bool = True) -> Iterator[tuple[str, InputStatistics]]:
        """Yields the input statistics of each linear layer of the base, with equal weights for all languages."""
        for part in self._parts(products):
            inputs = self._inputs(text, part, products)
            for sees, names in groupby(part, lambda name: self.weight(name).sees):
                statistics = inputs.statistics(sees)
                if statistics is not None:
                    yield from ((name, statistics) for name in names)

    def _inputs(self, text: TokenizedText, names: Iterable[str], products: bool) -> HessianAccumulator:
        weights = [self.weight(name) for name in names]
        present = {text.languages[i] for i in {text.language_of[window.document] for window in text.windows}}
        points = {
            str(weight.sees): InputPoint(weight.module, input_stack(weight), True, products) for weight in weights
        }
        inputs = HessianAccumulator(TextLanguages.of(text, dict.fromkeys(present, 1 / len(present))), points)
        device = str(self.model.device)
        with inputs.observe(self.model) as start, torch.no_grad():
            for batch in batches(text, positions=OVERLAY_POSITIONS):
                here = batch.on(device)
                start(here)
                try:
                    self.model.base_model(**here.inputs_for(self.model), use_cache=False)
                except StopBlock:
                    continue
        return inputs

    def _parts(self, products: bool) -> Iterator[list[str]]:
        part: list[str] = []
        taken: dict[str | None, int] = {}
        for name in self.schemes:
            weight = self.weight(name)
            size = 4 * weight.shape[1] ** 2 if products else 0  # float32
            if part and weight.sees not in taken and sum(taken.values()) + size > INPUT_PRODUCTS_BYTES:
                yield part
                part, taken = [], {}
            part.append(name)
            taken[weight.sees] = size
        yield part


def check_base(base: Checkpoint, checkpoint: Checkpoint) -> Plan:
    """Returns the plan of a base, if it was made from the checkpoint."""
    file = Path(base.directory) / "plan.json"
    if not file.is_file():
        raise InputError(f"{base.target} has no plan.json; give a base that fairbits quantize has written")
    plan = Plan.load(file)
    if plan.fingerprint != checkpoint.fingerprint:
        raise InputError(
            f"{base.target} was made from {plan.model}, and {checkpoint.target} has other weights; "
            "give the model that the base was made from"
        )
    return plan
