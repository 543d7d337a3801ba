"""llm-compressor: rtn, rtn_mse (scales of its MSE observer), gptq, gptq_mse. Symmetric, as its presets are."""

from typing import Any

import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, fake_quantize
from datasets import Dataset
from job import STORED_BITS, Job, Prepared, Quantized, work
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from loguru import logger
from transformers import AutoTokenizer


def prepare(job: Job) -> Prepared:
    """Returns a run of `oneshot` with everything but the method left at its default."""
    model = job.load()
    weights = QuantizationArgs(
        num_bits=job.bits,
        symmetric=True,
        strategy="channel" if job.group is None else "group",
        group_size=job.group,
        observer="memoryless_mse" if job.method.endswith("_mse") else "memoryless_minmax",
    )
    groups = {"group_0": QuantizationScheme(targets=job.modules, weights=weights)}
    settings: dict[str, Any] = {"model": model, "processor": AutoTokenizer.from_pretrained(job.model)}
    if job.method.startswith("gptq"):
        masks = [[1] * len(ids) for ids in job.samples]
        settings |= {
            "recipe": GPTQModifier(config_groups=groups),
            "dataset": Dataset.from_dict({"input_ids": job.samples, "attention_mask": masks}),
            "num_calibration_samples": len(job.samples),  # by default no more than 512
            "shuffle_calibration_samples": False,
        }
    else:
        settings["recipe"] = QuantizationModifier(config_groups=groups)
    warnings: list[str] = []  # among them the layers that GPTQ failed on
    logger.add(lambda told: warnings.append(told.record["message"]), filter=is_warning)
    return lambda: oneshot(**settings), lambda: read(job, model, warnings)


def is_warning(record: dict[str, Any]) -> bool:
    """Returns whether this is a warning; its measurements are said at a level above."""
    return record["level"].name == "WARNING"


def read(job: Job, model: torch.nn.Module, warnings: list[str]) -> Quantized:
    """Returns the weights rounded by the scales that the run has left in the modules."""
    modules = {name: model.get_submodule(name) for name in job.modules}
    rounded = {
        name: fake_quantize(each.weight, each.weight_scale, each.weight_zero_point, each.quantization_scheme.weights)
        for name, each in modules.items()
    }
    if job.method.startswith("gptq"):  # these lie on their grid already
        for name, each in modules.items():
            torch.testing.assert_close(rounded[name], each.weight.data)
    scales = sum(each.weight_scale.numel() for each in modules.values())
    bits = job.bits + STORED_BITS * scales / sum(W.numel() for W in rounded.values())
    return Quantized(rounded, bits, tuple(dict.fromkeys(warnings)))


if __name__ == "__main__":
    work("llmcompressor", prepare)
