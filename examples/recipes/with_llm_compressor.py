"""GPTQ, 4-bit weights (W4A16), by llm-compressor, calibrated on the samples that `fairbits mix` has written.

    pip install llmcompressor
    fairbits mix MODEL --text help --languages eng,fra,fin --out calib.jsonl
    python examples/recipes/with_llm_compressor.py MODEL calib.jsonl OUT [GROUP]

MODEL is a directory or an id on the Hub. OUT is in the format compressed-tensors, which vLLM and transformers load.
Tested with llmcompressor 0.14.0.1, compressed-tensors 0.19.0 and transformers 5.17.0.
"""

import json
import sys
from pathlib import Path

from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from transformers import AutoModelForCausalLM, AutoTokenizer

name, calibration, out = sys.argv[1:4]
group = int(sys.argv[4]) if len(sys.argv) > 4 else 128

model = AutoModelForCausalLM.from_pretrained(name, dtype="auto")
tokenizer = AutoTokenizer.from_pretrained(name)
samples = [json.loads(line) for line in Path(calibration).read_text(encoding="utf-8").splitlines()]
weights = QuantizationArgs(num_bits=4, symmetric=True, strategy="group", group_size=group)
oneshot(
    model=model,
    processor=tokenizer,
    recipe=GPTQModifier(
        config_groups={"group_0": QuantizationScheme(targets=["Linear"], weights=weights)}, ignore=["lm_head"]
    ),
    dataset=Dataset.from_list([dict(tokenizer(each["text"])) for each in samples]),
    num_calibration_samples=len(samples),  # all of them: by default no more than 512
    max_seq_length=max(each["tokens"] for each in samples),
    shuffle_calibration_samples=False,
)
model.save_pretrained(out, save_compressed=True)
tokenizer.save_pretrained(out)
