"""Writes checkpoints by llm-compressor, in its environment: python write_llm_compressor.py BASE OUT."""

from pathlib import Path
from typing import Any

from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, preset_name_to_scheme
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from writing import SAMPLES, write_all

KV = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
OPTIONS: dict[str, Any] = {"targets": ["Linear"], "ignore": ["lm_head", "re:.*mlp.gate$"]}


def groups(**weights: Any) -> dict[str, QuantizationScheme]:
    """Returns a scheme of weights alone, in groups of 32."""
    args = QuantizationArgs(num_bits=4, strategy="group", group_size=32, **weights)
    return {"group_0": QuantizationScheme(targets=["Linear"], weights=args)}


def int8(**inputs: Any) -> dict[str, QuantizationScheme]:
    """Returns a scheme of int8 whose inputs have zero points."""
    scheme = preset_name_to_scheme("W8A8", ["Linear"])
    scheme.input_activations = QuantizationArgs(num_bits=8, symmetric=False, **inputs)
    return {"group_0": scheme}


MIXED = {
    "attention": preset_name_to_scheme("FP8_DYNAMIC", ["re:.*self_attn.*"]),
    "mlp": preset_name_to_scheme("NVFP4", ["re:.*mlp.*"]),
}
MOE = ("FP8_DYNAMIC", "NVFP4", "W4A16")
PLAIN = ("FP8_DYNAMIC", "FP8_BLOCK", "FP8", "W8A8", "W4A16", "W4A16_ASYM", "W8A16", "NVFP4", "NVFP4A16", "MXFP4")
RECIPES: dict[str, Any] = {
    **{name: lambda name=name: QuantizationModifier(scheme=name, **OPTIONS) for name in PLAIN},
    "FP8-KV": lambda: QuantizationModifier(scheme="FP8_DYNAMIC", kv_cache_scheme=QuantizationArgs(**KV), **OPTIONS),
    "GPTQ": lambda: GPTQModifier(config_groups=groups(), ignore=["lm_head"]),
    "GPTQ-actorder-weight": lambda: GPTQModifier(config_groups=groups(), ignore=["lm_head"], actorder="weight"),
    **{f"moe-{name}": lambda name=name: QuantizationModifier(scheme=name, **OPTIONS) for name in MOE},
    "mixed": lambda: QuantizationModifier(config_groups=MIXED, ignore=["lm_head"]),
    "head": lambda: QuantizationModifier(scheme="W8A8", targets=["Linear"], ignore=["re:.*down_proj"]),
    "static-asym": lambda: QuantizationModifier(
        config_groups=int8(dynamic=False, strategy="tensor"), ignore=["lm_head"]
    ),
    "dynamic-asym": lambda: QuantizationModifier(
        config_groups=int8(dynamic=True, strategy="token"), ignore=["lm_head"]
    ),
    "AWQ": lambda: [
        AWQModifier(duo_scaling=False, n_grid=2),
        QuantizationModifier(config_groups=groups(symmetric=False), ignore=["lm_head"]),
    ],
}


def write(base: Path, recipe: Any, out: Path) -> None:
    """Writes one checkpoint."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base, dtype="auto"), AutoTokenizer.from_pretrained(base)
    dataset = Dataset.from_list([dict(tokenizer(text)) for text in SAMPLES])
    oneshot(model=model, processor=tokenizer, recipe=recipe(), dataset=dataset, num_calibration_samples=len(SAMPLES))
    model.save_pretrained(out, save_compressed=True)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    Tensor.pin_memory = lambda self, *_: self  # AWQ does this even without a GPU
    write_all("llmc-", RECIPES, write, "llmcompressor")
