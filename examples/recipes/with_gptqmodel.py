"""GPTQ, 4-bit weights (W4A16), by GPTQModel, calibrated on the samples that `fairbits mix` has written.

    pip install gptqmodel
    fairbits mix MODEL --text help --languages eng,fra,fin --out calib.jsonl
    python examples/recipes/with_gptqmodel.py MODEL calib.jsonl OUT [GROUP]

MODEL is a directory or an id on the Hub. OUT is in the format GPTQ, which vLLM loads. OUT-plain has the same weights
unpacked in float32: fairbits evaluate reads it. On two cores, set GPTQMODEL_CPU_WORKERS=2.
Tested with gptqmodel 7.6.0 and transformers 5.23.0.
"""

import json
import sys
from pathlib import Path

import torch
from gptqmodel import GPTQModel, QuantizeConfig
from gptqmodel.utils.model_dequant import dequantize_model

name, calibration, out = sys.argv[1:4]
group = int(sys.argv[4]) if len(sys.argv) > 4 else 128

samples = [json.loads(line) for line in Path(calibration).read_text(encoding="utf-8").splitlines()]
model = GPTQModel.load(name, QuantizeConfig(bits=4, group_size=group, sym=True, desc_act=False))
model.quantize([dict(model.tokenizer(each["text"])) for each in samples], batch_size=1)
model.save(out)
dequantize_model(out, f"{out}-plain", target_dtype=torch.float32)
if Path(f"{out}-plain", "model.safetensors").exists():  # it writes an index even if there is one file
    Path(f"{out}-plain", "model.safetensors.index.json").unlink()
