"""Opening a model, wherever it is: in files, on the Hub, or in memory."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

import torch

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Model: TypeAlias = Union[str, Path, Checkpoint, "PreTrainedModel"]
"""What a command takes: a directory, a `.gguf` file, an id on the Hub, an opened checkpoint, or a loaded model."""


def open_checkpoint(
    model: Model, tokenizer: "PreTrainedTokenizerBase | None" = None, *, quantized: bool = False
) -> Checkpoint:
    """Returns a model as a checkpoint; `tokenizer` is that of a loaded model, which may be `quantized`."""
    if isinstance(model, torch.nn.Module):
        return _open_loaded(model, tokenizer, quantized=quantized)
    if tokenizer is not None:
        raise InputError(
            f"a tokenizer was given with {model}, which has its own; only a model in memory needs one: leave it out"
        )
    return model if isinstance(model, Checkpoint) else Checkpoint(model)


def open_checkpoints(
    models: Iterable[Model], tokenizer: "PreTrainedTokenizerBase | None" = None, *, quantized: bool = False
) -> list[Checkpoint]:
    """Returns models as checkpoints; the tokenizer is that of the loaded ones, of which there must be one."""
    given = list(models)
    if tokenizer is not None and not any(isinstance(each, torch.nn.Module) for each in given):
        raise InputError("a tokenizer was given, and no model in memory, which alone needs one: leave it out")
    return [
        open_checkpoint(each, tokenizer if isinstance(each, torch.nn.Module) else None, quantized=quantized)
        for each in given
    ]


def _open_loaded(model: torch.nn.Module, tokenizer: "PreTrainedTokenizerBase | None", *, quantized: bool) -> Checkpoint:
    from transformers import PreTrainedModel

    from fairbits.models.loaded_checkpoint import LoadedCheckpoint

    if not isinstance(model, PreTrainedModel):
        advice = ""
        if hasattr(model, "merge_and_unload"):
            advice = "; merge its adapter first: model = model.merge_and_unload()"
        elif hasattr(model, "_orig_mod"):
            advice = "; it is compiled: give the model that it was compiled from"
        raise InputError(f"the model is a {type(model).__name__}; it must be a PreTrainedModel of transformers{advice}")
    return LoadedCheckpoint(model, tokenizer, quantized=quantized)
