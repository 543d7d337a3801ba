"""Writes checkpoints by GPTQModel, in its environment: python write_gptqmodel.py BASE OUT."""

from pathlib import Path
from shutil import copytree
from typing import Any

from gptqmodel import GPTQModel, QuantizeConfig
from safetensors.torch import load_file, save_file
from writing import SAMPLES, write_all

RECIPES: dict[str, dict[str, Any]] = {
    "4": {"bits": 4},
    "4-asym": {"bits": 4, "sym": False},
    "4-desc_act": {"bits": 4, "desc_act": True},
    "4-v2": {"bits": 4, "format": "gptq_v2"},
    "4-v2-asym": {"bits": 4, "format": "gptq_v2", "sym": False},
    "8": {"bits": 8},
    "8-desc_act": {"bits": 8, "desc_act": True},
    "3": {"bits": 3},
    "2": {"bits": 2},
    "mixed": {"bits": 4, "dynamic": {r"+:.*down_proj": {"bits": 8}, r"-:.*\.0\..*q_proj": {}}},
    "4-zeros": {"bits": 4, "sym": False},
}


def write(base: Path, options: dict[str, Any], out: Path) -> None:
    """Writes one checkpoint; of "zeros", every other row of a layer has no negative weights, and zero points of 0."""
    if out.name.endswith("zeros"):
        base = copytree(base, out.with_name(f"base-{out.name}"))
        tensors = load_file(base / "model.safetensors")
        tensors["model.layers.0.mlp.up_proj.weight"][::2].abs_()
        save_file(tensors, base / "model.safetensors", {"format": "pt"})
    model = GPTQModel.load(str(base), QuantizeConfig(**{"group_size": 32, "desc_act": False, "sym": True} | options))
    model.quantize([dict(model.tokenizer(text)) for text in SAMPLES], batch_size=1)
    model.save(str(out))


if __name__ == "__main__":
    write_all("gptqmodel-", RECIPES, write, "gptqmodel")
