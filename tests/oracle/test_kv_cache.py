"""Keys and values as engines store them, derived again: codes by search in lists of values, blocks by gguf's code."""

import math
from collections.abc import Callable

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize

from fairbits.models.cache_types import CACHE_TYPES
from fairbits.models.kv_cache import round_states

CHANNELS = (64, 96, 256)
F = np.float32
E4M3 = sorted({(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8)} | {m / 512 for m in range(8)})[:-1]
E5M2 = sorted({(1 + m / 4) * 2.0 ** (e - 15) for e in range(1, 31) for m in range(4)} | {m / 65536 for m in range(4)})
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def nearest(x: float, levels: list[float] | tuple[float, ...], *, up: bool = False) -> float:
    """Returns the nearest level; in the middle the one at an even place, or the larger one (`up`)."""
    size = min(abs(float(x)), levels[-1])
    distances = [abs(level - size) for level in levels]
    tied = [place for place, distance in enumerate(distances) if distance == min(distances)]
    place = tied[-1] if up or len(tied) == 1 or tied[0] % 2 else tied[0]
    return math.copysign(levels[place], x)


def away(x: F) -> F:
    """Returns the nearest whole number; in the middle the one farther from 0."""
    return F(math.copysign(math.floor(abs(F(x)) + F(0.5)), x))


def by_head(row: np.ndarray, most: float, code: Callable[[F], float]) -> np.ndarray:
    """Returns a row with one scale, which leads its largest value to `most`."""
    scale = max(F(abs(row).max()) / F(most), F(1e-6))
    return np.array([F(code(x * (F(1) / scale))) * scale for x in row])


def int4(row: np.ndarray) -> np.ndarray:
    """Returns a row rotated, rounded to 16 codes, and rotated back."""
    size = next(n for n in (256, 128, 64, 32) if len(row) % n == 0)
    generator = torch.Generator().manual_seed(0x9E3779B9)
    signs = 2 * torch.bernoulli(torch.full((size,), 0.5), generator=generator).double().numpy() - 1
    turn = np.array([[(-1) ** (i & j).bit_count() for j in range(size)] for i in range(size)], dtype=float)
    rotated = np.concatenate([turn @ (part * signs) for part in row.astype(float).reshape(-1, size)])
    scale = max((rotated.max() - rotated.min()) / 15, 1e-6)
    zero = min(max(math.floor(-rotated.min() / scale + 0.5), 0), 15)
    codes = [min(max(math.floor(x / scale + zero + 0.5), 0), 15) for x in rotated]
    kept = np.array([(code - zero) * scale for code in codes])
    return np.concatenate([turn.T @ part / size * signs for part in kept.reshape(-1, size)])


def nvfp4(row: np.ndarray) -> np.ndarray:
    result = []
    for group in row.reshape(-1, 16):
        scale = nearest(F(abs(group).max()) / 6, E4M3)
        result += [nearest(x / scale if scale else 0.0, E2M1) * scale for x in group]
    return np.array(result)


def mx_block16(row: np.ndarray) -> np.ndarray:
    result = []
    for group in row.reshape(-1, 16):
        scale = 2.0 ** math.ceil(math.log2(max(float(abs(group).max()) / 6, 1e-10)))
        result += [nearest(x / scale, E2M1, up=True) * scale for x in group]
    return np.array(result)


def llama_cpp(name: str, side: str) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the blocks of llama.cpp after its rotation, which exists for whole multiples of 64 channels."""
    kind = gguf.GGMLQuantizationType[name.upper()]

    def stored(row: np.ndarray) -> np.ndarray:
        count = len(row)
        if count % 64:
            return dequantize(quantize(row.reshape(1, -1), kind), kind)[0]
        size = 64 if side == "v" else next(n for n in (256, 128, 64) if count % n == 0)
        turn = np.array([[(-1) ** (i & j).bit_count() for j in range(size)] for i in range(size)]) / math.sqrt(size)
        rotated = (row.reshape(-1, size) @ turn.T).astype(F).reshape(1, -1)
        kept = dequantize(quantize(rotated, kind), kind)
        return (kept.reshape(-1, size) @ turn).ravel()

    return stored


def derived(name: str, side: str) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the second derivation of a type."""
    if name.startswith("q"):
        return llama_cpp(name, side)
    others: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "fp8_e4m3": lambda row: np.array([nearest(x, E4M3) for x in row]),
        "fp8_e5m2": lambda row: np.array([nearest(x, E5M2) for x in row]),
        "fp8_per_token_head": lambda row: by_head(row, 448, lambda x: nearest(x, E4M3)),
        "int8_per_token_head": lambda row: by_head(row, 127, lambda x: min(max(away(x), -128), 127)),
        "int4_per_token_head": int4,
        "nvfp4": nvfp4,
        "fp4_mx_block16": mx_block16,
    }
    return others[name]


@pytest.fixture(scope="module")
def states() -> dict[int, torch.Tensor]:
    """Returns keys with outliers in some channels, as real ones have, a head of zeros and one of tiny values."""
    torch.manual_seed(0)
    made = {}
    for channels in CHANNELS:
        x = torch.randn(1, 3, 5, channels) * (1 + 20 * (torch.rand(channels) < 0.05))
        x[:, :, 3] *= 1e-7
        x[0, 1, 4] = 0
        made[channels] = x
    return made


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("side", ["k", "v"])
@pytest.mark.parametrize("name", CACHE_TYPES)
def test_states_are_rounded_as_derived(states: dict[int, torch.Tensor], name: str, side: str, channels: int) -> None:
    x = states[channels]
    rounded = round_states(name)(x, 0, side).numpy().reshape(-1, channels)
    expected = np.array([derived(name, side)(row) for row in x.numpy().reshape(-1, channels)])
    step = abs(x.numpy()).reshape(-1, channels).max(1, keepdims=True)
    # rotated values are sums in another order, and one in a thousand may lie so near a middle that it matters
    apart = abs(rounded - expected) > 2e-5 * step + 1e-12
    rotates = name == "int4_per_token_head" or (name.startswith("q") and channels % 64 == 0)
    assert apart.any(1).mean() <= (0.07 if rotates else 0.0)
    assert abs(x.numpy().reshape(-1, channels) - rounded).max() > 0


def test_middles_go_where_the_engines_let_them() -> None:
    """vLLM's 4-bit floats round half to even, SGLang's up; vLLM's INT8 rounds half away from 0."""
    halves = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] + [0.0] * 7 + [-2.5])
    assert round_states("nvfp4")(halves, 0, "k")[:8].tolist() == [0, 1, 1, 2, 2, 4, 4, 6]
    assert round_states("nvfp4")(halves, 0, "k")[-1] == -2
    assert round_states("fp4_mx_block16")(halves, 0, "k")[:8].tolist() == [0.5, 1, 1.5, 2, 3, 4, 6, 6]
    assert round_states("int8_per_token_head")(torch.tensor([127.0, 2.5, -2.5]), 0, "k").tolist() == [127, 3, -3]


def test_fp8_saturates() -> None:
    large = torch.tensor([1e6, -1e6])
    assert round_states("fp8_e4m3")(large, 0, "v").tolist() == [448, -448]
    assert round_states("fp8_e5m2")(large, 0, "v").tolist() == [57344, -57344]
