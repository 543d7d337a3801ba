"""A forward pass on the meta device: which module sees which tensor, in which order."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from fairbits.errors import InputError

TOKENS = 2  # the fewest among which attention can look from one to another

Key = tuple[int, int, int, int]


@dataclass(frozen=True)
class Call:
    """One call of a module: the identity of what went in and came out, and the arguments themselves."""

    path: str
    sees: Key | None
    gives: Key | None
    width: int | None  # features of the input
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def trace(model: PreTrainedModel) -> dict[str, list[Call]]:
    """Returns the calls of every module that text reaches, by path, in the order of their first call."""
    calls: dict[str, list[Call]] = {}
    alive: list[Any] = []  # a storage's address names it only as long as the storage lives

    def enter(path: str) -> Any:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen = _first_tensor((*args, *kwargs.values()))
            alive.append(seen)
            width = seen.shape[-1] if seen is not None and seen.ndim else None
            calls.setdefault(path, []).append(Call(path, identity(seen), None, width, args, dict(kwargs)))

        return hook

    def leave(path: str) -> Any:
        def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
            given = _first_tensor((output,))
            alive.append(given)
            calls[path][-1] = replace(calls[path][-1], gives=identity(given))

        return hook

    handles = []
    for path, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(enter(path), with_kwargs=True))
        handles.append(module.register_forward_hook(leave(path)))
    ids = torch.zeros(1, TOKENS, dtype=torch.long, device="meta")
    # without a mask some families warn that the ids might be padded
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids.clone()
    try:
        with torch.no_grad(), _ValuesAreTrue():  # type: ignore[no-untyped-call]
            model(**inputs, use_cache=False)
    except Exception as error:  # the code of any model, which may want images or sound instead
        raise InputError(f"no token ids pass through it ({type(error).__name__}: {error})") from error
    finally:
        for handle in handles:
            handle.remove()
    return calls


def identity(tensor: Tensor | None) -> Key | None:
    """Returns what tells a tensor from others; reshaping keeps it; a slice, a copy or a change in place does not."""
    if tensor is None:
        return None
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset()), tensor.numel(), tensor._version


class _ValuesAreTrue(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers 1 where a model asks for a value, which meta tensors have not (such as "is any token masked?")."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return True
        return func(*args, **(kwargs or {}))


def _first_tensor(values: tuple[Any, ...]) -> Tensor | None:
    for value in values:
        if isinstance(value, Tensor):
            return value
        if isinstance(value, tuple) and value and isinstance(value[0], Tensor):
            return value[0]
    return None
