"""AWQ by llm-compressor, 4 bits, asymmetric, groups of 128, in an environment of its own, without fairbits.

    python benchmarks/practice_awq.py MODEL ROWS.json OUT

ROWS.json is a list of rows of token ids. Tested with llmcompressor 0.14.0.1, compressed-tensors 0.19.0 and transformers
5.17.0.
"""

import json
import sys
from pathlib import Path

import torch
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

model_name, samples, out = sys.argv[1:4]
rows = json.loads(Path(samples).read_text(encoding="utf-8"))
tokenizer = AutoTokenizer.from_pretrained(model_name)
model = AutoModelForCausalLM.from_pretrained(model_name, dtype="auto")
model.to("cuda" if torch.cuda.is_available() else "cpu")
batches = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in torch.tensor(rows).split(1)]
oneshot(
    model=model,
    processor=tokenizer,
    recipe=[AWQModifier(), QuantizationModifier(scheme="W4A16_ASYM", targets=["Linear"], ignore=["lm_head"])],
    dataset=DataLoader(batches, batch_size=None),
    num_calibration_samples=len(rows),
    max_seq_length=max(map(len, rows)),
    shuffle_calibration_samples=False,
)
model.save_pretrained(out, save_compressed=True)
tokenizer.save_pretrained(out)
