"""The transformers class of a configuration on the meta device: its modules, and a forward pass that traces them."""

import copy
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PretrainedConfig, PreTrainedModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.auto import modeling_auto

from fairbits.core.errors import InputError
from fairbits.core.tensors import first_tensor

Model = PreTrainedModel
SPARE_VALUES = 2**28  # values that a model may have beyond its files: a table of positions of 1 GiB in float32


def model_class(config: PretrainedConfig, *, trust_remote_code: bool = False) -> type[Model]:
    """Returns the class named in config.architectures; without a name the language model class of the family."""
    kinds = ("SEQ_TO_SEQ_CAUSAL_LM", "CAUSAL_LM", "MASKED_LM")
    tables = [getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES") for kind in kinds]
    family = [table[config.model_type] for table in tables if config.model_type in table]
    names = getattr(config, "architectures", None) or family
    remote = getattr(config, "auto_map", None) or {}
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or not isinstance(remote, dict):
        raise InputError(
            f"the configuration has architectures {names!r:.80}, auto_map {remote!r:.80}; "
            "they must be a list of class names, and an object or missing"
        )
    if not names:
        raise InputError(
            f"the configuration ({type(config).__name__}, model_type {config.model_type!r}) names no architecture; "
            "config.json must hold `architectures` or the model_type of a language model in transformers"
        )
    listed = getattr(transformers, names[0], None)
    if isinstance(listed, type) and issubclass(listed, PreTrainedModel):
        return listed
    reference = next((ref for ref in remote.values() if str(ref).endswith(f".{names[0]}")), None)
    if reference is None:
        raise InputError(
            f"the configuration names the class {names[0]!r} (model_type {config.model_type!r}), which is not in "
            f"transformers {transformers.__version__}; a class of a newer version needs an upgrade of transformers"
        )
    if not trust_remote_code:
        raise InputError(
            f"the class {names[0]!r} is code that comes with the checkpoint; "
            "it runs only with trust_remote_code, after you have read it"
        )
    loaded: type[Model] = get_class_from_dynamic_module(reference, config._name_or_path)
    return loaded


def meta_model(config: PretrainedConfig, cls: type[Model] | None = None, *, trust_remote_code: bool = False) -> Model:
    """Returns a model without storage, in eval mode, computing in float32; by default of `model_class`."""
    cls = cls or model_class(config, trust_remote_code=trust_remote_code)
    options: dict[str, Any] = {"attn_implementation": "eager", "dtype": torch.float32}
    if cls._can_set_experts_implementation():
        options["experts_implementation"] = "batched_mm"  # the one without loops over values
    try:
        with torch.device("meta"):
            # the options are written into the configuration, which belongs to the caller
            model: Model = cls._from_config(copy.deepcopy(config), **options)  # type: ignore[no-untyped-call]
    except Exception as error:  # every family checks its own fields in its own way
        raise InputError(
            f"{cls.__name__} cannot be built from its configuration: {type(error).__name__}: {error}; "
            "config.json must be complete and valid for the installed transformers"
        ) from error
    model.eval()  # type: ignore[no-untyped-call]
    return model


def check_values(model: Model, stored: int) -> None:
    """Raises if a model on the meta device has many more values than the files store: computed, or random."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    values = sum(tensor.numel() for tensor in tensors.values())
    if values > 2 * stored + SPARE_VALUES:
        raise InputError(
            f"{type(model).__name__} has {values:,} values by its configuration, and the files have at most "
            f"{stored:,}; they must agree: correct the sizes in config.json, or fetch the files again"
        )


def initializes(model: Model) -> bool:
    """Returns whether transformers initializes a model without some X.weight, which classes such as T5's ask for."""
    for module in model.modules():
        module._is_hf_initialized = False  # type: ignore[assignment]
    try:
        model.initialize_weights()  # type: ignore[no-untyped-call]
    except AttributeError:
        return False
    return True


def describe_modules(model: nn.Module, names: Iterable[str]) -> str:
    """Returns a one-line description of a model that cannot be mapped."""
    kinds = Counter(type(module).__name__ for module in model.modules() if not [*module.children()])
    modules = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(8))
    listed = [(path, module) for path, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    lists = [(path, module) for path, module in listed if len(module)]
    repeated = ", ".join(f"{path} ({len(members)} x {type(members[0]).__name__})" for path, members in lists[:6])
    first = ", ".join(list(names)[:5])
    return (
        f"found: class {type(model).__name__}; modules {modules}; repeated lists {repeated or 'none'}; "
        f"first tensors {first or 'none'}"
    )


TOKENS = 2  # the fewest for which one token can attend to another
TEXT, SOUND = "input_ids", "input_features"
FRAMES_PER_POSITION = 2  # of Whisper: the second of its convolutions has this stride

Key = tuple[int, int, int, int]


@dataclass(frozen=True)
class TracedCall:
    """One call of a module: the identity of what went in and came out, and the arguments themselves."""

    path: str
    input_id: Key | None
    output_id: Key | None
    in_channels: int | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    several: bool = False  # something else than one tensor came out
    out_channels: int | None = None


def trace(model: PreTrainedModel) -> dict[str, list[TracedCall]]:
    """Returns the calls of every module that text reaches, by path, in the order of their first call."""
    calls: dict[str, list[TracedCall]] = {}
    alive: list[Any] = []  # a storage's address names it only as long as the storage lives

    def enter(path: str) -> Any:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = first_tensor((*args, *kwargs.values()))
            alive.append(x)
            calls.setdefault(path, []).append(TracedCall(path, identity(x), None, _channels(x), args, dict(kwargs)))

        return hook

    def leave(path: str) -> Any:
        def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
            x = first_tensor((output,))
            alive.append(x)
            several = not isinstance(output, Tensor)
            calls[path][-1] = replace(
                calls[path][-1], output_id=identity(x), several=several, out_channels=_channels(x)
            )

        return hook

    handles = []
    for path, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(enter(path), with_kwargs=True))
        handles.append(module.register_forward_hook(leave(path)))
    try:
        with torch.no_grad(), _ValuesAreTrue():  # type: ignore[no-untyped-call]
            model(**_inputs(model), use_cache=False)
    except Exception as error:  # a model's own code, which may need images or sound instead
        reads = model.main_input_name
        why = f"{type(error).__name__}: {error}" if reads == TEXT else f"its input is {reads}, and not text"
        raise InputError(f"no token ids pass through it ({why})") from error
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _channels(x: Tensor | None) -> int | None:
    return x.shape[-1] if x is not None and x.ndim else None


