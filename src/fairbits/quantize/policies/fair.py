"""The policy whose codes and scales are learned after they were rounded."""

from collections.abc import Sequence
from dataclasses import replace

from fairbits.errors import InputError
from fairbits.memory import END_TO_END_WEIGHTS
from fairbits.model.device import is_gpu
from fairbits.model.scheme import Objective
from fairbits.quantize.evidence import Evidence, How
from fairbits.quantize.plan import Learning, Plan
from fairbits.quantize.policies.assemble import PolicyOptions
from fairbits.quantize.policies.gptq import gptq
from fairbits.quantize.policies.precision import WIDTHS, allocate

GPU_ROWS, GPU_TOKENS = 32, 16384
"""Windows of text that a GPU reads in about the time that it takes for one; tokens of a language for its blocks."""


def fair(
    evidence: Evidence,
    options: PolicyOptions,
    *,
    objective: Objective = "worst",
    block_steps: int = Learning.block_steps,
    model_steps: int | None = None,
    rows: int | None = None,
    block_tokens: int | None = None,
    avg_bits: float | None = None,
    widths: Sequence[int] = WIDTHS,
    sensitivity: How = "predicted",
) -> Plan:
    """Returns GPTQ under an equal mix, whose codes and scales are then learned for the mean or the worst language.

    First block by block, then, where the blocks have at most 500 million weights or `model_steps` says so, all of them
    together against the answers of the full-precision model. With `avg_bits` blocks have the widths that `allocate`
    gives them.
    """
    if options.group == "tensor":
        raise InputError("group is tensor; scales are learned per channel or per group of weights: choose one of these")
    gpu = is_gpu(evidence.device)
    if rows is None:
        rows = GPU_ROWS if gpu else Learning.rows
    if block_tokens is None:
        block_tokens = GPU_TOKENS if gpu else Learning.block_tokens
    if model_steps is None:
        model_steps = Learning.model_steps if sum(evidence.block_weights) <= END_TO_END_WEIGHTS else 0
    how = Learning(
        block_steps=block_steps,
        block_tokens=block_tokens,
        model_steps=model_steps,
        rows=rows,
        objective=objective,
    )
    if not how.block_steps and not how.model_steps:
        raise InputError(
            "block_steps and model_steps are both 0; fair learns something: give one of them, or take gptq"
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
        "block_steps": how.block_steps,
        "model_steps": how.model_steps,
        "rows": how.rows,
        "block_tokens": how.block_tokens,
    }
    return replace(start, policy="fair", settings=settings, learning=how)
