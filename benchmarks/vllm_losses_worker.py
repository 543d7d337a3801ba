"""Losses of texts in vLLM, one model after the other; run by vLLM's own python, which has no fairbits.

    python vllm_losses_worker.py JOB OUT

JOB has the token ids of every window, which of them are predicted, and the models with their types and options. Of
each model OUT gets NAME.json: the nats of every window and what computed them, or what vLLM said.
"""

import json
import sys
from pathlib import Path
from typing import Any

from vllm_worker import reason  # sets up vLLM, and is imported before it

import torch  # isort: skip
from vllm.distributed import cleanup_dist_env_and_memory  # isort: skip
from vllm.model_executor.kernels.linear import register_linear_kernel  # isort: skip
from vllm.model_executor.kernels.linear.nvfp4.emulation import EmulationNvFp4LinearKernel  # isort: skip
from vllm.platforms import PlatformEnum  # isort: skip

import vllm  # isort: skip


def losses(model: str, dtype: str, windows: list[dict[str, list[int]]], options: dict[str, Any]) -> dict[str, Any]:
    """Returns the nats of every window, and the kernels."""
    engine = vllm.LLM(
        model,
        dtype=dtype,
        enforce_eager=True,
        gpu_memory_utilization=0.3,
        max_model_len=1024,
        max_num_seqs=4,
        max_num_batched_tokens=1024,
        enable_prefix_caching=False,
        **options,
    )
    score = vllm.SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    prompts = [{"prompt_token_ids": window["ids"]} for window in windows]
    answers = engine.generate(prompts, score, use_tqdm=False)
    return {
        "nats": [_nats(answer, window["predicted"]) for answer, window in zip(answers, windows, strict=True)],
        "kernels": engine.apply_model(kernels)[0],
        "cache": str(engine.llm_engine.vllm_config.cache_config.cache_dtype),
    }


def _nats(answer: Any, predicted: list[int]) -> float:
    """Returns the nats of the predicted tokens of a window."""
    ids, values = answer.prompt_token_ids, answer.prompt_logprobs
    return -sum(values[t][ids[t]].logprob for t in predicted)


def kernels(model: torch.nn.Module) -> list[str]:
    """Returns the classes that compute the quantized layers."""
    names = set()
    for module in model.modules():
        scheme = getattr(module, "scheme", None)
        if scheme is not None:
            inner = {type(part).__name__ for part in vars(scheme).values() if "kernel" in type(part).__name__.lower()}
            names.add(" ".join([type(scheme).__name__, *sorted(inner)]))
    return sorted(names)


def tried(directory: str, dtype: str, windows: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the losses or what vLLM says, and both if it is then allowed to emulate the format."""
    emulate = options.pop("emulate", False)
    try:
        return losses(directory, dtype, windows, options)
    except Exception as problem:  # whatever vLLM says of a model is the result
        refusal = {"error": reason(problem)}
    cleanup_dist_env_and_memory()
    if not emulate:
        return refusal
    register_linear_kernel(EmulationNvFp4LinearKernel, PlatformEnum.CPU, "nvfp4")
    return tried(directory, dtype, windows, options) | refusal


def main(job_file: str, out: str) -> None:
    """Computes every model of the job that has no result yet."""
    job = json.loads(Path(job_file).read_text("utf-8"))
    for name, (directory, dtype, options) in job["models"].items():
        file = Path(out, f"{name}.json")
        if not file.exists():
            reply = tried(directory, dtype, job["windows"], options)
            file.write_text(json.dumps(reply | {"vllm": vllm.__version__, "torch": torch.__version__}), "utf-8")
            cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main(*sys.argv[1:])
