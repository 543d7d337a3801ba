"""Opening a model, wherever it is: in files, on the Hub, or in memory."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.loaded_checkpoint import LoadedCheckpoint

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
