"""Checkpoints that other tools have quantized: those that transformers would load as another model are refused.

transformers passes over methods that it does not know and drops their scales. compressed-tensors decodes what the
files hold, whether or not it is what quantization_config says; a server may believe the latter.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from fairbits.core.errors import InputError
from fairbits.models.io.safetensors_files import TensorInfo

MODELOPT_FILE = "hf_quant_config.json"  # where NVIDIA's ModelOpt says how it has quantized a model
CODES: Mapping[str, tuple[str, Sequence[int]]] = {  # type and bits, by layout of compressed-tensors
    "pack-quantized": ("int", range(1, 9)),
    "int-quantized": ("int", range(1, 9)),
    "float-quantized": ("float", (8,)),
    "nvfp4-pack-quantized": ("float", (4,)),
    "mxfp4-pack-quantized": ("float", (4,)),
    "mxfp6-pack-quantized": ("float", (6,)),
    "mxfp8-quantized": ("float", (8,)),
}
ADVICE = "give the model before it was quantized, or a checkpoint in compressed-tensors"


def check_quantization(directory: Path, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> None:
    """Raises if weights are quantized in a way that transformers does not know, or other than config.json says."""
    settings = config.get("quantization_config")
    if settings is None:
        if (directory / MODELOPT_FILE).is_file():
            raise InputError(
                f"{directory} holds {MODELOPT_FILE}: ModelOpt has quantized it, and transformers would load it without "
                f"its scales; {ADVICE}"
            )
        for info in tensors.values():
            if info.dtype.is_floating_point and info.dtype.itemsize == 1:
                raise InputError(
                    f"{info.name} of {directory} is stored as {info.dtype}, and config.json has no quantization_config "
                    f"that says how it is scaled; {ADVICE}"
                )
        return
    if not isinstance(settings, dict):
        return  # transformers says what is wrong
    _check_layouts(directory, settings)
    _check_blocks(directory, settings, tensors)
    method = settings.get("quant_method")
    if isinstance(method, str) and method not in (*AUTO_QUANTIZATION_CONFIG_MAPPING, "bitsandbytes"):
        raise InputError(
            f"{directory} was quantized by {method:.40} (as its config.json says), which transformers does not know: "
            f"it would load the weights without their scales; {ADVICE}"
        )


def _check_layouts(directory: Path, settings: Mapping[str, Any]) -> None:
    groups = settings.get("config_groups")
    listed = [group for group in groups.values() if isinstance(group, dict)] if isinstance(groups, dict) else []
    where = f"quantization_config of {directory / 'config.json'}"
    for group in listed:
        layout, weights = group.get("format"), group.get("weights")
        if not isinstance(layout, str) or layout not in CODES or not isinstance(weights, dict):
            continue
        kind, bits = weights.get("type", "int"), weights.get("num_bits", 8)
        if kind != CODES[layout][0] or bits not in CODES[layout][1]:
            raise InputError(
                f"{where} has weights of type {kind!s:.40} with {bits!s:.40} bits in the layout {layout}, which holds "
                "others; correct it"
            )
    layouts = [str(group.get("format")) for group in listed]
    whole, wanted = settings.get("format"), layouts[0] if len(set(layouts)) == 1 else "mixed-precision"
    if layouts and "None" not in layouts and whole not in (None, wanted):
        raise InputError(f"{where} has the format {whole!s:.40}, and its groups have {wanted:.40}; correct one")


def _check_blocks(directory: Path, settings: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> None:
    block = settings.get("weight_block_size")
    if not isinstance(block, list) or len(block) != 2 or not all(isinstance(side, int) and side > 0 for side in block):
        return
    for name, scale in tensors.items():
        weight = tensors.get(name.removesuffix("_scale_inv"))
        if weight is None or weight is scale or len(weight.shape) != 2:
            continue
        wanted = tuple(-(-size // step) for size, step in zip(weight.shape, block, strict=True))
        if scale.shape != wanted:
            raise InputError(
                f"{name} of {directory} has shape {scale.shape}, and blocks of {block[0]} × {block[1]} need {wanted}; "
                "correct weight_block_size in config.json"
            )


def check_loaded(directory: Path, model: PreTrainedModel) -> None:
    """Raises unless the layers that compressed-tensors has unpacked have the scales and codes of their schemes."""
    for path, module in model.named_modules():
        how = getattr(getattr(module, "quantization_scheme", None), "weights", None)
        weight, scale = getattr(module, "weight", None), getattr(module, "weight_scale", None)
        if how is not None and weight is not None and scale is not None and not _agrees(weight, scale, how):
            raise InputError(
                f"{path}.weight of {directory} is {list(weight.shape)} with scales {list(scale.shape)}, which is not "
                f"what its scheme says ({how.num_bits} bits, {how.type}, {how.strategy}); correct the "
                "quantization_config in config.json"
            )


def _agrees(weight: Tensor, scale: Tensor, how: Any) -> bool:
    rows, columns = weight.shape
    sizes = {"tensor": (rows, columns), "channel": (1, columns), "block": how.block_structure}
    high, wide = sizes.get(how.strategy) or (1, how.group_size or columns)  # else a group
    wanted = (-(-rows // high), -(-columns // wide))
    if scale.shape != wanted and not (how.strategy == "tensor" and scale.numel() == 1):
        return False
    if how.type != "int" or not how.symmetric:
        return True
    spread = scale.abs().float().reshape(wanted).repeat_interleave(high, 0)[:rows].repeat_interleave(wide, 1)
    return bool((weight.abs().float() <= (2 ** (how.num_bits - 1) + 0.5) * spread[:, :columns]).all())
