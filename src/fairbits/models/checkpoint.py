"""A model on disk: its tensors, read one at a time, with its configuration and tokenizer."""

import copy
import difflib
import hashlib
import json
import math
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from fairbits.core.checks import sequence
from fairbits.core.errors import InputError
from fairbits.core.plugins import SOURCES, load_plugin
from fairbits.core.records import read_object
from fairbits.models.architecture.architecture import Architecture, Task
from fairbits.models.architecture.assemble import map_architecture
from fairbits.models.architecture.meta_model import SOUND, meta_model
from fairbits.models.architecture.parameter_mapping import ExpertSlice, expert_slices, stacked_experts
from fairbits.models.cache_types import CACHE_TYPES
from fairbits.models.device import is_gpu
from fairbits.models.embedded import embedded_languages
from fairbits.models.inherited_notes import inherited_notes
from fairbits.models.io.packed_weights import PackedWeights
from fairbits.models.io.quantization_settings import find_settings, is_readable
from fairbits.models.io.safetensors_files import (
    EXPLICIT,
    StoredTensor,
    TensorInfo,
    announce_read,
    map_tensor,
    read_bytes,
    read_tensor,
)
from fairbits.models.io.weight_files import Directory, Folder, read_weights
from fairbits.models.kv_cache import round_states, store_rounded
from fairbits.models.loading import load_config, load_model, load_tokenizer
from fairbits.models.source import SourceKind, find_source
from fairbits.models.streaming_model import StreamingModel
from fairbits.models.untrusted.config_check import check_quantization
from fairbits.models.untrusted.tokenizer_sandbox import check_tokenizer

INCIDENTAL = ("_name_or_path", "transformers_version")  # entries of config.json that say nothing about the model
TOKENIZER_FILES = (  # of feature extractors too
    *("tokenizer*", "vocab*", "merges*", "*.model", "*.tiktoken", "special_tokens_map.json", "added_tokens.json"),
    *("preprocessor_config.json", "processor_config.json"),
)

QUANTIZED = "the checkpoint is already quantized"  # the beginning of the note on a model that is already quantized


