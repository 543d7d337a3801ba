"""Writes checkpoints in the formats that need no quantizer: python write_here.py BASE OUT.

compressed-tensors and gguf write their own; what no tool writes on a CPU, or no longer, is written by hand.
"""

import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from shutil import copytree

import gguf
import torch
import transformers as t
from gguf.quants import quantize
from safetensors.torch import load_file, save_file

sys.path.append(str(Path(__file__).parents[1] / "sweeps"))
from other_tools import FORMATS, WEIGHTS, _add_to_config, _convert

FLOAT = gguf.GGMLQuantizationType.F32
SPECIAL = {f"{name}_token_id": number for number, name in enumerate(("bos", "eos", "pad"), 1)}
GRID = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
GGUF_TYPES = ("BF16", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ2_0", "MXFP4")
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.": "attn_",
    "mlp.": "ffn_",
    "_proj": "",
}


def write_static_fp8(model: Path, out: Path) -> None:
    """Writes `quant_method: fp8` with a scale per tensor, of weights and of inputs, as Mistral does."""

    def convert(name: str, W: torch.Tensor) -> dict[str, torch.Tensor]:
        scale = W.abs().amax() / 448
        module = name.removesuffix(".weight")
        static = {f"{module}.activation_scale": torch.tensor(0.01 + len(name) / 4096)}
        return {name: (W / scale).to(torch.float8_e4m3fn), f"{name}_scale_inv": scale, **static}

    _convert(model, out, convert)
    config = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    _add_to_config(out, {"quantization_config": config})


def write_reordered(model: Path, out: Path) -> None:
    """Writes W4A16 whose columns are in groups of 32 by `weight_g_idx`, as llm-compressor did with actorder "group"."""

    def convert(name: str, W: torch.Tensor) -> dict[str, torch.Tensor]:
        module, wide = name.removesuffix(".weight"), W.shape[1]
        places = torch.randperm(wide, generator=torch.Generator().manual_seed(len(name))) // 32
        largest = torch.stack([W[:, places == group].abs().amax(1) for group in range(wide // 32)], 1)
        scale = (largest / 7.5).bfloat16()
        codes = (W / scale.float()[:, places]).round().clamp(-8, 7).int() + 8
        return {
            f"{module}.weight_packed": (codes.unflatten(1, (-1, 8)) << torch.arange(0, 32, 4)).sum(2).int(),
            f"{module}.weight_scale": scale,
            f"{module}.weight_shape": torch.tensor(W.shape),
            f"{module}.weight_g_idx": places.int(),
        }

    _convert(model, out, convert)
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    group = {"targets": ["Linear"], "weights": {**weights, "actorder": "group"}, "input_activations": None}
    method = {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed"}
    _add_to_config(out, {"quantization_config": {**method, "config_groups": {"group_0": group}, "ignore": ["lm_head"]}})


def codes_of(values: torch.Tensor) -> torch.Tensor:
    """Returns the nearest four bits, e2m1, of values."""
    nearest = (values.abs().unsqueeze(-1) - GRID).abs().argmin(-1)
    return (nearest + 8 * (values < 0)).to(torch.uint8)


def write_gpt_oss(model: Path, out: Path) -> None:
    """Writes a small GptOss whose experts are in MXFP4, in the layout that OpenAI and transformers share."""
    config = t.GptOssConfig(
        vocab_size=1024,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
        **SPECIAL,
    )
    for directory in (out.with_name(f"base-{out.name}"), out):
        _save_plain(t.GptOssForCausalLM, config, model, directory)
    tensors = load_file(out / WEIGHTS)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        groups = tensors.pop(name).float().transpose(1, 2).unflatten(2, (-1, 32))
        exponent = (groups.abs().amax(3).log2().floor() - 2).clamp(-127, 127)
        codes = codes_of(groups / exponent.exp2().unsqueeze(3))
        tensors[f"{name}_blocks"] = codes[..., ::2] | codes[..., 1::2] << 4
        tensors[f"{name}_scales"] = (exponent + 127).to(torch.uint8)
    save_file(tensors, out / WEIGHTS, {"format": "pt"})
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    _add_to_config(out, {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": kept}})


def write_moe(model: Path, out: Path) -> None:
    """Writes a small mixture of experts, not quantized: an expert's layers are tensors of their own."""
    config = t.Qwen3MoeConfig(
        vocab_size=1024,
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=4,
        num_experts_per_tok=2,
        **SPECIAL,
    )
    _save_plain(t.Qwen3MoeForCausalLM, config, model, out)


def _save_plain(cls: type, config: t.PretrainedConfig, model: Path, out: Path) -> None:
    """Writes a random model with the tokenizer of another."""
    torch.manual_seed(0)
    plain = cls(config)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    copytree(model, out)
    (out / WEIGHTS).unlink()
    plain.bfloat16().save_pretrained(out)


def write_gguf(model: Path, out: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Writes a Llama as llama.cpp names and orders its tensors; norms in float32."""
    config = json.loads((model / "config.json").read_text())
    out.mkdir()
    writer = gguf.GGUFWriter(out / "model.gguf", "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    _add_tokenizer(writer, json.loads((model / "tokenizer.json").read_text())["model"])
    for name, W in load_file(model / WEIGHTS).items():
        heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}.get(name[-13:-12])
        if heads and "_proj" in name:
            W = W.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        for ours, theirs in GGUF_NAMES.items():
            name = name.replace(ours, theirs)
        stored = kind if W.ndim == 2 and W.shape[1] % gguf.GGML_QUANT_SIZES[kind][0] == 0 else FLOAT
        writer.add_tensor(name, quantize(W.float().numpy(), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(list(tokenizer["vocab"]))
    writer.add_token_types([gguf.TokenType.CONTROL] * 4 + [gguf.TokenType.NORMAL] * (len(tokenizer["vocab"]) - 4))
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(3)
    writer.add_add_bos_token(True)


BY_HAND = {"ct-actorder-group": write_reordered, "fp8-static": write_static_fp8}
TOOLS = {"ct-": "compressed-tensors", "gguf-": "gguf"}
WRITERS: dict[str, Callable[[Path, Path], None]] = {
    **{
        f"ct-{name.replace(' ', '-')}" if name[0].isupper() else name.replace(", ", "-"): write
        for name, write in FORMATS.items()
    },
    **BY_HAND,
    "gpt-oss": write_gpt_oss,
    "base-moe": write_moe,
    "fp8-moe": lambda model, out: FORMATS["fp8"](model.with_name("base-moe"), out),
    **{
        f"gguf-{kind}": lambda model, out, kind=kind: write_gguf(model, out, gguf.GGMLQuantizationType[kind])
        for kind in GGUF_TYPES
    },
}

if __name__ == "__main__":
    base, out = map(Path, sys.argv[1:])
    for name, write in WRITERS.items():
        if not (out / name).exists():
            write(base, out / name)
            tool = next((tool for prefix, tool in TOOLS.items() if name.startswith(prefix)), None)
            print(f"{name}: {tool} {version(tool)}" if tool and name not in BY_HAND else f"{name}: by hand", flush=True)
