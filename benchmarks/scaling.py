"""How `fair` scales: one block of a large model is rounded and learned, and the rest is counted.

    python benchmarks/scaling.py [--width 4096] [--inner 14336] [--tokens 4096] [--block-steps 200] [--device cuda]

The block is that of an 8B Llama by its shape, with random weights: what it costs does not depend on their values. The
embedded tokenizer and declaration give the text. Printed are seconds and peak memory of GPTQ alone and of GPTQ with
learning, and what follows for models of 32 such blocks (8B) and of 80 blocks with four times the weights (70B).
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fairbits import Checkpoint
from fairbits.language import udhr
from fairbits.model.embedded import embedded_languages
from fairbits.quantization.execution import execute_plan
from fairbits.quantization.plan import Plan
from fairbits.verbs.plan import plan as planned
from fairbits.verbs.quantize import calibration_text

MODELS = {"8B": (32, 1.0), "70B": (80, 3.9)}
"""Blocks, and weights of a block in units of that of the 8B model."""


def model_with_one_block(directory: Path, options: argparse.Namespace) -> Checkpoint:
    """Returns a Llama of one block, in bfloat16, with the tokenizer of the embedded model."""
    tokenizer = Checkpoint("embedded:tiny").tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=options.width,
        intermediate_size=options.inner,
        num_hidden_layers=1,
        num_attention_heads=options.width // 128,
        num_key_value_heads=max(options.width // 512, 1),
        tie_word_embeddings=True,
        dtype=torch.bfloat16,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return Checkpoint(directory)


def timed(checkpoint: Checkpoint, plan: Plan, text: object, device: str) -> tuple[float, float]:
    """Returns the seconds that a plan takes, and the most memory on the device in GB."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    list(execute_plan(checkpoint, plan, text=calibration_text(checkpoint, plan, text), device=device))
    peak = 0.0 if device == "cpu" else torch.cuda.max_memory_allocated() / 1e9
    return time.perf_counter() - start, peak


def main() -> None:
    """Times one block, and counts the rest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--inner", type=int, default=14336)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--block-steps", type=int, default=200)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    corpus = udhr(embedded_languages("embedded:tiny"))
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = model_with_one_block(Path(directory), options)
        weights = sum(each.shape[0] * each.shape[1] for each in checkpoint.architecture.linears.values())
        asked = {"text": corpus, "bits": 4, "group": 128, "tokens": options.tokens, "device": options.device}
        plans = {
            "gptq": planned(checkpoint, policy="gptq", **asked),
            "fair": planned(checkpoint, policy="fair", block_steps=options.block_steps, model_steps=0, **asked),
        }
        timed(checkpoint, plans["gptq"], corpus, options.device)  # compiles what is compiled
        found = {name: timed(checkpoint, plan, corpus, options.device) for name, plan in plans.items()}
    print(f"one block of {weights / 1e6:.0f} M weights, {options.block_steps} steps, torch {torch.__version__}")
    for name, (seconds, peak) in found.items():
        rest = ", ".join(f"{model} {n * share * seconds / 60:.0f} min" for model, (n, share) in MODELS.items())
        print(f"{name}: {seconds:.1f} s, {peak:.1f} GB on {options.device}; by count {rest}")


if __name__ == "__main__":
    main()
