"""A checkpoint whose keys and values pass through a cache of a chosen type."""

from fairbits.core.errors import InputError
from fairbits.models.cache_types import cache_type
from fairbits.models.checkpoint import Checkpoint, UnpackedCheckpoint
from fairbits.models.kv_cache import cached_layers, check_channels


def with_kv_cache(checkpoint: Checkpoint, name: str) -> Checkpoint:
    """Returns the same checkpoint with a cache of this type (`CACHE_TYPES`); raises if a server has none for it."""
    name, copied = cache_type(name), object.__new__(type(checkpoint))
    copied.__dict__.update({**vars(checkpoint), "kv_cache": name})
    copied.__dict__.pop("plain", None)  # the checkpoint itself, or a view of it without this cache
    plain = copied.plain
    if plain is None:
        method = checkpoint.quantization_method
        raise InputError(f"{checkpoint.target} computes with {method}'s own code, without --kv-cache; leave that out")
    if plain.task != "causal":
        raise InputError(f"{checkpoint.target} is no decoder that predicts the next token; leave --kv-cache out")
    if isinstance(plain, UnpackedCheckpoint):
        plain.packed.states_cache(name)  # which raises if the files contradict it
    try:
        layers = cached_layers(plain.meta_model())
        for channels in {count for pair in layers.values() for count in pair}:
            check_channels(name, channels)
    except InputError as problem:
        raise InputError(f"{checkpoint.target}: {problem}; leave --kv-cache out, or choose another type") from None
    return copied
