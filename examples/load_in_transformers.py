"""Quantize the embedded model with plain rounding, then load and run it with transformers alone.

    python examples/load_in_transformers.py

What follows the loading needs no fairbits: transformers reads the format through compressed-tensors. The embedded
model is an instrument and invents: do not look at its prose. It printed:

    compressed-tensors pack-quantized
    generated 8 tokens
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import fairbits as fb

with TemporaryDirectory() as directory:
    checkpoint = Path(directory) / "tiny-w4"
    fb.quantize("embedded:tiny", fb.plan("embedded:tiny", policy="rtn", bits=4, group=64), out=checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)

quantization = model.config.quantization_config
print(quantization.quant_method.value, quantization.quantization_config.format)
prompt = tokenizer("The house", return_tensors="pt")
with torch.no_grad():
    answer = model.generate(**prompt, max_new_tokens=8, do_sample=False, pad_token_id=tokenizer.pad_token_id)
print("generated", answer.shape[1] - prompt["input_ids"].shape[1], "tokens")
