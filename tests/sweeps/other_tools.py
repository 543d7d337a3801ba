"""Small checkpoints in the formats of other tools, written by compressed-tensors' own code or, where it has none, here.

No tensor is like another, so that a reader that drops or confuses one gives another model.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
    preset_name_to_scheme,
)
from compressed_tensors.quantization.utils import calculate_qparams, compute_dynamic_scales_and_zp, generate_gparam
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

KV_SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
PRESETS = (
    "W4A16",
    "W4A16_ASYM",
    "W8A16",
    "W8A8",
    "W4A8",
    "W4AFP8",
    "FP8",
    "FP8_DYNAMIC",
    "FP8_BLOCK",
    "NVFP4",
    "NVFP4A16",
    "MXFP4",
    "MXFP4A16",
    "MXFP6A16",
    "MXFP8",
    "MXFP8A16",
)
E4M3_MAX, BLOCK, WEIGHTS = 448.0, 128, "model.safetensors"


def write_preset(model: Path, preset: str, out: Path, *, kv: str = "") -> None:
    """Writes a model with a preset scheme of compressed-tensors on all linear layers but the head, "" for none.

    `kv` adds FP8 keys and values, as `kv_cache_scheme`, with a scale per "tensor" or "attn_head".
    """
    with _loaded(model, out) as loaded:
        groups = {"group_0": preset_name_to_scheme(preset, ["Linear"])} if preset else {}
        config = QuantizationConfig(
            config_groups=groups,
            ignore=["lm_head"],
            kv_cache_scheme=KV_SCHEME | {"strategy": kv} if kv else None,
            quantization_status="frozen",
        )
        apply_quantization_config(loaded, config, show_progress=False)
        for index, module in enumerate(loaded.modules()):
            scheme = getattr(module, "quantization_scheme", None)
            if isinstance(module, nn.Linear) and scheme is not None:
                _set_scales(module, scheme, spread=1 + index / 64)
            for name in ("k_scale", "v_scale"):
                if hasattr(module, name):
                    scale = getattr(module, name).data
                    scale.copy_(0.02 + index / 4096 + torch.arange(scale.numel()).reshape(scale.shape) / 128)
        compressor = ModelCompressor.from_pretrained_model(loaded)
        compressor.compress_model(loaded)
        loaded.save_pretrained(out)
        compressor.update_config(str(out))


def _set_scales(module: nn.Linear, scheme: QuantizationScheme, *, spread: float) -> None:
    """Sets the scales of weights from these, and static ones of inputs near 1."""
    W, how = module.weight.data, scheme.weights
    global_scale = None
    if how.strategy == "tensor_group":
        global_scale = generate_gparam(*torch.aminmax(W.float()))
        module.weight_global_scale.data.copy_(global_scale)
    if how.strategy == "block":
        high, wide = (-(-size // step) for size, step in zip(W.shape, how.block_structure, strict=True))
        padded = torch.zeros(high * BLOCK, wide * BLOCK)
        padded[: W.shape[0], : W.shape[1]] = W
        tiles = padded.reshape(high, BLOCK, wide, BLOCK)
        scale, zero = calculate_qparams(tiles.amin((1, 3)), tiles.amax((1, 3)), how)
    elif how.strategy == "channel":
        scale, zero = calculate_qparams(W.amin(1, keepdim=True), W.amax(1, keepdim=True), how)
    else:
        scale, zero = compute_dynamic_scales_and_zp(W, how, module, global_scale=global_scale)
    module.weight_scale.data.copy_(scale.reshape(module.weight_scale.shape))
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data.copy_(zero.reshape(module.weight_zero_point.shape))
    if hasattr(module, "input_scale"):
        module.input_scale.data.fill_(0.02 * spread)
    if hasattr(module, "input_global_scale"):
        module.input_global_scale.data.fill_(E4M3_MAX * 6 / (4 * spread))


def write_fp8(model: Path, out: Path) -> None:
    """Writes what `quant_method: fp8` names: weights of one byte in blocks of 128 × 128, `weight_scale_inv` beside."""

    def convert(name: str, W: Tensor) -> dict[str, Tensor]:
        high, wide = (-(-size // BLOCK) for size in W.shape)
        padded = torch.zeros(high * BLOCK, wide * BLOCK)
        padded[: W.shape[0], : W.shape[1]] = W
        scale = padded.reshape(high, BLOCK, wide, BLOCK).abs().amax((1, 3)) / E4M3_MAX
        spread = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[: W.shape[0], : W.shape[1]]
        return {name: (W / spread).to(torch.float8_e4m3fn), f"{name}_scale_inv": scale}

    _convert(model, out, convert)
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
    _add_to_config(out, {"quantization_config": config})


def write_modelopt(model: Path, out: Path, *, in_config: bool) -> None:
    """Writes FP8 as NVIDIA's ModelOpt does, with its method in config.json or only in hf_quant_config.json."""

    def convert(name: str, W: Tensor) -> dict[str, Tensor]:
        module, scale = name.removesuffix(".weight"), W.abs().amax() / E4M3_MAX
        return {
            name: (W / scale).to(torch.float8_e4m3fn),
            f"{module}.weight_scale": scale,
            f"{module}.input_scale": torch.tensor(0.02),
        }

    _convert(model, out, convert)
    config = {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}
    if in_config:
        _add_to_config(out, {"quantization_config": {"quant_method": "modelopt", **config}})
    else:
        written = {"producer": {"name": "modelopt", "version": "0.47.0"}, "quantization": config}
        (out / "hf_quant_config.json").write_text(json.dumps(written))


def _convert(model: Path, out: Path, convert: Callable[[str, Tensor], dict[str, Tensor]]) -> None:
    """Writes a model whose linear layers, except for the head, are converted to other tensors."""
    copytree(model, out)
    tensors = load_file(model / WEIGHTS)
    converted: dict[str, Tensor] = {}
    for name, W in tensors.items():
        linear = name.endswith("proj.weight")
        converted |= convert(name, W.float()) if linear else {name: W}
    save_file(converted, out / WEIGHTS, {"format": "pt"})


def _add_to_config(directory: Path, entries: dict[str, Any]) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


@contextmanager
def _loaded(model: Path, out: Path) -> Iterator[Any]:
    """Gives the model, and leaves its tokenizer in `out`."""
    copytree(model, out)
    (out / WEIGHTS).unlink()
    try:
        yield AutoModelForCausalLM.from_pretrained(model, dtype="auto").eval()
    except BaseException:
        rmtree(out)
        raise


FORMATS: dict[str, Callable[[Path, Path], None]] = {
    **{name: lambda model, out, name=name: write_preset(model, name, out) for name in PRESETS},
    "FP8 and KV": lambda model, out: write_preset(model, "FP8_DYNAMIC", out, kv="tensor"),
    "KV": lambda model, out: write_preset(model, "", out, kv="tensor"),
    "KV by head": lambda model, out: write_preset(model, "", out, kv="attn_head"),
    "fp8": write_fp8,
    "modelopt": lambda model, out: write_modelopt(model, out, in_config=True),
    "modelopt, beside": lambda model, out: write_modelopt(model, out, in_config=False),
}
"""What writes a model in each format."""
