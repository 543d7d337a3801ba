"""Writes checkpoints by AutoRound, in its environment: python write_auto_round.py BASE OUT."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from auto_round import AutoRound, SignRoundConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from writing import SAMPLES, write_all

TOKENS = 16
MIXED = {f"model.layers.{i}.mlp.down_proj": {"bits": 8} for i in range(2)} | {
    "model.layers.0.self_attn.q_proj": {"bits": 16}
}
RECIPES: dict[str, tuple[str, Any]] = {
    "sym": ("auto_round", {"bits": 4, "sym": True}),
    "asym": ("auto_round", {"bits": 4, "sym": False}),
    "3-bits": ("auto_round", {"bits": 3, "sym": True}),
    "2-bits": ("auto_round", {"bits": 2, "sym": False}),
    "8-bits": ("auto_round", {"bits": 8, "sym": True}),
    "mixed": ("auto_round", {"bits": 4, "sym": True, "layer_config": MIXED}),
    "gptq": ("auto_gptq", {"bits": 4, "sym": True}),
    "gptq-asym": ("auto_gptq", {"bits": 4, "sym": False}),
    "awq": ("auto_awq", {"bits": 4, "sym": False}),
    "awq-sym": ("auto_awq", {"bits": 4, "sym": True}),
    "llm_compressor": ("llm_compressor", {"bits": 4, "sym": True}),
    **{f"{name}-llm_compressor": ("llm_compressor", name) for name in ("NVFP4", "MXFP4")},
    **{name: ("auto_round", name) for name in ("FP8_STATIC", "NVFP4", "MXFP4")},
}


def write(base: Path, recipe: tuple[str, Any], out: Path) -> None:
    """Writes one checkpoint, of two steps of learned rounding."""
    form, how = recipe
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base, dtype="auto"), AutoTokenizer.from_pretrained(base)
    ids = [tokenizer(text, return_tensors="pt").input_ids[:, :TOKENS] for text in SAMPLES]
    named, options = ({"scheme": how}, {}) if isinstance(how, str) else ({}, {"group_size": 32, **how})
    if "layer_config" in options:
        named["layer_config"] = options.pop("layer_config")
    run = AutoRound(
        model,
        tokenizer,
        alg_configs=SignRoundConfig(iters=2, **options),
        dataset=[one for one in ids if one.shape[1] == TOKENS],
        nsamples=8,
        seqlen=TOKENS,
        batch_size=8,
        device_map="cpu",
        enable_torch_compile=False,
        **named,
    )
    with TemporaryDirectory(dir=out.parent) as draft:
        run.quantize_and_save(draft, format=form)
        places = [file.parent for file in Path(draft).rglob("config.json")]
        places[0].rename(out)


if __name__ == "__main__":
    write_all("ar-", RECIPES, write, "auto-round")
