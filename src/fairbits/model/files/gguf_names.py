"""The names that llama.cpp gives to the tensors of a model, from the map of the package gguf."""

import importlib.util
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from fairbits.errors import InputError

ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {
        "bloom": "BLOOM",
        "gemma": "GEMMA",
        "gemma2": "GEMMA2",
        "gemma3": "GEMMA3",
        "gemma3_text": "GEMMA3",
        "llama": "LLAMA",
        "mistral": "LLAMA",
        "phi3": "PHI3",
        "qwen2": "QWEN2",
        "qwen3": "QWEN3",
    }
)
"""Families, by the model_type of their configuration, that llama.cpp converts without moving an input channel.

Its converter permutes rows of q, k and v (outputs) in some of them. A family whose columns it permutes must not be
added here: the importance of a channel would end up at another one.
"""


def check_gguf(what: str) -> None:
    """Raises if the package gguf, which `what` needs, is not installed."""
    if importlib.util.find_spec("gguf") is None:
        raise InputError(f"{what} needs the package gguf, which is missing: pip install 'fairbits[gguf]'")


def gguf_names(family: str, names: Iterable[str], *, blocks: int) -> dict[str, str]:
    """Returns llama.cpp's name of each tensor; a tensor that its map does not know is left out.

    >>> gguf_names("llama", ["model.layers.0.self_attn.q_proj.weight"], blocks=1)
    {'model.layers.0.self_attn.q_proj.weight': 'blk.0.attn_q.weight'}
    """
    if family not in ARCHITECTURES:
        raise InputError(
            f"the model is of the family {family!r:.40}; the names of its tensors in llama.cpp are known for "
            f"{', '.join(ARCHITECTURES)}: use llama-imatrix for this one, with text from fairbits mix"
        )
    check_gguf("an imatrix")
    import gguf

    tensors = gguf.get_tensor_name_map(gguf.MODEL_ARCH[ARCHITECTURES[family]], blocks)
    found = {
        # as its converter does, for the text part of a model that also sees
        name: tensors.get_name(name.replace("language_model.", ""), try_suffixes=(".weight", ".bias"))
        for name in names
    }
    return {name: theirs for name, theirs in found.items() if theirs is not None}
