"""Models in memory: one that the user has loaded, read like a checkpoint, and one that is packed when it is saved."""

import copy
import json
import shutil
import weakref
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from fairbits.core.errors import InputError
from fairbits.core.records import read_object
from fairbits.models.architecture.architecture import Weight
from fairbits.models.architecture.parameter_mapping import expert_slices, stacked_experts
from fairbits.models.checkpoint import QUANTIZED, Checkpoint
from fairbits.models.io.layer_files import layer_tensors
from fairbits.models.io.safetensors_files import DTYPES, StoredTensor, TensorInfo
from fairbits.models.scales.groups import Codes, divisors, split_like
from fairbits.models.streaming_model import StreamingModel

CONFIG = "config.json"


class LoadedCheckpoint(Checkpoint):
    """A model in memory, with the names that its tensors would have in a file.

    Tensors are views of the model's own weights, and the model is never changed. `directory` is temporary and holds no
    weights. A `quantized` model is refused unless its reader wants one, with plain weights as of `fairbits.quantize`.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None, *, quantized: bool = False
    ) -> None:
        packing = check_plain(model, quantized=quantized)
        self.model = model
        where = "in memory" if packing is None else "quantized, in memory"
        self.target = f"{model.name_or_path or type(model).__name__} ({where})"
        self.revision = None
        self.kind = "memory"
        self.trust_remote_code = False
        self._state = saved_state(model)
        self.files: Mapping[str, StoredTensor] = MappingProxyType({})
        self._place = _TemporaryPlace()
        self.directory = self._place.path
        _write_companions(self.directory, model, tokenizer)
        if packing is not None:
            (self.directory / "plan.json").write_bytes(packing.plan_bytes)
        self._has_tokenizer, self._packing = tokenizer is not None, packing
        self._raw_config = read_object(self.directory / CONFIG, finite=False)
        self.notes = () if packing is None else (f"{QUANTIZED} (by fairbits, in memory)",)

    def __reduce__(self) -> NoReturn:
        raise InputError(f"{self.target} cannot be sent to another process; save it and give its directory")

    def read(self, name: str) -> Tensor:
        return self.read_pinned(self._info(name).name).cpu()

    def read_pinned(self, name: str) -> Tensor:
        part = self.slices.get(name)
        return self._state[name] if part is None else part.cut(self._state[part.stacked][part.expert])

    def announce(self, name: str) -> None:
        pass  # it is in memory

    def _bytes(self) -> Iterator[tuple[TensorInfo, int, bytearray | memoryview]]:
        for name, info in sorted(self._whole.items()):
            yield info, 0, self._state[name].cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data

    @cached_property
    def _whole(self) -> Mapping[str, TensorInfo]:
        return MappingProxyType({name: _info(name, tensor) for name, tensor in self._state.items()})

    @property
    def size_bytes(self) -> int:
        return super().size_bytes if self._packing is None else self._packing.size_bytes

    def tokenizer(self) -> PreTrainedTokenizerBase:
        if not self._has_tokenizer:
            raise InputError(f"{self.target} came without its tokenizer; pass tokenizer=…")
        return super().tokenizer()

    def load(
        self, dtype: torch.dtype = torch.float32, *, device: str = "cpu", read_only: bool = False
    ) -> PreTrainedModel:
        """Returns a model with new modules, in eval mode; weights of a `read_only` one may be the user's own."""
        loaded = StreamingModel(self, device, dtype=dtype, read=self.read_pinned)
        loaded.load_all(copies=not read_only)
        return loaded.model

    def copy_model(self) -> PreTrainedModel:
        copied: PreTrainedModel = copy.deepcopy(self.model)
        copied.eval()  # type: ignore[no-untyped-call]
        return copied

    @cached_property
    def config(self) -> PretrainedConfig:
        config: PretrainedConfig = AutoConfig.from_pretrained(self.directory, local_files_only=True)
        return config


