"""Quantize in memory: carries out a plan into a model that generates, and whose weights are packed when it is saved."""

from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils.quantization_config import CompressedTensorsConfig

from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.forward.windows import TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.compressed_tensors import check_storable, planned_bytes, quantization_config
from fairbits.models.io.split_index import split_index
from fairbits.models.loaded_checkpoint import PackedOnSave
from fairbits.models.scales.groups import Codes
from fairbits.models.swapped_model import SwappedModel
from fairbits.quantization.execute import execute_plan
from fairbits.quantization.plan import LayerResult, LearningResult, Plan

NO_THRESHOLDS = "the exact scales of each language alone are not kept in memory: they are written with out=…"


def quantized_model(
    checkpoint: Checkpoint, plan: Plan, text: TokenizedText | None, *, device: str, progress: Progress | None
) -> PreTrainedModel:
    """Returns a new model with the quantized weights, in the type of the model; the given one stays as it is.

    The weights of a block are replaced as soon as it is rounded, and no codes are kept: there is one copy of the model
    in addition to the given one.
    """
    entries = _format_entries(checkpoint, plan)
    model = checkpoint.copy_model()
    quantizer = PackedOnSave(CompressedTensorsConfig(**entries))
    return quantize_into(model, quantizer, checkpoint, plan, text, device=device, progress=progress)


def quantize_into(
    model: PreTrainedModel,
    quantizer: PackedOnSave,
    checkpoint: Checkpoint,
    plan: Plan,
    text: TokenizedText | None,
    *,
    in_place: bool = False,
    device: str,
    progress: Progress | None,
) -> PreTrainedModel:
    """Returns a model after replacing its weights by the quantized ones and telling transformers so.

    `in_place` means that the checkpoint reads from the same weights: all codes are then kept until the last block is
    rounded, a byte per weight.
    """
    entries = _format_entries(checkpoint, plan)  # before anything that takes time
    swapped, waiting, scales = SwappedModel(checkpoint, model), dict[str, Codes](), dict[str, Tensor]()
    results: list[LayerResult] = []
    learned: LearningResult | None = None
    for block in execute_plan(checkpoint, plan, text=text, device=device, progress=progress):
        scales |= {name: codes.scales for name, codes in block.layers.items()}
        if in_place:
            waiting |= block.layers
        else:
            swapped.replace(block.layers)
        results += block.results
        learned = block.learned or learned
    size = planned_bytes(checkpoint, plan.schemes)
    while waiting:  # one by one: codes keep what they were dequantized to
        name, codes = waiting.popitem()
        swapped.replace({name: codes})
    notes = (*plan.notes, *([NO_THRESHOLDS] if plan.thresholds else []))
    done = replace(plan, results=tuple(results), learned=learned, size_bytes=size, notes=notes)
    quantizer.attach(
        model,
        checkpoint,
        bits={name: scheme.bits for name, scheme in plan.schemes.items()},
        scales=scales,
        entries=entries,
        plan_bytes=done.as_bytes(),
        size_bytes=size,
    )
    return model


def _format_entries(checkpoint: Checkpoint, plan: Plan) -> dict[str, Any]:
    """Returns the quantization_config; raises if the quantized model could not be saved."""
    check_storable(checkpoint, plan.schemes)
    parts = split_index(checkpoint, plan.schemes).parts
    if parts:
        raise InputError(
            f"transformers saves {next(iter(parts))} as it is here, and does not read it beside packed weights, so "
            "that the model cannot be saved from memory: write it with out=…"
        )
    return quantization_config(checkpoint, plan.schemes)
