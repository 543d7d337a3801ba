"""The policy whose codes and scales are learned after rounding."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from fairbits.core.errors import InputError
from fairbits.core.memory import CPU_END_TO_END_WEIGHTS, LEARNED_WEIGHT_BYTES, LEARNING_SHARE
from fairbits.quantization.evidence import Evidence, How
from fairbits.quantization.plan import Learning, Plan
from fairbits.quantization.policies.gptq import gptq
from fairbits.quantization.policies.option import TOKENS, Option, PolicyOptions, policy
from fairbits.quantization.policies.precision import ALLOWED, AVG_BITS, SENSITIVITY, WIDTHS, ObjectiveOption, allocate

GPU_ROWS, GPU_TOKENS = 32, 16384
"""Defaults on a GPU, which reads 32 windows in about the time of one: windows per step, tokens per language."""
CPU_BLOCK_STEPS = 100  # default for the blocks of a larger model on a CPU, where a step takes half a second


@policy(tokens=4 * TOKENS)
def fair(
    evidence: Evidence,
    options: PolicyOptions,
    *,
    objective: ObjectiveOption = "worst",
    block_steps: Annotated[
        int | None, Option("learning steps per block (0: none)", default="200, or 100 for a larger model on a CPU")
    ] = None,
    model_steps: Annotated[
        int | None, Option("learning steps of the whole model", default="500, or 0 if it does not fit into memory")
    ] = None,
    rows: Annotated[int | None, Option("windows of text per step", default="4, or 32 on a GPU")] = None,
    block_tokens: Annotated[
        int | None, Option("tokens per language for the steps of blocks", default="4096, or 16384 on a GPU")
    ] = None,
    avg_bits: Annotated[float | None, AVG_BITS] = None,
    widths: Annotated[Sequence[int], Option(ALLOWED, needs="avg_bits")] = WIDTHS,
    sensitivity: Annotated[How, Option(SENSITIVITY, needs="avg_bits")] = "predicted",
) -> Plan:
    """Returns GPTQ under an equal mix, whose codes and scales are then learned for the mean or the worst language.

    Learning goes block by block. If all blocks fit into the memory of the GPU with 6 bytes per weight (on a CPU: up to
    50 million weights), or if `model_steps` is given, they are then learned together.
    """
    from fairbits.models.device import is_gpu

    if options.group == "tensor" and options.scheme is None:
        raise InputError("group is tensor; fair learns scales per channel or per group: choose one of these")
    if avg_bits is not None and options.scheme is not None:
        raise InputError(f"scheme is {options.scheme} and avg_bits {avg_bits:g}; bits are free for integers only")
    gpu, whole = is_gpu(evidence.device), _fits_end_to_end(evidence)
    if block_steps is None:
        block_steps = Learning.block_steps if gpu or whole else CPU_BLOCK_STEPS
    if block_tokens is None:
        block_tokens = GPU_TOKENS if gpu else Learning.block_tokens
    if model_steps is None:
        model_steps = Learning.model_steps if whole else 0
    if rows is None:
        rows = GPU_ROWS if gpu else Learning.rows
    learning = Learning(block_steps, block_tokens, model_steps, rows, objective=objective)
    if not block_steps and not model_steps:
        raise InputError(
            "block_steps and model_steps are both 0, so fair would learn nothing: set one of them, or use gptq"
        )
    if avg_bits is None:
        start = gptq(evidence, options)
    else:
        start = allocate(
            evidence, options, avg_bits=avg_bits, objective=objective, widths=widths, sensitivity=sensitivity
        )
    settings = {
        **start.settings,
        "objective": objective,
        "block_steps": block_steps,
        "model_steps": model_steps,
        "rows": rows,
        "block_tokens": block_tokens,
    }
    return replace(start, policy="fair", settings=settings, learning=learning)


def _fits_end_to_end(evidence: Evidence) -> bool:
    """Returns whether the weights of all blocks can be learned together: in memory on a GPU, in time on a CPU."""
    from fairbits.models.device import fits_whole, is_gpu

    weights = sum(evidence.block_weights)
    if not is_gpu(evidence.device):
        return weights <= CPU_END_TO_END_WEIGHTS
    return fits_whole(LEARNED_WEIGHT_BYTES * weights, evidence.device, share=LEARNING_SHARE)