def _inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    config, ids = model.config, torch.zeros(1, TOKENS, dtype=torch.long, device="meta")
    if model.main_input_name == SOUND and hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
        frames = FRAMES_PER_POSITION * config.max_source_positions
        sound = torch.zeros(1, config.num_mel_bins, frames, device="meta")
        return {SOUND: sound, "decoder_input_ids": ids}
    # without a mask some families warn that the ids might be padded
    inputs = {TEXT: ids, "attention_mask": torch.ones_like(ids)}
    return inputs | ({"decoder_input_ids": ids.clone()} if config.is_encoder_decoder else {})


def check_stream(model: Model, calls: Mapping[str, list[TracedCall]], first: str) -> None:
    """Raises unless an embedding makes one tensor of tokens, and block `first` sees (texts, tokens, channels)."""
    if getattr(model.config.get_text_config(), "hidden_size", None) is None:
        raise InputError(f"its configuration ({type(model.config).__name__}) has no hidden_size")
    embedding = model.get_input_embeddings()
    for path, module in model.named_modules():
        if module is embedding and any(call.several for call in calls.get(path, ())):
            raise InputError(f"{path}, its embedding, gives several tensors at once")
    call = calls[first][0]
    x = first_tensor((*call.args, *call.kwargs.values()))
    if x is not None and x.ndim == 3 and x.shape[:2] == (TOKENS, 1):
        raise InputError("its blocks see the tokens of all texts one after the other, not one text after the other")


def identity(tensor: Tensor | None) -> Key | None:
    """Returns the identity of a tensor. Reshaping keeps it; slicing, copying or changing it in place does not."""
    if tensor is None:
        return None
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset()), tensor.numel(), tensor._version


class _ValuesAreTrue(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Returns 1 when a model reads a value (such as "is any token masked?"), which meta tensors do not have.

    Of the places where something holds (such as "which tokens does this expert get?") it returns none.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return True
        if func is torch.ops.aten.nonzero.default:
            return torch.empty((0, args[0].ndim), dtype=torch.long, device=args[0].device)
        return func(*args, **(kwargs or {}))
