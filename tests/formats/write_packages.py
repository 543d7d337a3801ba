"""Writes checkpoints by bitsandbytes and torchao, in their environment: python write_packages.py BASE OUT."""

from pathlib import Path
from typing import Any

import torch
from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig
from torchao.quantization.granularity import PerGroup
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, TorchAoConfig
from writing import write_all


def bnb(**options: Any) -> BitsAndBytesConfig:
    """Returns four bits of bitsandbytes."""
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32, **options)


BITSANDBYTES = {
    "nf4": lambda: bnb(bnb_4bit_quant_type="nf4"),
    "nf4-double": lambda: bnb(bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "fp4": lambda: bnb(bnb_4bit_quant_type="fp4"),
    "int8": lambda: BitsAndBytesConfig(load_in_8bit=True),
}
TORCHAO = {
    "int8": lambda: TorchAoConfig(Int8WeightOnlyConfig(version=2)),
    "intx4": lambda: TorchAoConfig(IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))),
}


def write(base: Path, config: Any, out: Path) -> None:
    """Writes one checkpoint, in bfloat16."""
    model = AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.bfloat16, quantization_config=config(), device_map="cpu"
    )
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(base).save_pretrained(out)


if __name__ == "__main__":
    write_all("bnb-", BITSANDBYTES, write, "bitsandbytes")
    write_all("torchao-", TORCHAO, write, "torchao")
