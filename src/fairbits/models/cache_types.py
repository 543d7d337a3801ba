"""The types in which servers store keys and values, by their names there; no torch is imported for them."""

from collections.abc import Mapping
from types import MappingProxyType

from fairbits.core.errors import InputError

CACHE_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "fp8_e4m3": "vLLM, SGLang; one scale per layer, from the checkpoint or 1",
        "fp8_e5m2": "vLLM, SGLang; one scale per layer, which is 1",
        "fp8_per_token_head": "vLLM; a scale for every token and head",
        "int8_per_token_head": "vLLM; a scale for every token and head",
        "int4_per_token_head": "vLLM; rotated, a scale and a zero point for every token and head",
        "nvfp4": "vLLM, SGLang on Blackwell; groups of 16 with scales in FP8, the global scale is 1",
        "fp4_mx_block16": "SGLang; groups of 16 with a power of 2 as scale",
        "q8_0": "llama.cpp; rotated, blocks of 32",
        "q5_1": "llama.cpp; rotated, blocks of 32 with their minimum",
        "q5_0": "llama.cpp; rotated, blocks of 32",
        "q4_1": "llama.cpp; rotated, blocks of 32 with their minimum",
        "q4_0": "llama.cpp; rotated, blocks of 32",
    }
)
"""Each type, who has it, and its scales."""
SHORT = {"fp8": "fp8_e4m3", "int8": "int8_per_token_head", "int4": "int4_per_token_head"}
SCALED_BY_FILES = ("fp8_e4m3", "fp8_e5m2", "nvfp4")
"""Types for which vLLM takes the scales of a checkpoint, if it has any."""


def cache_type(name: str) -> str:
    """Returns the full name of a type of cached keys and values, such as int8_per_token_head for int8."""
    full = SHORT.get(name, name)
    if full not in CACHE_TYPES:
        short = ", ".join(f"{key} (for {value})" for key, value in SHORT.items())
        raise InputError(
            f"the type of the KV cache is {name!r:.40}; it must be one of {', '.join(CACHE_TYPES)}, or {short}"
        )
    return full
