"""Checkpoints of the preset schemes of compressed-tensors, written by its own code, with the scales of llm-compressor.

Weights have the scale of their least and largest value (its default observer); the linear layers that a server fuses
share a global scale. Static ranges of inputs come from a pass of the plain model over a text.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
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
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
HEAD = "lm_head"
TOKENIZER = ("tokenizer*", "special_tokens_map.json", "vocab*", "merges*", "chat_template*", "generation_config.json")
Ranges = Mapping[str, float]
"""The largest absolute input of every linear layer, by the path of its module."""


def open_model(model: Path, device: str) -> Any:
    """Returns the plain model in its own type."""
    return AutoModelForCausalLM.from_pretrained(model, dtype="auto").eval().to(device)


@torch.no_grad()
def input_ranges(model: Path, rows: Sequence[Sequence[int]], *, device: str) -> Ranges:
    """Returns the largest absolute input of every linear layer on some rows of tokens."""
    loaded = open_model(model, device)
    most: dict[str, Tensor] = {}
    for name, module in _linears(loaded):
        most[name] = torch.zeros((), device=device)

        def keep(_: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
            most[name] = torch.maximum(most[name], inputs[0].abs().amax().float())

        module.register_forward_pre_hook(keep)
    for row in rows:
        loaded.base_model(input_ids=torch.tensor([list(row)], device=device), use_cache=False)
    return {name: float(value) for name, value in most.items()}


@torch.no_grad()
def write_preset(model: Path, preset: str, out: Path, *, ranges: Ranges | None = None, device: str = "cpu") -> None:
    """Writes a model with a preset scheme on all linear layers but the head."""
    loaded = open_model(model, device)
    config = QuantizationConfig(
        config_groups={"group_0": preset_name_to_scheme(preset, ["Linear"])},
        ignore=[HEAD],
        quantization_status="frozen",
    )
    apply_quantization_config(loaded, config, show_progress=False)
    shared = _shared_weight_ranges(loaded)
    for name, module in _linears(loaded):
        _set_scales(module, module.quantization_scheme, most=shared[name], ranges=ranges, name=name)
    compressor = ModelCompressor.from_pretrained_model(loaded)
    compressor.compress_model(loaded)
    out.mkdir(parents=True)
    loaded.save_pretrained(out)
    compressor.update_config(str(out))
    copy_tokenizer(model, out)


def copy_tokenizer(model: Path, out: Path) -> None:
    """Copies the tokenizer."""
    for file in (file for pattern in TOKENIZER for file in model.glob(pattern)):
        shutil.copy(file, out)


def _linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != HEAD:
            yield name, module


def _shared_weight_ranges(model: nn.Module) -> Ranges:
    """Returns the largest absolute weight of every linear layer and of those that it is fused with."""
    single = {name: float(module.weight.abs().amax()) for name, module in _linears(model)}
    shared = dict(single)
    for name in single:
        parent, _, last = name.rpartition(".")
        names = next((names for names in FUSED if last in names), (last,))
        shared[name] = max(single.get(f"{parent}.{other}", 0.0) for other in names)
    return shared


def _set_scales(
    module: nn.Linear, scheme: QuantizationScheme, *, most: float, ranges: Ranges | None, name: str
) -> None:
    """Sets the scales of weights, and the static ones of inputs."""
    W, how = module.weight.data, scheme.weights
    global_scale = None
    if how.strategy == "tensor_group":
        global_scale = _global_scale(most).to(W.device)
        module.weight_global_scale.data.copy_(global_scale)
    if how.strategy == "block":
        scale, zero = calculate_qparams(*_block_ranges(W, how.block_structure), how)
    elif how.strategy == "channel":
        scale, zero = calculate_qparams(W.amin(1, keepdim=True), W.amax(1, keepdim=True), how)
    else:
        scale, zero = compute_dynamic_scales_and_zp(W, how, module, global_scale=global_scale)
    module.weight_scale.data.copy_(scale.reshape(module.weight_scale.shape))
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data.copy_(zero.reshape(module.weight_zero_point.shape))
    static = [part for part in ("input_scale", "input_global_scale") if hasattr(module, part)]
    if static and ranges is None:
        raise ValueError(f"{name} needs the range of its inputs")
    for part in static:
        limit = torch.tensor(ranges[name])
        value = _global_scale(limit) if part == "input_global_scale" else _scale_of(limit, scheme.input_activations)
        getattr(module, part).data.copy_(value)


def _global_scale(most: float | Tensor) -> Tensor:
    """Returns 448 · 6 / the largest absolute value."""
    limit = torch.as_tensor(most)
    return generate_gparam(-limit, limit)


def _scale_of(limit: Tensor, how: Any) -> Tensor:
    """Returns the static scale of inputs up to a limit."""
    scale, _ = calculate_qparams(-limit, limit, how)
    return scale


def _block_ranges(W: Tensor, blocks: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Returns the least and the largest value of every block; blocks at the edges are filled up with zeros."""
    (high, wide) = (-(-size // step) for size, step in zip(W.shape, blocks, strict=True))
    padded = W.new_zeros(high * blocks[0], wide * blocks[1])
    padded[: W.shape[0], : W.shape[1]] = W
    tiles = padded.reshape(high, blocks[0], wide, blocks[1])
    return tiles.amin((1, 3)), tiles.amax((1, 3))
