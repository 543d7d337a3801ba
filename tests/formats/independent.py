"""What a quantized checkpoint computes, without fairbits, transformers' quantizers or compressed-tensors.

Every layout is unpacked here from its tensors and config.json, in float32, and put into the plain model; inputs of its
linear layers, keys and values are rounded as the file says. Only bitsandbytes unpacks its own.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers as t
from safetensors import safe_open
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

Rounding = Callable[[Tensor], Tensor]
Tensors = dict[str, Tensor]
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
E4M3, SMALLEST = torch.float8_e4m3fn, 2.0**-23
LARGEST = {("int", 8): 127.5, ("int", 4): 7.5, ("float", 8): 448.0, ("float", 4): 6.0}
AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]


@dataclass
class Layer:
    """A linear layer: its weights in float32, and how its inputs are rounded."""

    weight: Tensor
    rounding: Rounding | None = None


def read(directory: Path) -> tuple[dict, Tensors]:
    """Returns config.json and all tensors."""
    tensors = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return json.loads((directory / "config.json").read_text()), tensors


def by_layer(tensors: Tensors, marks: tuple[str, ...]) -> Iterator[tuple[str, Tensors]]:
    """Yields the layers that have a tensor of one of the names, with all their tensors."""
    for name in [name for name in tensors if name.rpartition(".")[2] in marks]:
        module = name.rpartition(".")[0]
        parts = [key for key in tensors if key.rpartition(".")[0] == module]
        yield module, {key.rpartition(".")[2]: tensors[key] for key in parts}


# codes of few bits


def bits_of(words: Tensor, bits: int, count: int) -> Tensor:
    """Returns the first `count` codes of a row of words, which follow each other from the lowest bit on."""
    stream = (words.view(torch.uint8).unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)) & 1
    codes = stream.flatten(1)[:, : count * bits].unflatten(1, (count, bits)).int()
    return (codes << torch.arange(bits)).sum(2)


def down(words: Tensor, bits: int, count: int) -> Tensor:
    """Returns the codes of words that hold a column from top to bottom."""
    return bits_of(words.T.contiguous(), bits, count).T


def nibbles(packed: Tensor) -> Tensor:
    """Returns the e2m1 values of bytes, the lower four bits first."""
    return E2M1[torch.stack((packed & 15, packed >> 4), -1).flatten(-2).long()]


def six_bits(packed: Tensor) -> Tensor:
    """Returns e2m3 values, four of which are in three bytes."""
    codes = bits_of(packed.contiguous(), 6, packed.shape[1] * 4 // 3)
    exponent, fraction = codes >> 3 & 3, (codes & 7) / 8
    value = torch.where(exponent == 0, fraction, (1 + fraction) * (exponent - 1).float().exp2())
    return torch.where(codes >= 32, -value, value)


def spread(scale: Tensor, shape: torch.Size) -> Tensor:
    """Returns scales per tensor, row, group or block, for every weight."""
    scale = scale.float().reshape(-1, 1) if scale.ndim < 2 else scale.float()
    for side in (0, 1):
        if scale.shape[side] > 1:
            # blocks are of 128, and the last may be cut
            repeat = shape[side] // scale.shape[side] if shape[side] % scale.shape[side] == 0 else 128
            scale = scale.repeat_interleave(repeat, side)
    return scale[: shape[0], : shape[1]]


# how inputs are rounded


def on_grid(x: Tensor, kind: str, bits: int) -> Tensor:
    """Returns the nearest values that few bits can have."""
    if kind == "int":
        return x.round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if bits == 8:
        return x.clamp(-448, 448).to(E4M3).float()
    size = x.abs().clamp(max=6)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return torch.copysign((size / step).round() * step, x)


def static(scale: Tensor, *, kind: str = "float", bits: int = 8) -> Rounding:
    """Returns the rounding by a scale that the file has."""
    return lambda x: on_grid(x / scale.float(), kind, bits) * scale.float()


def dynamic(kind: str, bits: int, *, group: int | None = None) -> Rounding:
    """Returns the rounding of every token, or of groups of it, by its own largest value."""

    def rounding(x: Tensor) -> Tensor:
        groups = x.unflatten(-1, (-1, group or x.shape[-1]))
        scale = groups.abs().amax(-1, keepdim=True) / LARGEST[kind, bits]
        scale = torch.where(scale == 0, SMALLEST, scale)
        return (on_grid(groups / scale, kind, bits) * scale).flatten(-2)

    return rounding


def with_zeros(scale: Tensor | None = None, zero: Tensor | None = None) -> Rounding:
    """Returns the rounding to int8 with a zero point, static or of every token."""

    def rounding(x: Tensor) -> Tensor:
        low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
        step = (high - low) / 255 if scale is None else scale.float()
        offset = (-128 - low / step).round().clamp(-128, 127) if zero is None else zero.float()
        return (on_grid(x / step + offset, "int", 8) - offset) * step

    return rounding


def nvfp4(whole: Tensor) -> Rounding:
    """Returns the rounding of groups of 16 with e4m3 scales, which `whole` multiplies."""

    def rounding(x: Tensor) -> Tensor:
        groups = x.unflatten(-1, (-1, 16))
        scale = (groups.abs().amax(-1, keepdim=True) / 6 * whole).clamp(max=448).to(E4M3).float()
        scale = torch.where(scale == 0, 0.125, scale) / whole
        return (on_grid(groups / scale, "float", 4) * scale).flatten(-2)

    return rounding


def mx(bits: int) -> Rounding:
    """Returns the rounding of groups of 32 by powers of two, as compressed-tensors chooses them.

    The largest value is rounded up to the next power if it is at least 1.75 times a power; this one is that of the
    largest code (4 or 256).
    """

    def rounding(x: Tensor) -> Tensor:
        groups = x.unflatten(-1, (-1, 32))
        fraction, exponent = torch.frexp(groups.abs().amax(-1, keepdim=True))  # fraction from 1/2 to 1
        exponent = exponent - 1 + (fraction >= 0.875).int() - (2 if bits == 4 else 8)
        scale = exponent.clamp(-127, 128).float().exp2()
        return (on_grid(groups / scale, "float", bits) * scale).flatten(-2)

    return rounding


def llm_int8(threshold: float) -> Rounding:
    """Returns the rounding of bitsandbytes: per token, but for columns that have large values in any token.

    It rounds what float16 holds, and multiplies by 6.200124e-05, which it has for 1/127².
    """

    def rounding(x: Tensor) -> Tensor:
        small = x.half()
        large = small.abs() >= threshold
        largest = small.masked_fill(large, 0).abs().amax(-1, keepdim=True).float()
        codes = (small * (127 / largest)).round()
        return torch.where(large.flatten(0, -2).any(0), x, codes * largest * 127 * 6.200124e-05)

    return rounding


def rounding_of(args: dict | None, parts: Tensors) -> Rounding | None:
    """Returns the rounding that `input_activations` of compressed-tensors names."""
    if not args:
        return None
    kind, bits = args["type"], args["num_bits"]
    if args["strategy"] == "tensor_group":
        return nvfp4(parts["input_global_scale"].float())
    if args.get("scale_dtype") == "torch.uint8":
        return mx(bits)
    if not args["symmetric"]:
        return with_zeros(parts.get("input_scale"), parts.get("input_zero_point"))
    return dynamic(kind, bits, group=args.get("group_size")) if args["dynamic"] else static(parts["input_scale"])


# layouts


def compressed_tensors(config: dict, tensors: Tensors) -> Iterator[tuple[str, Layer]]:
    """Yields the layers of a file of compressed-tensors."""
    for module, parts in by_layer(tensors, ("weight_scale",)):
        group = next(
            group for group in config["config_groups"].values() if any(map(targeted(module), group["targets"]))
        )
        how, scale = group["weights"], parts["weight_scale"]
        if scale.dtype == torch.uint8:
            scale = (scale.float() - 127).exp2()
        if how["type"] == "float" and how["num_bits"] < 8:
            W = nibbles(parts["weight_packed"]) if how["num_bits"] == 4 else six_bits(parts["weight_packed"])
            scale = scale.float() / parts.get("weight_global_scale", torch.ones(1))
        elif "weight_packed" in parts:
            bits, (high, wide) = how["num_bits"], parts["weight_shape"].tolist()
            W = bits_of(parts["weight_packed"], bits, wide).float() - 2 ** (bits - 1)
            if "weight_zero_point" in parts:
                zero = down(parts["weight_zero_point"], bits, high) - 2 ** (bits - 1)
                W -= spread(zero, W.shape)
        else:
            W = parts["weight"].float()
        places = parts.get("weight_g_idx")
        full = spread(scale, W.shape) if places is None else scale.float()[:, places.long()]
        yield module, Layer(W * full, rounding_of(group["input_activations"], parts))


def targeted(module: str) -> Callable[[str], bool]:
    """Returns whether a target of a group is meant for a linear layer."""
    return lambda target: (
        target in ("Linear", module) or (target.startswith("re:") and bool(re.match(target[3:], module)))
    )


def fp8(config: dict, tensors: Tensors) -> Iterator[tuple[str, Layer]]:
    """Yields the layers of `quant_method: fp8`."""
    for module, parts in by_layer(tensors, ("weight_scale_inv",)):
        W = parts["weight"].float()
        dynamically = config["activation_scheme"] == "dynamic"
        rounding = dynamic("float", 8, group=128) if dynamically else static(parts["activation_scale"])
        yield module, Layer(W * spread(parts["weight_scale_inv"], W.shape), rounding)


def modelopt(config: dict, tensors: Tensors) -> Iterator[tuple[str, Layer]]:
    """Yields the layers of NVIDIA's ModelOpt; `weight_scale_2` and `input_scale` are multiplied with."""
    method = config["quant_algo"].upper()
    for module, parts in by_layer(tensors, ("weight_scale",)):
        W, scale = parts["weight"], parts["weight_scale"].float()
        if method == "NVFP4":
            W, scale, rounding = nibbles(W), scale * parts["weight_scale_2"], nvfp4(1 / parts["input_scale"])
        elif method == "FP8":
            rounding = static(parts["input_scale"])
        elif method == "FP8_PER_CHANNEL_PER_TOKEN":
            rounding = dynamic("float", 8)
        elif method == "FP8_PB_WO":
            scale, rounding = scale.squeeze((1, 3)) if scale.ndim == 4 else scale, None
        else:
            raise NotImplementedError(method)
        yield module, Layer(W.float() * spread(scale, W.shape), rounding)