class Checkpoint:
    """A model: a local directory, a `.gguf` file, an id on the Hugging Face Hub, or `embedded:tiny`.

    Opening a checkpoint reads and checks the headers of its files, but no weights.

    `target`     the model as requested
    `directory`  holds configuration, tokenizer and safetensors
    `files`      the tensors as they are in the files, and where
    `notes`      what a reader of any result must know about the model, e.g. that it is itself quantized
    `kv_cache`   the type of the cache that its keys and values pass through, if `with_kv_cache` chose one
    """

    kv_cache: str | None = None

    def __init__(self, target: str | Path, *, trust_remote_code: bool = False, revision: str | None = None) -> None:
        source = find_source(target, revision=revision, with_code=trust_remote_code)
        self.target: str = str(target)
        self.revision = revision
        self.kind: SourceKind = source.kind
        self.directory: Path = source.directory
        if source.outliers:
            with_outliers = load_plugin(SOURCES, "outliers")
            self.directory = with_outliers(Checkpoint(source.directory), source.outliers)
        self.trust_remote_code = trust_remote_code
        self._raw_config = read_object(self.directory / "config.json", finite=False)
        self._read_headers(Directory(self.directory), source.notes)

    def _read_headers(self, folder: Folder, notes: tuple[str, ...] = ()) -> None:
        tensors, oddities = read_weights(folder, self._raw_config.get(EXPLICIT))
        self.files: Mapping[str, StoredTensor] = MappingProxyType(tensors)
        quantized = (
            () if self.quantization is None else (f"{QUANTIZED} ({self.quantization_method or 'method not named'})",)
        )
        self.notes: tuple[str, ...] = (*notes, *inherited_notes(self.directory), *oddities, *quantized)

    def __repr__(self) -> str:
        return f"Checkpoint({self.target!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Opens the model again where it is unpickled: the same path or id must name it there."""
        path = os.path.abspath(os.path.expanduser(self.target)) if self.kind in ("directory", "gguf") else self.target
        return _reopen, (self.target, path, self.trust_remote_code, self.revision)

    def read(self, name: str) -> torch.Tensor:
        """Returns one tensor, memory-mapped: only the parts that are used are read. Do not write to it."""
        name = self._info(name).name
        if name in self.slices:
            # contiguous, as if the file had it so
            return self.slices[name].cut(map_tensor(self._location(name))).contiguous()
        return map_tensor(self.files[name])

    def read_file(self, name: str) -> torch.Tensor:
        """Returns one tensor as it is in the files."""
        return map_tensor(self.files[name])

    def read_pinned(self, name: str) -> torch.Tensor:
        """Returns one tensor in memory from which a GPU copies it without waiting. Do not write to it."""
        stored = read_tensor(self._location(name), pinned=True)
        return self.slices[name].cut(stored) if name in self.slices else stored

    def announce(self, name: str) -> None:
        """Lets the system read a tensor that will be needed soon."""
        announce_read(self._location(name))

    def stream(self, names: Iterable[str] | None = None) -> Iterator[tuple[TensorInfo, torch.Tensor]]:
        """Yields all tensors, or those in `names`, one at a time in file order; drop each before the next."""
        wanted = self.tensors if names is None else {self._info(name).name for name in sequence("names", names)}
        for info in self.tensors.values():
            if info.name in wanted:
                yield info, self.read(info.name)

    @property
    def stored(self) -> "Checkpoint":
        """The checkpoint as it is in the files: itself, unless its weights are packed and this is an unpacked view."""
        return self

    def parts(self, name: str) -> tuple[str, ...]:
        return (name,)

    def unpack(self, name: str, read: Callable[[str], torch.Tensor]) -> torch.Tensor:
        return read(name)

    @cached_property
    def quantization(self) -> tuple[Mapping[str, Any], str] | None:
        """What the files say of the quantization of the model, and where they say it."""
        return find_settings(self._raw_config, self.directory)

    @property
    def quantization_method(self) -> Any:
        return None if self.quantization is None else self.quantization[0].get("quant_method")

    @cached_property
    def plain(self) -> "Checkpoint | None":
        """The checkpoint with its weights in float32 if it is quantized; None if only another package reads it."""
        if self.quantization is None:
            return self
        if not is_readable(self.quantization[0]):
            return None
        return UnpackedCheckpoint(self)

    def stored_as(self, name: str) -> tuple[str, str, int]:
        """Returns how a weight is stored, how the inputs of its layer are rounded, and its bytes."""
        info = self._info(name)
        return str(info.dtype).removeprefix("torch."), "–", info.nbytes

    def prepare(self, model: PreTrainedModel, device: torch.device | str) -> None:  # noqa: ARG002
        """Makes a model round activations, if the files say so, and keys and values, if a type was chosen."""
        if self.kv_cache:
            store_rounded(model, round_states(self.kv_cache))

    @property
    def activation_notes(self) -> tuple[str, ...]:
        """What a reader must know of activations that are rounded."""
        return self._cache_notes

    @property
    def _cache_notes(self) -> tuple[str, ...]:
        if not self.kv_cache:
            return ()
        return (f"keys and values are rounded as in a cache of type {self.kv_cache} ({CACHE_TYPES[self.kv_cache]})",)

    @cached_property
    def config(self) -> PretrainedConfig:
        check_quantization(self.directory, self.quantization_method, self.files)
        shapes = [info.shape for info in self.files.values()]
        return load_config(self.directory, self._raw_config, shapes=shapes, trust_remote_code=self.trust_remote_code)

    @property
    def hidden_size(self) -> int:
        return int(self.config.get_text_config().hidden_size)

    @cached_property
    def task(self) -> Task:
        if self.architecture.head is None:
            raise InputError(f"{self.target} has no head that predicts tokens; the audit needs a language model")
        if self.architecture.reads == SOUND:
            return "transcription"
        if self.config.is_encoder_decoder:
            return "completion"
        return "masked" if all(block.stack == "encoder" for block in self.architecture.blocks) else "causal"

    @property
    def stated_positions(self) -> int:
        """The number of positions that the configuration states; if none, a very large number."""
        stated = [getattr(self.config, name, None) for name in ("max_position_embeddings", "n_positions")]
        return min((limit for limit in stated if isinstance(limit, int) and limit > 0), default=2**31)

    @property
    def longest_input(self) -> int:
        """How many positions of text the model accepts: position tables such as RoBERTa's start after the padding."""
        table = any(weight.role == "position" for weight in self.architecture.weights.values())
        before = (getattr(self.config, "pad_token_id", None) or 0) + 1 if table and self.task == "masked" else 0
        return self.stated_positions - before

    @property
    def trained_languages(self) -> tuple[str, ...] | None:
        """The codes of the languages that the model was trained on, if it comes with fairbits."""
        return embedded_languages(self.target)

    @property
    def scale_dtype(self) -> torch.dtype:
        """The type that loaders cast scales to, in which they must be stored: the one of the written configuration."""
        return torch.bfloat16 if self.kind == "gguf" else self.stated_dtype

    def kept_info(self, name: str) -> TensorInfo:
        """Returns how a tensor is written that is not quantized: as it is, but of a GGUF file in 16 bits.

        A GGUF file is read as float32, as scale · code does not fit 16 bits. What loaders keep in float32 stays so.
        """
        info = self._info(name)
        if self.kind != "gguf" or not info.dtype.is_floating_point or self.keeps_float32(name):
            return info
        return TensorInfo(name, info.shape, self.scale_dtype, info.numel * self.scale_dtype.itemsize)

    def read_kept(self, name: str) -> torch.Tensor:
        """Returns a tensor that is not quantized as it is written."""
        return self.read(name).to(self.kept_info(name).dtype)

    def keeps_float32(self, name: str) -> bool:
        """Returns whether transformers keeps a tensor in float32 in a model of any type."""
        return any(part in name for part in self._float32_parts)

    @cached_property
    def _float32_parts(self) -> frozenset[str]:
        return frozenset(self.meta_model()._keep_in_fp32_modules_strict or ())

    @property
    def stated_dtype(self) -> torch.dtype:
        """The type that the configuration states."""
        stated = self.config.dtype
        if isinstance(stated, torch.dtype):
            return stated
        # as transformers does where the configuration names none
        return next(info.dtype for info in self.tensors.values() if info.dtype.is_floating_point)

    @cached_property
    def tied_copies(self) -> frozenset[str]:
        """The tensors of the file that repeat another one they are tied to, and need not be written."""
        tied = {name: weight.tied_to for name, weight in self.architecture.weights.items()}
        return frozenset(
            name for name, first in tied.items() if first is not None and torch.equal(self.read(name), self.read(first))
        )

    def meta_model(self) -> PreTrainedModel:
        return meta_model(self.config, trust_remote_code=self.trust_remote_code)

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Name, type and shape of every tensor, in file order; stacked experts one by one, if loaders can read them."""
        return MappingProxyType(dict(_apart(self._whole, self.slices)))

    @cached_property
    def slices(self) -> Mapping[str, ExpertSlice]:
        """The experts that the files stack in one tensor, by the names under which they are read one by one."""
        stacks = stacked_experts({name: info.shape for name, info in self._whole.items()})
        if not stacks or self.quantization is not None:
            return {}
        return expert_slices(self.meta_model(), stacks)

    @property
    def _whole(self) -> Mapping[str, TensorInfo]:
        return self.files

    def _location(self, name: str) -> StoredTensor:
        part = self.slices.get(name)
        return self.files[name] if part is None else part.place(self.files[part.stacked])

    @cached_property
    def architecture(self) -> Architecture:
        shapes = {name: info.shape for name, info in self.tensors.items()}
        return map_architecture(self.config, shapes, trust_remote_code=self.trust_remote_code)

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of configuration and weights; it does not depend on how they are split into files.

        The hash covers config.json as sorted compact JSON without incidental entries and then, ordered by name, each
        tensor's name, dtype and shape as JSON and its bytes. Each text ends with a line feed.
        """
        digest = self._hash_config()
        for info, at, part in self._bytes():
            if at == 0:
                hash_name(digest, info)
            digest.update(part)
        return digest.hexdigest()

    @cached_property
    def tokenizer_hash(self) -> str:
        """The SHA-256 of what turns text, or sound, into the model's input: other files make other tokens of it."""
        digest = hashlib.sha256()
        patterns = (*TOKENIZER_FILES, *(["*.py"] if self.trust_remote_code else []))
        for file in sorted({file for pattern in patterns for file in self.directory.glob(pattern)}):
            if file.is_file():
                digest.update(_json_line(file.name))
                digest.update(file.read_bytes())
        return digest.hexdigest()

    def _hash_config(self) -> "hashlib._Hash":
        config = {key: value for key, value in self._raw_config.items() if key not in INCIDENTAL}
        return hashlib.sha256(_json_line(config))

    def _bytes(self) -> Iterator[tuple[TensorInfo, int, bytearray | memoryview]]:
        yield from read_bytes(info for _, info in sorted(self.files.items()))

    @property
    def size_bytes(self) -> int:
        """The size of all tensors on disk; of a model in a GGUF file, the size of the file."""
        if self.kind == "gguf":
            return Path(os.path.expanduser(self.target)).stat().st_size
        return sum(info.nbytes for info in self.tensors.values())

    def without_fingerprint(self) -> "Checkpoint":
        """Returns the same checkpoint with an empty fingerprint, for estimates: a real one needs all weights."""
        copied = object.__new__(type(self))  # copy.copy would open the model again
        copied.__dict__.update(self.__dict__, fingerprint="")
        return copied

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Returns the tokenizer, the same object each time; do not change it."""
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, which takes seconds to read; an untrusted one is first opened in another process."""
        if self.kind not in ("embedded", "memory"):
            check_tokenizer(self.directory, trust_remote_code=self.trust_remote_code)
        return load_tokenizer(self.directory, trust_remote_code=self.trust_remote_code)

    def load(
        self,
        dtype: torch.dtype = torch.float32,
        *,
        device: str = "cpu",
        read_only: bool = False,
    ) -> PreTrainedModel:
        """Returns the model in eval mode; a `read_only` one may share weights, and must not be written to."""
        packed = self.quantization is not None
        if packed and self.plain is not None:
            return self.plain.load(dtype, device=device, read_only=read_only)
        loaded = load_model(
            self.directory,
            self.config,
            shapes={name: info.shape for name, info in self.files.items()},
            stored=sum(info.nbytes * 8 if packed else info.numel for info in self.files.values()),  # 1 bit or more
            dtype=dtype,
            device=device,
            trust_remote_code=self.trust_remote_code,
        )
        self.prepare(loaded, device)
        return loaded

    def copy_model(self) -> PreTrainedModel:
        """Returns a model that belongs to the caller, in eval mode, in the types of the checkpoint."""
        return self.load(self.scale_dtype)

    def _info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            near = difflib.get_close_matches(str(name), self.tensors, n=3)
            raise InputError(f"{self.target} has no tensor {name!r}" + (f"; near: {', '.join(near)}" if near else ""))
        return self.tensors[name]


