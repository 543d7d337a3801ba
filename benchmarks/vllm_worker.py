"""Serves models with vLLM, one after the other in one process; run by vLLM's own python, which has no fairbits.

    python vllm_worker.py JOB OUT

JOB names the models, and prompts and texts for each tokenizer. Of each model OUT gets NAME.json (tokens, losses, or
what vLLM said) and NAME.npz (the logits after each prompt). Linear layers that no CPU kernel of vLLM computes are
computed by `PlainKernel`, or as vLLM emulates their format. On a GPU kernels of vLLM compute everything.
"""

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the model in this process
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the cores are shared with others
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}

import numpy as np
import torch
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.model_executor.kernels.linear import _POSSIBLE_KERNELS, register_linear_kernel
from vllm.model_executor.kernels.linear.mixed_precision.MPLinearKernel import MPLinearKernel
from vllm.model_executor.kernels.linear.mxfp4.emulation import EmulationMxfp4LinearKernel
from vllm.model_executor.kernels.linear.mxfp8.emulation import EmulationMxfp8LinearKernel
from vllm.model_executor.kernels.linear.nvfp4.emulation import EmulationNvFp4LinearKernel
from vllm.model_executor.layers.quantization.compressed_tensors.schemes import CompressedTensorsWNA16
from vllm.platforms import PlatformEnum, current_platform

import vllm

EMULATIONS = (
    (EmulationNvFp4LinearKernel, "nvfp4"),
    (EmulationMxfp4LinearKernel, "mxfp4"),
    (EmulationMxfp8LinearKernel, "mxfp8"),
)
"""vLLM's own stand-ins for kernels that need a GPU."""
OPTIONS = "VLLM_CHECK_OPTIONS"
"""Further options of the engine, as JSON: a machine may lack the kernels that vLLM would choose."""


class PlainKernel(MPLinearKernel):
    """Stands in for kernels that need a GPU: unpacks what vLLM has loaded, and multiplies in torch."""

    @classmethod
    def get_min_capability(cls) -> int:
        """Returns what any device has."""
        return -1

    @classmethod
    def can_implement(cls, c: Any) -> tuple[bool, str | None]:
        """Returns whether weights are symmetric, as all of fairbits are."""
        return not c.zero_points, "zero points are not read"

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Unpacks the codes, as rows of bits, and multiplies them with their scales."""
        packed, scales, _ = self._get_weight_params(layer)
        bits, columns = self.config.weight_type.size_bits, self.config.partition_weight_shape[0]
        rows = np.unpackbits(packed.data.contiguous().numpy().view(np.uint8), axis=1, bitorder="little")
        places = rows[:, : columns * bits].reshape(len(rows), columns, bits).astype(np.int64)
        codes = torch.from_numpy(places @ (1 << np.arange(bits)) - (1 << (bits - 1)))
        groups = codes.reshape(*scales.shape, -1).to(scales.dtype) * scales.data[:, :, None]
        layer.plain_weight = torch.nn.Parameter(groups.reshape(codes.shape), requires_grad=False)

    def apply_weights(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the product."""
        return torch.nn.functional.linear(x, layer.plain_weight, bias)


def served(directory: str, dtype: str, text: dict[str, Any]) -> tuple[dict[str, Any], np.ndarray]:
    """Returns the greedy tokens of every prompt, the nats of every text, the kernels; and the logits after prompts."""
    CompressedTensorsWNA16._kernel_backends_being_used.clear()
    if current_platform.is_cpu():
        kernels = [kernel for kernel in _POSSIBLE_KERNELS[PlatformEnum.CPU] if kernel is not PlainKernel]
        # vLLM's own is asked first, but for float32, which it takes and then does not compute
        ordered = [PlainKernel, *kernels] if dtype == "float32" else [*kernels, PlainKernel]
        _POSSIBLE_KERNELS[PlatformEnum.CPU][:] = ordered
        for emulation, kind in EMULATIONS:
            register_linear_kernel(emulation, PlatformEnum.CPU, kind)
    model = vllm.LLM(
        directory,
        dtype=dtype,
        enforce_eager=True,
        gpu_memory_utilization=0.3,
        max_model_len=text["positions"],
        max_num_seqs=8,
        max_logprobs=-1,
        logprobs_mode="raw_logits",
        enable_prefix_caching=False,
        **json.loads(os.environ.get(OPTIONS, "{}")),
    )
    prompts = _ids(text["prompts"])
    greedy = vllm.SamplingParams(temperature=0, max_tokens=text["new_tokens"], ignore_eos=True, detokenize=False)
    answers = [output.outputs[0] for output in model.generate(prompts, greedy, use_tqdm=False)]
    whole = vllm.SamplingParams(temperature=0, max_tokens=1, logprobs=-1, detokenize=False)
    steps = [output.outputs[0].logprobs[0] for output in model.generate(prompts, whole, use_tqdm=False)]
    logits = np.array([[step[token].logprob for token in sorted(step)] for step in steps])
    score = vllm.SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=-1, detokenize=False)
    nats = {
        lang: [_nats(output) for output in model.generate(_ids(texts), score, use_tqdm=False)]
        for lang, texts in text["texts"].items()
    }
    reply = {
        "tokens": [list(answer.token_ids) for answer in answers],
        "nats": nats,
        "kernels": sorted(CompressedTensorsWNA16._kernel_backends_being_used),
    }
    return reply, logits


def _nats(answer: Any) -> float:
    """Returns the nats of a prompt after its first token, from logits or logarithms of probabilities."""
    total = 0.0
    for token, at in zip(answer.prompt_token_ids[1:], answer.prompt_logprobs[1:], strict=True):
        values = np.fromiter((candidate.logprob for candidate in at.values()), float, len(at))
        total += np.logaddexp.reduce(values) - at[token].logprob
    return total


def _ids(prompts: list[list[int]]) -> list[dict[str, list[int]]]:
    return [{"prompt_token_ids": ids} for ids in prompts]


def reason(problem: BaseException) -> str:
    """Returns the first thing that went wrong, in one line."""
    while problem.__cause__ or problem.__context__:
        problem = problem.__cause__ or problem.__context__
    return " ".join(f"{type(problem).__name__}: {problem}".split())[:400]


def main(job_file: str, out: str) -> None:
    """Serves every model of the job that has no result yet."""
    job = json.loads(Path(job_file).read_text("utf-8"))
    for name, (directory, dtype, tokenizer) in job["models"].items():
        file = Path(out, f"{name}.json")
        if file.exists():
            continue
        reply: dict[str, Any]
        try:
            reply, logits = served(directory, dtype, job["texts"][tokenizer])
            np.savez_compressed(file.with_suffix(".npz"), logits=logits)
        except Exception as problem:  # whatever vLLM says of a model is the result
            reply = {"error": reason(problem)}
        file.write_text(json.dumps(reply | {"vllm": vllm.__version__, "machine": platform.machine()}), "utf-8")
        cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main(*sys.argv[1:])
