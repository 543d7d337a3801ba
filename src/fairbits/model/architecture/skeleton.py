"""The transformers class of a configuration, built on the meta device: all modules, no memory."""

import copy
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from fairbits.errors import InputError

Model = PreTrainedModel


def model_class(config: PretrainedConfig, *, trust_remote_code: bool = False) -> type[Model]:
    """Returns the class named in config.architectures; without a name the language model class of the family."""
    import transformers

    names = getattr(config, "architectures", None) or _family_classes(config)
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
    known = getattr(transformers, names[0], None)
    if isinstance(known, type) and issubclass(known, PreTrainedModel):
        return known
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
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    loaded: type[Model] = get_class_from_dynamic_module(reference, config._name_or_path)
    return loaded


def skeleton(config: PretrainedConfig, cls: type[Model]) -> Model:
    """Returns a model of the class without storage, in eval mode, computing in float32."""
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


def found(model: nn.Module, names: Iterable[str]) -> str:
    """Returns one line on what a model that cannot be mapped is made of."""
    kinds = Counter(type(m).__name__ for m in model.modules() if not any(True for _ in m.children()))
    lists = [
        f"{path} ({len(m)} x {type(m[0]).__name__})"
        for path, m in model.named_modules()
        if isinstance(m, nn.ModuleList) and len(m)
    ]
    first = list(names)[:5]
    return (
        f"found: class {type(model).__name__}; modules {', '.join(f'{n} {kind}' for kind, n in kinds.most_common(8))}; "
        f"repeated lists {', '.join(lists[:6]) or 'none'}; first tensors {', '.join(first) or 'none'}"
    )


def _family_classes(config: PretrainedConfig) -> list[str]:
    from transformers.models.auto import modeling_auto

    tables = (
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )
    return [table[config.model_type] for table in tables if config.model_type in table]