class UnpackedCheckpoint(Checkpoint):
    """A quantized checkpoint with the names, shapes and values that its weights have without packing."""

    def __init__(self, stored: Checkpoint) -> None:
        assert stored.quantization is not None
        computed = ("config", "architecture", "fingerprint", "tensors", "slices", "plain")
        self.__dict__.update({name: value for name, value in vars(stored).items() if name not in computed})
        self._stored = stored
        self._weights = PackedWeights(stored.target, stored.files, stored.quantization, stored.read_file)
        self.tensors = self._weights.tensors
        self.slices = {}

    @property
    def stored(self) -> Checkpoint:
        return self._stored

    @property
    def plain(self) -> Checkpoint:
        return self

    @cached_property
    def config(self) -> PretrainedConfig:
        plain = copy.deepcopy(self.stored.config)
        vars(plain).pop("quantization_config", None)
        return plain

    @cached_property
    def packed(self) -> PackedWeights:
        """The weights, once it is known where they are in the model; raises unless all tensors are used."""
        shapes = {name: info.shape for name, info in self.tensors.items()}
        try:
            architecture = map_architecture(self.config, shapes, trust_remote_code=self.trust_remote_code)
        except InputError as problem:
            raise InputError(f"{self.target} cannot be read: {problem}") from None
        self._weights.follow(architecture, self.meta_model())
        return self._weights

    @property
    def architecture(self) -> Architecture:
        return self.packed.architecture

    @property
    def size_bytes(self) -> int:
        return self.stored.size_bytes

    def read(self, name: str) -> torch.Tensor:
        return self.unpack(self._info(name).name, self.stored.read_file)

    def parts(self, name: str) -> tuple[str, ...]:
        weight = self.packed.packed.get(name)
        return (name,) if weight is None else tuple(weight.parts.values())

    def unpack(self, name: str, read: Callable[[str], torch.Tensor]) -> torch.Tensor:
        return self.packed.unpack(name, read)

    def load(
        self, dtype: torch.dtype = torch.float32, *, device: str = "cpu", read_only: bool = False
    ) -> PreTrainedModel:
        """Returns the model in eval mode, which rounds activations as the files say."""

        def read_there(name: str) -> torch.Tensor:
            return self.unpack(name, lambda part: self.stored.read_pinned(part).to(device, non_blocking=True))

        loaded = StreamingModel(self, device, dtype=dtype, read=read_there if is_gpu(device) else self.read)
        loaded.load_all(copies=not read_only)
        return loaded.model

    def stored_as(self, name: str) -> tuple[str, str, int]:
        return self.packed.stored_as(name) if name in self.packed.packed else super().stored_as(name)

    def prepare(self, model: PreTrainedModel, device: torch.device | str) -> None:
        self.packed.prepare(model, device, cache=self.kv_cache)

    @property
    def activation_notes(self) -> tuple[str, ...]:
        if not self.kv_cache or self.packed.states_cache(self.kv_cache):
            return self.packed.activation_notes
        return (*self.packed.input_notes, *self._cache_notes)


def _apart(stored: Mapping[str, TensorInfo], slices: Mapping[str, ExpertSlice]) -> Iterator[tuple[str, TensorInfo]]:
    experts: dict[str, list[str]] = {}
    for name, part in slices.items():
        experts.setdefault(part.stacked, []).append(name)
    for name, info in stored.items():
        for expert in experts.get(name, ()):
            shape = slices[expert].shape
            yield expert, TensorInfo(expert, shape, info.dtype, math.prod(shape) * info.dtype.itemsize)
        if name not in experts:
            yield name, info


def _reopen(target: str, path: str, trust_remote_code: bool, revision: str | None) -> Checkpoint:
    try:
        checkpoint = Checkpoint(path, trust_remote_code=trust_remote_code, revision=revision)
    except InputError as problem:
        raise InputError(
            f"{path} cannot be opened on {socket.gethostname()}: {problem}. A model must be at the same path on every "
            "machine, or be an id on the Hub"
        ) from None
    checkpoint.target = target
    return checkpoint


def hash_name(digest: "hashlib._Hash", info: TensorInfo) -> None:
    """Adds name, type and shape of a tensor to a fingerprint, before its bytes."""
    digest.update(_json_line([info.name, str(info.dtype), info.shape]))


def _json_line(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"
