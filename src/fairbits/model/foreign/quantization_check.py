"""Checkpoints that other tools have quantized: those that transformers would load without their scales are refused."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fairbits.errors import InputError
from fairbits.model.files.safetensors_files import TensorInfo

MODELOPT_FILE = "hf_quant_config.json"
"""Where NVIDIA's ModelOpt says how it has quantized a model, whether or not config.json says so too."""
ADVICE = "give the model before it was quantized, or a checkpoint in compressed-tensors"


def check_quantization(directory: Path, config: Mapping[str, Any], tensors: Iterable[TensorInfo]) -> None:
    """Raises if weights are quantized in a way that transformers does not know and would pass over."""
    settings = config.get("quantization_config")
    if settings is None:
        if (directory / MODELOPT_FILE).is_file():
            raise InputError(
                f"{directory} holds {MODELOPT_FILE}: ModelOpt has quantized it, and transformers would load it without "
                f"its scales; {ADVICE}"
            )
        coded = next((info for info in tensors if info.dtype.is_floating_point and info.dtype.itemsize == 1), None)
        if coded is not None:
            raise InputError(
                f"{coded.name} of {directory} is stored as {coded.dtype}, and config.json has no quantization_config "
                f"that says how it is scaled; {ADVICE}"
            )
        return
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    method = settings.get("quant_method") if isinstance(settings, dict) else None
    if isinstance(method, str) and method not in (*AUTO_QUANTIZATION_CONFIG_MAPPING, "bitsandbytes"):
        raise InputError(
            f"{directory} was quantized by {method:.40} (as its config.json says), which transformers does not know: "
            f"it would load the weights without their scales; {ADVICE}"
        )
