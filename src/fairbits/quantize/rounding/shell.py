"""A model of the real class whose weights come and go: modules and buffers stay, blocks are filled and emptied."""

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from fairbits.errors import InputError
from fairbits.model.architecture import Block, model_class
from fairbits.model.architecture.names import resolve
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.codes import Codes


class Shell:
    """The model of a checkpoint in float32, in eval mode, with no weights yet; `device` is where they will be."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device | str = "cpu") -> None:
        cls = model_class(checkpoint.config, trust_remote_code=checkpoint.trust_remote_code)
        with _weights_without_storage():
            # the options are written into the configuration, which belongs to the checkpoint
            config = copy.deepcopy(checkpoint.config)
            model: PreTrainedModel = cls._from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
        self.model = model.eval()  # type: ignore[no-untyped-call]
        self._checkpoint, self._device = checkpoint, torch.device(device)
        self._entries: dict[str, Tensor] = dict(model.state_dict(keep_vars=True))
        for name, buffer in model.named_buffers():
            self._put(name, buffer)
        names = resolve(model, {name: info.shape for name, info in checkpoint.tensors.items()})
        self._tensors: dict[str, list[str]] = defaultdict(list)  # of the file, by the parameter that they make
        for source in names.sources.values():
            self._tensors[source.parameter].append(source.name)
        self._tensors |= {parameter: [name] for parameter, name in names.tied.items()}
        self._converters = _converters(model, checkpoint.tensors, self._entries)

    def fill_outside(self, ids: Tensor, codes: Mapping[str, Codes]) -> None:
        """Fills what lies outside the blocks, but for the head: no walk gets so far.

        Of the embedding only the rows of `ids`, the tokens that will be looked up; the others stay undefined, and take
        no memory.
        """
        architecture = self._checkpoint.architecture
        inside = tuple(f"{block.module}." for block in architecture.blocks)
        head = self.model.get_output_embeddings()
        passed_over = {id(p) for p in head.parameters()} if head is not None else set()
        looked_up = {name for name, weight in architecture.weights.items() if weight.role == "embedding"}
        made: dict[str, Tensor] = {}  # what is tied shares its memory
        for parameter, entry in self._entries.items():
            tensors = self._tensors.get(parameter, [])
            unreached = bool(tensors) and all(architecture.weights[name].stack == "other" for name in tensors)
            tied = any(name in looked_up for name in tensors)
            if parameter.startswith(inside) or unreached or (id(entry) in passed_over and not tied):
                continue
            if not tensors:
                if entry.is_meta:
                    raise InputError(
                        f"{parameter} is in no file: {type(self.model).__name__} computes it, which is not known"
                    )
                continue
            first = tensors[0]
            if first not in made:
                made[first] = self._rows(first, ids, codes) if first in looked_up else self._made(parameter, codes)
            self._put(parameter, made[first])

    def fill(self, block: Block, codes: Mapping[str, Codes]) -> None:
        """Fills a block with its weights; those that have codes, with what a loader makes of them."""
        for parameter in self._of(block):
            if parameter in self._tensors:
                self._put(parameter, self._made(parameter, codes))

    def empty(self, block: Block) -> None:
        """Lets go of the weights of a block."""
        for parameter in self._of(block):
            if self._entries[parameter].is_meta:
                self._put(parameter, self._entries[parameter])

    def placed(self, tensor: Tensor) -> Tensor:
        """Returns a tensor where the weights are."""
        return tensor.to(self._device)

    def _of(self, block: Block) -> Iterable[str]:
        return [parameter for parameter in self._entries if parameter.startswith(f"{block.module}.")]

    def _made(self, parameter: str, codes: Mapping[str, Codes]) -> Tensor:
        """Returns a parameter, made of one tensor of the file or, by transformers' own rule, of many."""
        tensors = {name: self._stored(name, codes) for name in self._tensors[parameter]}
        if parameter not in self._converters:
            return tensors[self._tensors[parameter][0]]
        converter, patterns = self._converters[parameter]
        converter = copy.deepcopy(converter)
        for name, tensor in tensors.items():
            converter.add_tensor(parameter, name, patterns[name], tensor)  # type: ignore[arg-type]
        found = converter.convert(parameter)[parameter]
        whole: Tensor = found[0] if isinstance(found, list) else found
        return whole

    def _stored(self, name: str, codes: Mapping[str, Codes]) -> Tensor:
        """Returns a tensor as the file has it, or would have it once it is quantized, in float32."""
        if name not in codes:
            return _float(self._checkpoint.read(name))
        # of a copy, as what `dequantized` gives is kept as long as its codes
        made = replace(codes[name]).dequantized
        return _float(made.T.contiguous() if self._checkpoint.architecture.weights[name].transposed else made)

    def _rows(self, name: str, ids: Tensor, codes: Mapping[str, Codes]) -> Tensor:
        whole = codes[name].codes if name in codes else self._checkpoint.read(name)
        if whole.dtype == torch.float32:
            return whole  # mapped: only the rows that are looked up are read
        table = torch.empty(whole.shape, dtype=torch.float32)
        if name in codes:
            given = codes[name]
            table[ids] = Codes(given.codes[ids], given.scales[ids], given.bits).dequantized.float()
        else:
            table[ids] = whole[ids].float()
        return table

    def _put(self, parameter: str, value: Tensor) -> None:
        path, _, leaf = parameter.rpartition(".")
        owner = self.model.get_submodule(path)
        placed = value if value.is_meta else self.placed(value.detach())
        if leaf in owner._buffers:
            owner._buffers[leaf] = placed
        else:
            owner._parameters[leaf] = nn.Parameter(placed, requires_grad=False)


def _float(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def _converters(
    model: PreTrainedModel, names: Iterable[str], entries: dict[str, Tensor]
) -> dict[str, tuple[WeightConverter, dict[str, str]]]:
    """Returns the rule of every parameter that is not just one tensor of the file, and what each tensor is in it."""
    transforms = get_model_conversion_mapping(model)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    found: dict[str, tuple[WeightConverter, dict[str, str]]] = {}
    for name in names:
        parameter, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, entries)
        if pattern is not None and parameter in entries:
            found.setdefault(parameter, (by_pattern[pattern], {}))[1][name] = pattern
    return found


@contextmanager
def _weights_without_storage() -> Iterator[None]:
    """Lets every module that is made meanwhile have its parameters on the meta device, and its buffers as they are."""
    register = nn.Module.register_parameter

    def register_without_storage(module: nn.Module, name: str, param: Any) -> None:
        register(module, name, param)
        if param is not None and not param.is_meta:  # one that is tied to another stays the same object
            module._parameters[name] = nn.Parameter(param.to("meta"), requires_grad=False)

    nn.Module.register_parameter = register_without_storage  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
