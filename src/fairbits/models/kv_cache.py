"""Keys and values as a server's cache holds them: every attention reads them back rounded.

The arithmetic of `CACHE_TYPES` is that of the engines, as their sources have it (vLLM 0.26 to 0.33, SGLang and
llama.cpp of August 2026), in float32: a server rounds keys and values to its own 16 bits before. A rotation before the
rounding is undone after it; an engine rotates queries and outputs instead, with the same result.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from fairbits.core.errors import InputError
from fairbits.models.architecture.meta_model import TOKENS, trace

RoundStates = Callable[[Tensor, int, str], Tensor]
"""Returns the keys ("k") or values ("v") of a layer (texts, heads, tokens, channels), rounded."""

LEAST_SCALE = 1e-6  # of vLLM's scales by token and head
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
GROUP = 16  # channels that share a scale in the 4-bit floats
TOGETHER = {"nvfp4": GROUP, "fp4_mx_block16": GROUP, "int4_per_token_head": 2}  # two codes share a byte
BLOCK = 32  # channels of llama.cpp's blocks
ROTATED = 64  # the fewest channels that llama.cpp rotates, and the number of those of values
SIGNS_SEED = 0x9E3779B9  # of the signs that vLLM's INT4 flips before its rotation


def round_states(name: str) -> RoundStates:
    """Returns the rounding of a cache type, by its full name, for states whose files hold no scales."""
    if name.startswith("q"):
        bits, form = int(name[1]), name[3]
        return lambda x, _layer, side: _in_blocks(x, side, bits=bits, minimum=form == "1")
    simple: dict[str, Callable[[Tensor], Tensor]] = {
        "fp8_e4m3": partial(_to_float, dtype=torch.float8_e4m3fn),
        "fp8_e5m2": partial(_to_float, dtype=torch.float8_e5m2),
        "fp8_per_token_head": _float_by_head,
        "int8_per_token_head": _int8_by_head,
        "int4_per_token_head": _int4_by_head,
        "nvfp4": _nvfp4,
        "fp4_mx_block16": _mx_block16,
    }
    rounded = simple[name]
    return lambda x, _layer, _side: rounded(x)


def check_channels(name: str, channels: int) -> None:
    """Raises if an engine does not store heads of this many channels in a type."""
    multiple = BLOCK if name.startswith("q") else TOGETHER.get(name, 1)
    if channels % multiple:
        raise InputError(f"{name} needs a multiple of {multiple} channels in each head, and these have {channels}")


def _to_float(x: Tensor, dtype: torch.dtype) -> Tensor:
    most = torch.finfo(dtype).max
    return x.clamp(-most, most).to(dtype).to(x.dtype)


def _float_by_head(x: Tensor) -> Tensor:
    scale = _scale_by_head(x, 448.0)
    return _to_float(x * (1 / scale), torch.float8_e4m3fn) * scale


def _int8_by_head(x: Tensor) -> Tensor:
    scale = _scale_by_head(x, 127.0)
    return _nearest(x * (1 / scale)).clamp(-128, 127) * scale


def _scale_by_head(x: Tensor, most: float) -> Tensor:
    return (x.abs().amax(-1, keepdim=True) / most).clamp(min=LEAST_SCALE)


def _int4_by_head(x: Tensor) -> Tensor:
    size = _divisor(x.shape[-1])
    signs, rotation = _signs(size).to(x.device), _hadamard(size).to(x.device)
    rotated = ((_parted(x, size) * signs) @ rotation).flatten(-2)
    least, most = torch.aminmax(rotated, dim=-1, keepdim=True)
    scale = ((most - least) / 15).clamp(min=LEAST_SCALE)
    zero = _nearest(-least / scale).clamp(0, 15)
    codes = _nearest(rotated * (1 / scale) + zero).clamp(0, 15)
    kept = (scale.view(torch.int32) & -16).view(torch.float32)  # its last four bits hold the zero point
    return ((_parted((codes - zero) * kept, size) @ rotation) * signs / size).flatten(-2)


def _nvfp4(x: Tensor) -> Tensor:
    groups = _parted(x, GROUP)
    scale = _to_float(groups.abs().amax(-1, keepdim=True) * (1 / 6), torch.float8_e4m3fn)
    inverse = torch.where(scale == 0, scale, 1 / scale)
    return torch.flatten(_to_e2m1(groups * inverse, even=True) * scale, -2)


def _mx_block16(x: Tensor) -> Tensor:
    groups = _parted(x, GROUP)
    scale = torch.exp2(torch.ceil(torch.log2((groups.abs().amax(-1, keepdim=True) / 6).clamp(min=1e-10))))
    return torch.flatten(_to_e2m1(groups / scale, even=False) * scale, -2)


def _to_e2m1(x: Tensor, *, even: bool) -> Tensor:
    """Returns the nearest 4-bit floats; a value in the middle becomes the one that ends in 0, or the larger one."""
    middles = torch.tensor(MIDDLES)
    if even:
        middles[::2] = torch.nextafter(middles[::2], torch.tensor(torch.inf))
    levels = torch.tensor(E2M1).to(x)
    rounded: Tensor = levels[torch.bucketize(x.abs().contiguous(), middles.to(x), right=True)].copysign(x)
    return rounded


def _in_blocks(x: Tensor, side: str, *, bits: int, minimum: bool) -> Tensor:
    """Returns states as llama.cpp stores them: rotated, if a head has enough channels, in blocks of 32."""
    channels, rotation = x.shape[-1], None
    if channels % ROTATED == 0:
        size = ROTATED if side == "v" else _divisor(channels)
        rotation = _hadamard(size).to(x.device) / size**0.5
        x = (_parted(x, size) @ rotation).flatten(-2)
    blocks = _parted(x, BLOCK)
    rounded: Tensor = (_with_minimum if minimum else _round_8 if bits == 8 else _signed)(blocks, bits).flatten(-2)
    if rotation is None:
        return rounded
    return torch.flatten(_parted(rounded, len(rotation)) @ rotation, -2)


def _round_8(blocks: Tensor, _bits: int) -> Tensor:
    step = blocks.abs().amax(-1, keepdim=True) / 127
    return _nearest(blocks * _inverse(step)) * _half(step)


def _signed(blocks: Tensor, bits: int) -> Tensor:
    """Returns blocks whose value that is farthest from 0 is the lowest code."""
    lowest = 2 ** (bits - 1)
    step = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True)) / -lowest
    codes = (blocks * _inverse(step) + (lowest + 0.5)).trunc().clamp(max=2 * lowest - 1)
    rounded: Tensor = (codes - lowest) * _half(step)
    return rounded


def _with_minimum(blocks: Tensor, bits: int) -> Tensor:
    least, most = torch.aminmax(blocks, dim=-1, keepdim=True)
    step = (most - least) / (2**bits - 1)
    codes = ((blocks - least) * _inverse(step) + 0.5).trunc().clamp(max=2**bits - 1)
    return codes * _half(step) + _half(least)


def _parted(x: Tensor, size: int) -> Tensor:
    """Returns the channels in groups, (…, groups, size)."""
    return x.reshape(*x.shape[:-1], -1, size)


def _divisor(channels: int) -> int:
    """Returns the largest power of 2 that divides a number of channels."""
    return channels & -channels


def _inverse(step: Tensor) -> Tensor:
    return torch.where(step == 0, step, 1 / step)


def _half(x: Tensor) -> Tensor:
    return x.half().to(x.dtype)


def _nearest(x: Tensor) -> Tensor:
    """Returns the nearest whole numbers, and of a number in the middle the one farther from 0."""
    return (x + torch.full_like(x, 0.5).copysign(x)).trunc()


@cache
def _hadamard(size: int) -> Tensor:
    """Returns the Walsh–Hadamard matrix, which is its own inverse times `size`."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
    return matrix


