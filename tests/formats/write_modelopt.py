"""Writes checkpoints by NVIDIA's ModelOpt, in its environment: python write_modelopt.py BASE OUT."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer
from writing import SAMPLES, write_all

RECIPES = {
    "FP8": ("FP8_DEFAULT_CFG",),
    "FP8-KV": ("FP8_DEFAULT_CFG", "FP8_KV_CFG"),
    "NVFP4": ("NVFP4_DEFAULT_CFG",),
    "NVFP4-KV": ("NVFP4_DEFAULT_CFG", "FP8_KV_CFG"),
    "INT4-AWQ": ("INT4_AWQ_CFG",),
    "FP8-PB": ("FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG",),
    "FP8-PC-PT": ("FP8_PER_CHANNEL_PER_TOKEN_CFG",),
}


def write(base: Path, names: tuple[str, ...], out: Path) -> None:
    """Writes one checkpoint."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).eval()
    tokenizer = AutoTokenizer.from_pretrained(base)
    config: Any = deepcopy(getattr(mtq, names[0]))
    for name in names[1:]:
        added = deepcopy(getattr(mtq, name))["quant_cfg"]
        config["quant_cfg"] = [*config["quant_cfg"], *added] if isinstance(added, list) else config["quant_cfg"] | added
    samples = [tokenizer(text, return_tensors="pt").input_ids for text in SAMPLES]
    mtq.quantize(model, config, lambda whole: [whole(ids) for ids in samples])
    export_hf_checkpoint(model, export_dir=out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    write_all("mo-", RECIPES, write, "nvidia-modelopt")