class _TemporaryPlace:
    """A directory that is removed with the last checkpoint that uses it, or when Python ends."""

    def __init__(self) -> None:
        self.path = Path(mkdtemp(prefix="fairbits-model-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def saved_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """Returns the tensors that `save_pretrained` would write, by their names there: views of the model's own."""
    left_out = set(model._keys_to_ignore_on_save or ())
    state: dict[str, Any] = {name: tensor for name, tensor in model.state_dict().items() if name not in left_out}
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor) or tensor.dtype not in DTYPES.values():
            raise InputError(f"{name} of the model is not a plain tensor; give the directory or id of the model")
        if tensor.is_meta:
            raise InputError(
                f"{name} of the model is not in memory (it is offloaded, or was never loaded); load the model on one "
                "device, or give its directory or id instead: its blocks are then read one by one"
            )
    try:
        saved: dict[str, Tensor] = revert_weight_conversion(model, remove_tied_weights_from_state_dict(state, model))
    except RuntimeError as problem:
        raise InputError(f"transformers could not save the model: {' '.join(str(problem).split()):.400}") from problem
    return saved


def check_plain(model: PreTrainedModel, *, quantized: bool) -> "PackedOnSave | None":
    """Returns how a model that fairbits has quantized is packed, None for others; raises if weights are not plain."""
    name = type(model).__name__
    if getattr(transformers, name, None) is not type(model):
        raise InputError(
            f"the model is a {name}, which is not a class of transformers; save it, and give the directory: "
            "Checkpoint(directory, trust_remote_code=True) reads models that come with code"
        )
    if getattr(model, "_hf_peft_config_loaded", False) or any(".base_layer." in key for key in model.state_dict()):
        raise InputError(
            "the model has an adapter, whose weights are apart from those it adapts; merge it first "
            "(peft: model = model.merge_and_unload()), or remove it"
        )
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is None and getattr(model.config, "quantization_config", None) is None:
        return None
    if isinstance(quantizer, PackedOnSave) and quantized:
        return quantizer
    method = getattr(model, "quantization_method", None) or "an unknown method"
    path = model.name_or_path or "its directory"
    advice = f"evaluate {path} instead" if quantized else "give the model before it was quantized"
    raise InputError(f"the model in memory is already quantized ({getattr(method, 'value', method)}); {advice}")


def _info(name: str, tensor: Tensor) -> TensorInfo:
    return TensorInfo(name, tuple(tensor.shape), tensor.dtype, tensor.numel() * tensor.dtype.itemsize)


def _write_companions(directory: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> None:
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = [type(model).__name__]
    config.dtype = str(model.dtype).removeprefix("torch.")
    config.save_pretrained(directory)
    if model.can_generate() and model.generation_config is not None:
        # not its save_pretrained, which refuses settings that a pass over text does not use
        content = model.generation_config.to_diff_dict()
        (directory / "generation_config.json").write_text(json.dumps(content, indent=2, default=str), encoding="utf-8")
    if tokenizer is not None:
        save = getattr(tokenizer, "save_pretrained", None)
        if save is None or not callable(tokenizer):
            raise InputError(f"the tokenizer is a {type(tokenizer).__name__}; it must be a tokenizer of transformers")
        save(directory)


class PackedOnSave(HfQuantizer):
    """What transformers knows of a model that fairbits has quantized in memory; it is packed when it is saved.

    transformers asks the `hf_quantizer` of a model for the tensors to save. This one returns the tensors that
    `fairbits.quantize` writes. Codes are not kept, only scales: a weight w is code · scale, rounded to the type of
    the model, and w / scale is less than 1/2 from the code for up to 8 bits.
    """

    requires_calibration = False

    def __init__(self, quantization_config: QuantizationConfigMixin, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self.plan_bytes, self.size_bytes = b"", 0
        self._scales: dict[str, Tensor] = {}
        self._bits: dict[str, int] = {}
        self._weights: dict[str, Weight] = {}
        self._tied: dict[str, tuple[str, ...]] = {}

    def attach(
        self,
        model: PreTrainedModel,
        checkpoint: Checkpoint,
        *,
        bits: Mapping[str, int],
        scales: Mapping[str, Tensor],
        entries: Mapping[str, object],
        plan_bytes: bytes,
        size_bytes: int,
    ) -> None:
        """Makes a model with dequantized weights quantized for transformers; `entries` are its quantization_config."""
        self.plan_bytes, self.size_bytes = plan_bytes, size_bytes
        self._scales, self._bits = dict(scales), dict(bits)
        self._weights = {name: checkpoint.architecture.weights[name] for name in scales}
        self._tied = {name: checkpoint.architecture.tied_parameters(name) for name in scales}
        model.config.quantization_config = dict(entries)  # as in the file: the class would drop the version
        model.hf_quantizer, model.is_quantized = self, True  # type: ignore[assignment]
        model.quantization_method = self.quantization_config.quant_method  # type: ignore[assignment]

    def get_state_dict_and_metadata(self, model: PreTrainedModel) -> tuple[dict[str, Tensor], dict[str, str]]:
        state = saved_state(model)  # experts that are stacked are told apart, as in a checkpoint
        stacks = stacked_experts({name: tuple(tensor.shape) for name, tensor in state.items()})
        slices = expert_slices(model, stacks) if stacks else {}
        experts = {name: part.cut(state[part.stacked][part.expert]) for name, part in slices.items()}
        stacked = {part.stacked for part in slices.values()}
        state = {name: tensor for name, tensor in state.items() if name not in stacked} | experts
        for name, scales in self._scales.items():
            weight = self._weights[name]
            stored = state.pop(name)
            W = stored.T if weight.transposed else stored
            codes = _codes(name, W, scales.to(W.device), bits=self._bits[name])
            packed = layer_tensors(weight, codes, tied=self._tied[name])
            # clones, as transformers takes tensors with the same memory for tied ones
            state |= {part: tensor.clone() for part, tensor in packed.items()}
        return state, {}

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        """True: weights are plain, so adapters can be trained on top of them."""
        return True

    def _dequantize(self, model: PreTrainedModel, dtype: torch.dtype | None = None) -> PreTrainedModel:
        if isinstance(dtype, torch.dtype):  # transformers may give its name
            torch.nn.Module.to(model, dtype)
        return model


def _codes(name: str, W: Tensor, scales: Tensor, *, bits: int) -> Codes:
    ratio = split_like(W.float(), scales) / divisors(scales.float()).unsqueeze(-1)
    codes = ratio.round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).reshape(W.shape)
    rounded = Codes(codes.to(torch.int8), scales, bits)
    if not torch.equal(rounded.dequantized.to(W.dtype), W):
        raise InputError(
            f"{name} has changed since the model was quantized, and its codes no longer represent it; quantize again, "
            "or save the weights without packing: model.dequantize().save_pretrained(…)"
        )
    return rounded


Model: TypeAlias = str | Path | Checkpoint | PreTrainedModel  # files, an id on the Hub, or a loaded model


def open_checkpoint(
    model: Model, tokenizer: PreTrainedTokenizerBase | None = None, *, quantized: bool = False
) -> Checkpoint:
    """Returns a model as a checkpoint; `tokenizer` belongs to a loaded model, which may be `quantized`."""
    if isinstance(model, torch.nn.Module):
        return _open_loaded(model, tokenizer, quantized=quantized)
    if tokenizer is not None:
        raise InputError(
            f"a tokenizer was given with {model}, which has its own; only a model in memory needs one: leave it out"
        )
    return model if isinstance(model, Checkpoint) else Checkpoint(model)


def open_checkpoints(
    models: Iterable[Model], tokenizer: PreTrainedTokenizerBase | None = None, *, quantized: bool = False
) -> list[Checkpoint]:
    """Returns models as checkpoints; a tokenizer belongs to the loaded ones, of which there must be one."""
    listed = list(models)
    if tokenizer is not None and not any(isinstance(model, torch.nn.Module) for model in listed):
        raise InputError("a tokenizer was given, but no model in memory, which alone needs one: leave it out")
    return [
        open_checkpoint(model, tokenizer if isinstance(model, torch.nn.Module) else None, quantized=quantized)
        for model in listed
    ]


def _open_loaded(model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase | None, *, quantized: bool) -> Checkpoint:
    if not isinstance(model, PreTrainedModel):
        advice = ""
        if hasattr(model, "merge_and_unload"):
            advice = "; merge its adapter first: model = model.merge_and_unload()"
        elif hasattr(model, "_orig_mod"):
            advice = "; it is compiled: give the model that it was compiled from"
        raise InputError(f"the model is a {type(model).__name__}; it must be a PreTrainedModel of transformers{advice}")
    return LoadedCheckpoint(model, tokenizer, quantized=quantized)