def gptq(config: dict, tensors: Tensors) -> Iterator[tuple[str, Layer]]:
    """Yields the layers of GPTQ; its first version stores zero points less one, as a subtraction of whole words."""
    formats = config.get("checkpoint_format"), config.get("packing_format"), config.get("format")
    first = not any(str(name) in ("gptq_v2", "auto_round") for name in formats)
    for module, parts in by_layer(tensors, ("qweight",)):
        groups, wide = parts["scales"].shape
        bits = parts["qzeros"].shape[1] * 32 // wide
        high, one = parts["qweight"].shape[0] * 32 // bits, sum(1 << at for at in range(0, 32, bits) if 32 % bits == 0)
        words = (parts["qzeros"].long() + (one if first else 0)).int()  # beyond 32 bits it wraps
        zeros = bits_of(words, bits, wide)
        zeros = (zeros + 1) % 2**bits if first and not one else zeros
        places = parts.get("g_idx", torch.arange(high) // (high // groups)).long()
        codes = down(parts["qweight"], bits, high)
        yield module, Layer(((codes - zeros[places]) * parts["scales"].float()[places]).T)


def awq(_: dict, tensors: Tensors) -> Iterator[tuple[str, Layer]]:
    """Yields the layers of AWQ (gemm): words hold eight outputs in an order of their own."""
    for module, parts in by_layer(tensors, ("qweight",)):
        codes, zeros = (_in_order(parts[name]) for name in ("qweight", "qzeros"))
        group = len(codes) // len(zeros)
        zeros, scales = (some.repeat_interleave(group, 0) for some in (zeros, parts["scales"].float()))
        yield module, Layer(((codes - zeros) * scales).T)


def _in_order(words: Tensor) -> Tensor:
    codes = bits_of(words, 4, words.shape[1] * 8).unflatten(1, (-1, 8))
    return codes[:, :, AWQ_ORDER].flatten(1)


def auto_round(config: dict, tensors: Tensors) -> Iterator[tuple[str, Layer]]:
    """Yields the layers of AutoRound, which packs as one of several others do."""
    packing = config["packing_format"].removeprefix("auto_round:")
    if packing in ("auto_round", "auto_gptq"):
        yield from gptq(config, tensors)
    elif packing == "auto_awq":
        yield from awq(config, tensors)
    else:
        for module, parts in by_layer(tensors, ("weight_scale",)):
            yield module, _auto_round_float(parts)


def _auto_round_float(parts: Tensors) -> Layer:
    scale = parts["weight_scale"]
    if "weight_packed" not in parts:
        W = parts["weight"].float()
        return Layer(W * spread(scale, W.shape), static(parts["input_scale"]))
    W = nibbles(parts["weight_packed"])
    if scale.dtype == torch.uint8:
        return Layer(W * spread((scale.float() - 127).exp2(), W.shape), mx(4))
    scale = scale.float() / parts["weight_global_scale"]
    return Layer(W * spread(scale, W.shape), nvfp4(parts["input_global_scale"]))


def mxfp4(_: dict, tensors: Tensors) -> Iterator[tuple[str, Layer]]:
    """Yields the experts of gpt-oss, whose parameters are not called `weight`."""
    for name in [name for name in tensors if name.endswith("_blocks")]:
        name = name.removesuffix("_blocks")
        scale = (tensors[f"{name}_scales"].float() - 127).exp2()
        W = nibbles(tensors[f"{name}_blocks"]) * scale.unsqueeze(3)
        yield name, Layer(W.flatten(2).transpose(1, 2))


def bitsandbytes(config: dict, tensors: Tensors) -> Iterator[tuple[str, Layer]]:
    """Yields the layers of bitsandbytes."""
    if config["load_in_8bit"]:
        for module, parts in by_layer(tensors, ("SCB",)):
            W = parts["weight"].float() * parts["SCB"].unsqueeze(1) / 127
            yield module, Layer(W, llm_int8(config["llm_int8_threshold"]))
        return
    from bitsandbytes.functional import QuantState, dequantize_4bit

    for name in [name.rpartition(".quant_state")[0] for name in tensors if ".quant_state." in name]:
        parts = {key.removeprefix(f"{name}."): tensors[key] for key in tensors if key.startswith(f"{name}.")}
        state = QuantState.from_dict(parts, device="cpu")
        state.dtype = torch.float32
        yield name.removesuffix(".weight"), Layer(dequantize_4bit(tensors[name], state))


def torchao(_: dict, tensors: Tensors) -> Iterator[tuple[str, Layer]]:
    """Yields the layers of torchao in whole numbers."""
    for module, parts in by_layer(tensors, ("_weight_qdata",)):
        codes, scale = parts["_weight_qdata"].float(), parts["_weight_scale"].float()
        zero = parts.get("_weight_zero_point", torch.zeros_like(scale))
        yield module, Layer((codes - spread(zero, codes.shape)) * spread(scale, codes.shape))


READERS = {
    "compressed-tensors": compressed_tensors,
    "fp8": fp8,
    "modelopt": modelopt,
    "gptq": gptq,
    "awq": awq,
    "auto-round": auto_round,
    "mxfp4": mxfp4,
    "bitsandbytes": bitsandbytes,
    "torchao": torchao,
}


# the model


def load(directory: Path) -> nn.Module:
    """Returns the plain model in float32, with what a checkpoint has in place of its weights."""
    if file := next(directory.glob("*.gguf"), None):
        return _load_gguf(file)
    config, tensors = read(directory)
    how = config.pop("quantization_config", None)
    if how is None and (directory / "hf_quant_config.json").exists():
        beside = json.loads((directory / "hf_quant_config.json").read_text())["quantization"]
        how = {"quant_method": "modelopt", **beside}
    model = t.AutoModelForCausalLM.from_config(t.AutoConfig.for_model(**config), dtype=torch.float32)
    layers = dict(READERS[how["quant_method"]](how, tensors)) if how else {}
    _replace_experts(model, tensors)
    state = {name: W.float() for name, W in tensors.items() if name in model.state_dict()}
    model.load_state_dict(state | {_parameter(model, name): layer.weight for name, layer in layers.items()})
    for name, layer in layers.items():
        if layer.rounding:
            hook = lambda _, args, rounding=layer.rounding: (rounding(args[0]), *args[1:])  # noqa: E731
            model.get_submodule(name).register_forward_pre_hook(hook)
    _round_cache(model, {name: W for name, W in tensors.items() if re.search(r"\.[kv]_scale$", name)})
    return model.eval()


class Expert(nn.Module):
    """The three layers of an expert, which transformers keeps in one parameter for all experts."""

    def __init__(self, hidden: int, wide: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(hidden, wide, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(wide, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.ModuleList):
    """Experts, each of which sees the tokens that are sent to it."""

    def forward(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        for number, expert in enumerate(self):
            tokens, places = torch.where(chosen == number)
            if len(tokens):
                result[tokens] += expert(x[tokens].unsqueeze(0))[0] * shares[tokens, places, None]
        return result


def _replace_experts(model: nn.Module, tensors: Tensors) -> None:
    """Gives every expert layers of its own, if it has these in the file."""
    for name, module in list(model.named_modules()):
        if name.endswith("experts") and any(key.startswith(f"{name}.0.gate_proj") for key in tensors):
            sizes = module.hidden_dim, module.intermediate_dim
            model.set_submodule(name, Experts(Expert(*sizes) for _ in range(module.num_experts)))


def _parameter(model: nn.Module, name: str) -> str:
    return name if name in model.state_dict() else f"{name}.weight"


def _round_cache(model: nn.Module, scales: Tensors) -> None:
    """Rounds keys, after rotation, and values to FP8 by the scales of each layer, per tensor or per head."""
    if not scales:
        return
    by_side = {(layer_number(name), name[-7]): static(scale) for name, scale in scales.items()}

    def attention(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *args, **kwargs) -> object:
        k, v = (by_side[module.layer_idx, side](some) for side, some in (("k", k), ("v", v)))
        return sdpa_attention_forward(module, q, k, v, *args, **kwargs)

    t.AttentionInterface.register("rounded", attention)
    t.AttentionMaskInterface.register("rounded", t.masking_utils.sdpa_mask)
    model.set_attn_implementation("rounded")


def layer_number(name: str) -> int:
    """Returns the number of the block that a tensor belongs to."""
    return int(re.search(r"layers\.(\d+)\.", name)[1])


def _load_gguf(file: Path) -> nn.Module:
    import gguf
    from write_here import GGUF_NAMES

    tensors = {
        one.name: torch.from_numpy(gguf.quants.dequantize(one.data, one.tensor_type).copy())
        for one in gguf.GGUFReader(file).tensors
    }
    config = t.AutoConfig.from_pretrained(file.parents[1] / "base")
    model = t.LlamaForCausalLM(config).float()
    state = {}
    for name, old in model.state_dict().items():
        stored = name
        for ours, theirs in GGUF_NAMES.items():
            stored = stored.replace(ours, theirs)
        W = tensors[stored]
        heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}.get(name[-13:-12])
        if heads and "_proj" in name:
            W = W.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
        state[name] = W.reshape(old.shape)
    model.load_state_dict(state)
    return model.eval()


@torch.no_grad()
def divergence(windows: list[SimpleNamespace], reference: nn.Module, quantized: nn.Module) -> float:
    """Returns the mean KL of two models in nats per token; windows have `ids`, and `asked` where a token follows."""
    divergences = []
    for window in windows:
        ids = torch.tensor([window.ids])
        p, q = (
            model(input_ids=ids).logits[0][torch.tensor(window.asked)].double().log_softmax(-1)
            for model in (reference, quantized)
        )
        divergences.append((p.exp() * (p - q)).sum(1))
    return float(torch.cat(divergences).mean())