@cache
def _signs(size: int) -> Tensor:
    random = torch.Generator().manual_seed(SIGNS_SEED)
    return 2 * torch.bernoulli(torch.full((size,), 0.5), generator=random) - 1


PLAIN_LAYERS = {  # of transformers' caches: keys and values of every token, or none at all
    *("DynamicLayer", "DynamicSlidingWindowLayer", "LinearAttentionLayer"),
    *("LinearAttentionAndFullAttentionLayer", "LinearAttentionAndSlidingWindowAttentionLayer"),
}


class RoundedCache(DynamicCache):
    """The cache of a pass: attentions get the keys and values that they store, rounded.

    Nothing is kept, unless the pass continues a text: then the layers of its cache (`kept`) keep them, rounded.
    """

    def __init__(self, config: PretrainedConfig, rounded: RoundStates, kept: Cache | None = None) -> None:
        super().__init__(config=config)
        self.__dict__.update({} if kept is None else vars(kept))
        self._rounded, self._keeps = rounded, kept is not None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        states = self._rounded(key_states, layer_idx, "k"), self._rounded(value_states, layer_idx, "v")
        return super().update(*states, layer_idx, *args, **kwargs) if self._keeps else states


def store_rounded(model: PreTrainedModel, rounded: RoundStates) -> None:
    """Makes every attention of a decoder read its keys and values as a cache gives them back."""

    def give_cache(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**kwargs, "past_key_values": RoundedCache(model.config, rounded, kwargs.get("past_key_values"))}

    base: Any = model.base_model
    # the decoder itself: classes such as OPT's call it without the base model around it
    base.get_decoder().register_forward_pre_hook(give_cache, with_kwargs=True)


def cached_layers(model: PreTrainedModel) -> dict[int, tuple[int, int]]:
    """Returns the layers of a model on the meta device that cache keys and values, with the channels of their heads.

    It raises unless every layer that should cache them does so once, as one row for every token and head.
    """
    config, name = model.config, type(model).__name__
    if config.is_encoder_decoder or getattr(config.get_text_config(), "kv_lora_rank", None):
        kind = "has an encoder" if config.is_encoder_decoder else "compresses keys and values together (MLA)"
        raise InputError(f"{name} {kind}, and how a server's cache rounds that is not simulated")
    seen: list[tuple[int, str, torch.Size]] = []

    def note(x: Tensor, layer: int, side: str) -> Tensor:
        seen.append((layer, side, x.shape))
        return x

    try:
        layers = DynamicCache(config=config).layers
        store_rounded(model, note)
        trace(model)
    except Exception as problem:  # a model's own code, or a configuration that says nothing of its layers
        raise InputError(f"{name} takes no cache of keys and values: {problem!s:.200}") from None
    caching = [number for number, layer in enumerate(layers) if isinstance(layer, CacheLayerMixin)]
    plain = all(type(layer).__name__ in PLAIN_LAYERS for layer in layers)
    rows = all(len(shape) == 4 and shape[2] == TOKENS for *_, shape in seen)
    once = [(layer, side) for layer, side, _ in seen] == [(layer, side) for layer in caching for side in "kv"]
    if not (caching and plain and rows and once):
        raise InputError(f"{name} does not cache the keys and values of every token and head in all its layers")
    channels = [shape[-1] for *_, shape in seen]
    return dict(zip(caching, zip(channels[::2], channels[1::2], strict=True), strict=True))
