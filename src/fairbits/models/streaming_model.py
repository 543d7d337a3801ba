"""Models whose weights are loaded and released block by block, with the next block read ahead."""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fairbits.core.errors import InputError
from fairbits.models.architecture.architecture import Block
from fairbits.models.architecture.meta_model import model_class
from fairbits.models.architecture.parameter_mapping import Conversions, resolve_names
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import is_gpu
from fairbits.models.scales.groups import Codes


def walk_dtype(checkpoint: Checkpoint, device: torch.device | str) -> torch.dtype:
    """Returns the type in which text passes through a model that is only observed: bfloat16 on a GPU, if it is its own.

    A GPU computes many times faster in it. It is float32 on the CPU, for classes that keep some of their modules in
    float32, and for models in float16, whose states may be larger than float16 can hold.
    """
    cls = model_class(checkpoint.config, trust_remote_code=checkpoint.trust_remote_code)
    wide = getattr(cls, "_keep_in_fp32_modules", None) or getattr(cls, "_keep_in_fp32_modules_strict", None)
    return (
        torch.bfloat16 if is_gpu(device) and checkpoint.stated_dtype == torch.bfloat16 and not wide else torch.float32
    )


class StreamingModel:
    """A model in eval mode, at first without weights; `outside` is the device of what is outside the blocks."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device | str = "cpu",
        *,
        dtype: torch.dtype = torch.float32,
        read: Callable[[str], Tensor] | None = None,
        outside: torch.device | str | None = None,
    ) -> None:
        cls = model_class(checkpoint.config, trust_remote_code=checkpoint.trust_remote_code)
        with _weights_without_storage():
            # a copy, as transformers writes options into the configuration, which belongs to the checkpoint
            config = copy.deepcopy(checkpoint.config)
            model: PreTrainedModel = cls._from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
        self.model: PreTrainedModel = model.eval()  # type: ignore[no-untyped-call]
        self._checkpoint, self._device, self._dtype = checkpoint, torch.device(device), dtype
        self._outside = self._device if outside is None else torch.device(outside)
        self._inside = tuple(f"{block.module}." for block in checkpoint.architecture.blocks)
        self._read = checkpoint.read if read is None else read
        self._conversions = Conversions(model)
        self._entries = self._conversions.entries
        for name, buffer in model.named_buffers():
            self._put(name, buffer)
        names = resolve_names(model, {name: info.shape for name, info in checkpoint.tensors.items()})
        self._tensors: dict[str, list[str]] = defaultdict(list)  # names in the file, by the parameter that they make up
        self._patterns: dict[str, dict[str, str]] = defaultdict(dict)  # of tensors that are converted
        for source in names.sources.values():
            self._tensors[source.parameter].append(source.name)
            if source.pattern is not None:
                self._patterns[source.parameter][source.name] = source.pattern
        self._tensors |= {parameter: [name] for parameter, name in names.tied.items()}
        weights = checkpoint.architecture.weights
        self._looked_up = {name for name, weight in weights.items() if weight.is_embedding}
        head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        head_parameters = {id(parameter) for parameter in head.parameters()} if head is not None else set()
        self._head = [parameter for parameter, entry in self._entries.items() if id(entry) in head_parameters]
        checkpoint.prepare(model, self._device)

    def load_outside(self, ids: Tensor, codes: Mapping[str, Codes]) -> None:
        """Loads what is outside the blocks but for the head; of the embedding only the rows of `ids`."""

        def make(parameter: str) -> Tensor:
            first = self._tensors[parameter][0]
            return self._rows(first, ids, codes) if first in self._looked_up else self._parameter(parameter, codes)

        outside = [name for name in self._entries if not name.startswith(self._inside) and not self._is_unreached(name)]
        wanted = [name for name in outside if name not in self._head or self._embeds(name)]
        computed = [name for name in wanted if not self._tensors.get(name)]
        self._initialize(computed)
        unknown = next((name for name in computed if self._entry(name).is_meta), None)
        if unknown is not None:
            raise InputError(
                f"{unknown} is in no file, and how {type(self.model).__name__} computes it is not known; "
                "check that the checkpoint is complete"
            )
        self._load((name for name in wanted if name not in computed), make)

    def load_head(self) -> None:
        """Loads the head, with an embedding that is tied to it, and weights next to it that only its owner reads."""
        owners = {parameter.rpartition(".")[0].rpartition(".")[0] for parameter in self._head} - {""}
        inside = tuple(f"{owner}." for owner in owners)
        wanted = [
            name
            for name in self._entries
            if name in self._head or (name.startswith(inside) and self._is_unreached(name))
        ]
        stored = [name for name in wanted if name in self._tensors]
        self._load(stored, lambda name: self.to_device(self._parameter(name, {})))

    def release_head_and_embedding(self) -> None:
        """Releases the head and the embedding: the largest weights outside the blocks."""
        for parameter, entry in self._entries.items():
            if entry.is_meta and (self._embeds(parameter) or parameter in self._head):
                self._put(parameter, entry)

    def load_all(self, *, copies: bool) -> None:
        """Loads every weight; without `copies` weights of the right type and device may be the ones that were read."""

        def make(parameter: str) -> Tensor:
            placed = self.to_device(self._parameter(parameter, {}))
            if not copies:
                return placed
            stored = self._read(self._tensors[parameter][0])
            shared = placed.untyped_storage().data_ptr() == stored.untyped_storage().data_ptr()
            return placed.clone() if shared else placed

        self._load(self._tensors, make)
        self._initialize(self._entries)
        missing = [name for name in self._entries if self._entry(name).is_meta]
        if missing:
            raise InputError(f"{self._checkpoint.target} has no {missing[0]}, which {type(self.model).__name__} needs")

    def load_block(self, block: Block, codes: Mapping[str, Codes]) -> None:
        for parameter in self._parameters(block):
            if parameter in self._tensors:
                self._put(parameter, self._parameter(parameter, codes))

    def release_block(self, block: Block) -> None:
        for parameter in self._parameters(block):
            if self._entries[parameter].is_meta:
                self._put(parameter, self._entries[parameter])

    def to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device)

    def _initialize(self, parameters: Iterable[str]) -> None:
        """Computes the parameters that transformers never writes, such as sinusoids, as it does itself."""
        for parameter in set(parameters).intersection(self.model._keys_to_ignore_on_save or ()):
            if self._entry(parameter).is_meta:
                path, _, leaf = parameter.rpartition(".")
                module = copy.deepcopy(self.model.get_submodule(path)).to_empty(device="cpu")
                self.model._init_weights(module)  # type: ignore[no-untyped-call]
                self._put(parameter, getattr(module, leaf))

    def _load(self, parameters: Iterable[str], make: Callable[[str], Tensor]) -> None:
        loaded: dict[str, Tensor] = {}
        for parameter in parameters:
            first = self._tensors[parameter][0]
            if first in loaded:  # tied: the same object, which moves as one
                path, _, leaf = parameter.rpartition(".")
                setattr(self.model.get_submodule(path), leaf, loaded[first])
            else:
                self._put(parameter, make(parameter))
                loaded[first] = self._entry(parameter)

    def _embeds(self, parameter: str) -> bool:
        return any(name in self._looked_up for name in self._tensors.get(parameter, []))

    def _is_unreached(self, parameter: str) -> bool:
        """Returns whether a parameter is in no block and in no module that a pass calls."""
        weights, tensors = self._checkpoint.architecture.weights, self._tensors.get(parameter, [])
        return bool(tensors) and all(weights[name].stack == "other" for name in tensors)

    def _parameters(self, block: Block) -> Iterable[str]:
        return [parameter for parameter in self._entries if parameter.startswith(f"{block.module}.")]

    def _parameter(self, parameter: str, codes: Mapping[str, Codes]) -> Tensor:
        if parameter not in self._patterns:
            return self._stored(self._tensors[parameter][0], codes)
        patterns = {name: self._patterns[parameter][name] for name in self._tensors[parameter]}
        return self._conversions.convert(parameter, patterns, lambda name: self._stored(name, codes))[parameter]

    def _stored(self, name: str, codes: Mapping[str, Codes]) -> Tensor:
        if name not in codes:
            return self._cast(self._read(name))
        # from a copy, as codes keep what they were dequantized to
        W = replace(codes[name]).dequantized
        return self._cast(W.T.contiguous() if self._checkpoint.architecture.weights[name].transposed else W)

    def _rows(self, name: str, ids: Tensor, codes: Mapping[str, Codes]) -> Tensor:
        whole = codes[name].codes if name in codes else self._checkpoint.read(name)
        if whole.dtype == self._dtype:
            return whole  # memory-mapped: only the rows that are looked up are read
        table = torch.empty(whole.shape, dtype=self._dtype)
        if name in codes:
            whole_codes = codes[name]
            rows = ids.to(whole_codes.codes.device)
            some = Codes(whole_codes.codes[rows], whole_codes.scales[rows], whole_codes.bits)
            table[ids] = self._cast(some.dequantized).to("cpu")
        else:
            table[ids] = self._cast(whole[ids])
        return table

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor

    def _entry(self, parameter: str) -> Tensor:
        path, _, leaf = parameter.rpartition(".")
        entry: Tensor = getattr(self.model.get_submodule(path), leaf)
        return entry

    def _put(self, parameter: str, value: Tensor) -> None:
        path, _, leaf = parameter.rpartition(".")
        owner = self.model.get_submodule(path)
        device = self._device if parameter.startswith(self._inside) else self._outside
        placed = value if value.is_meta else value.detach().to(device)
        if leaf in owner._buffers:
            owner._buffers[leaf] = placed
        else:
            owner._parameters[leaf] = nn.Parameter(placed, requires_grad=False)


@contextmanager
def _weights_without_storage() -> Iterator[None]:
    """Puts the parameters of all modules that are created in it on the meta device; buffers stay where they are."""
    register = nn.Module.register_parameter

    def register_without_storage(module: nn.Module, name: str, param: Any) -> None:
        register(module, name, param)
        if param is not None and not param.is_meta:  # a tied parameter stays the same object
            module._parameters[name] = nn.Parameter(param.to("meta"), requires_grad=False)

    nn.Module.register_parameter = register_without_storage  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


READERS = 4  # threads that read: one copies a few GB a second out of the system's cache, less than a GPU rounds


class ReadAhead:
    """Reads tensors onto a device, in the type of the file.

    `parts` are names of tensors, such as block by block. When the first tensor of a part is requested, the part before
    it is forgotten and the one after it is read ahead; any other order is right but slower.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device | str, parts: Sequence[Sequence[str]]) -> None:
        self._checkpoint, self._device, self._parts = checkpoint, torch.device(device), parts
        self._numbers = {name: number for number, names in enumerate(parts) for name in names}
        self._current: int | None = None
        self._reading: dict[int, dict[str, Future[Tensor]]] = {}
        self._placed: dict[str, Tensor] = {}
        self._threads = None if not is_gpu(self._device) else ThreadPoolExecutor(READERS, initializer=self._use_device)

    def __enter__(self) -> "ReadAhead":
        return self

    def __exit__(self, *_: object) -> None:
        self._placed.clear()
        self._reading.clear()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def read(self, name: str) -> Tensor:
        part = self._numbers.get(name)
        if part is not None and part != self._current:
            self._enter(part)
        if self._threads is None:
            return self._checkpoint.read(name)
        if name not in self._placed:
            waiting = {} if part is None else self._reading.get(part, {})
            stored = waiting.pop(name).result() if name in waiting else self._checkpoint.read(name)
            placed = stored.to(self._device, non_blocking=True)
            if part is None:
                return placed
            self._placed[name] = placed
        return self._placed[name]

    def _enter(self, part: int) -> None:
        self._current = part
        self._placed.clear()
        for number in [number for number in self._reading if number not in (part, part + 1)]:
            for future in self._reading.pop(number).values():
                future.cancel()
        for number in (part, part + 1):
            if number < len(self._parts) and number not in self._reading:
                self._reading[number] = self._begin(number)

    def _use_device(self) -> None:
        """Pins memory for the device in a thread, rather than for the first GPU."""
        if self._device.index is not None:
            torch.cuda.set_device(self._device.index)

    def _begin(self, part: int) -> dict[str, Future[Tensor]]:
        if self._threads is None:
            if part != self._current:
                for name in self._parts[part]:
                    self._checkpoint.announce(name)
            return {}
        return {name: self._threads.submit(self._checkpoint.read_pinned, name) for name in self._parts[part]}
