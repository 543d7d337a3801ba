"""LoadedCheckpoint: a transformers model that the user has loaded, read like a checkpoint, without a second copy."""

import copy
import json
import shutil
import weakref
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from fairbits.errors import InputError
from fairbits.model.checkpoint import QUANTIZED, Checkpoint
from fairbits.model.files.safetensors_files import DTYPES, StoredTensor, TensorInfo
from fairbits.records import read_object

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from fairbits.model.packed_on_save import PackedOnSave

CONFIG = "config.json"


class LoadedCheckpoint(Checkpoint):
    """A model in memory, with the names that its tensors would have in a file.

    Tensors are views of the model's own weights. The model itself is never changed: what computes gets modules of its
    own. `directory` is temporary and holds configuration and tokenizer, but no weights. A `quantized` model is refused
    unless its reader wants one; its weights must then be plain, as those of `fairbits.quantize` are.
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerBase | None" = None,
        *,
        quantized: bool = False,
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
        """Returns one tensor on the CPU: the model's own if it is there. Do not write to it."""
        return self.read_pinned(self._info(name).name).cpu()

    def read_pinned(self, name: str) -> Tensor:
        """Returns one tensor where it is. Do not write to it."""
        own = self.slices.get(name)
        return self._state[name] if own is None else own.cut(self._state[own.stacked][own.expert])

    def announce(self, name: str) -> None:
        """Does nothing: the tensor is in memory."""

    def _bytes(self) -> Iterator[tuple[TensorInfo, int, bytearray | memoryview]]:
        for name, info in sorted(self._whole.items()):
            yield info, 0, self._state[name].cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data

    @cached_property
    def _whole(self) -> Mapping[str, TensorInfo]:
        return MappingProxyType({name: _info(name, tensor) for name, tensor in self._state.items()})

    @property
    def size_bytes(self) -> int:
        """The size of all tensors on disk once the model is saved."""
        return super().size_bytes if self._packing is None else self._packing.size_bytes

    def without_fingerprint(self) -> "LoadedCheckpoint":
        """Returns the same checkpoint with an empty fingerprint."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, fingerprint="")
        return other

    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """Returns a tokenizer like that of the user."""
        if not self._has_tokenizer:
            raise InputError(f"{self.target} came without its tokenizer; pass tokenizer=…")
        return super().tokenizer()

    def load(
        self, dtype: torch.dtype = torch.float32, *, device: str = "cpu", read_only: bool = False
    ) -> "PreTrainedModel":
        """Returns a model with modules of its own, in eval mode, in the memory of a device.

        The weights of a `read_only` model are the user's own where type and device are the same.
        """
        from fairbits.model.streaming_model import StreamingModel

        loaded = StreamingModel(self, device, dtype=dtype, read=self.read_pinned)
        loaded.load_all(copies=not read_only)
        model: PreTrainedModel = loaded.model
        return model

    def copy_model(self) -> "PreTrainedModel":
        """Returns a copy of the user's model, in eval mode, in its types and on its device."""
        copied: PreTrainedModel = copy.deepcopy(self.model)
        copied.eval()  # type: ignore[no-untyped-call]
        return copied

    @cached_property
    def config(self) -> "PretrainedConfig":
        """The configuration, which belongs to the checkpoint and not to the user's model."""
        from transformers import AutoConfig

        found: PretrainedConfig = AutoConfig.from_pretrained(self.directory, local_files_only=True)
        return found


class _TemporaryPlace:
    """A directory that is removed with the last checkpoint that uses it, or when Python ends."""

    def __init__(self) -> None:
        self.path = Path(mkdtemp(prefix="fairbits-model-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def saved_state(model: "PreTrainedModel") -> dict[str, Tensor]:
    """Returns the tensors that `save_pretrained` would write, by their names there: views of the model's own."""
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    left_out = set(model._keys_to_ignore_on_save or ())
    state: dict[str, Any] = {name: each for name, each in model.state_dict().items() if name not in left_out}
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor) or tensor.dtype not in DTYPES.values():
            raise InputError(f"{name} of the model is no plain tensor; give the directory or id of the model instead")
        if tensor.is_meta:
            raise InputError(
                f"{name} of the model is not in memory (it is offloaded, or was never loaded); load the model on one "
                "device, or give its directory or id instead: its blocks are then read one by one"
            )
    try:
        kept = remove_tied_weights_from_state_dict(state, model)
        found: dict[str, Tensor] = revert_weight_conversion(model, kept)
    except RuntimeError as problem:
        raise InputError(f"transformers could not save the model: {' '.join(str(problem).split()):.400}") from problem
    return found


def check_plain(model: "PreTrainedModel", *, quantized: bool) -> "PackedOnSave | None":
    """Returns how a model that fairbits has quantized is packed, None for others; raises if weights are not plain."""
    import transformers

    from fairbits.model.packed_on_save import PackedOnSave

    name = type(model).__name__
    if getattr(transformers, name, None) is not type(model):
        raise InputError(
            f"the model is a {name}, which is no class of transformers; save it, and give the directory: "
            "Checkpoint(directory, trust_remote_code=True) reads models that come with code"
        )
    if getattr(model, "_hf_peft_config_loaded", False) or any(".base_layer." in each for each in model.state_dict()):
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


def _write_companions(directory: Path, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase | None") -> None:
    """Writes what `save_pretrained` would write beside the weights; the user's configuration stays as it is."""
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
