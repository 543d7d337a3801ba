"""Learned rounding, 4-bit weights (W4A16), by AutoRound, calibrated on the samples that `fairbits mix` has written.

    pip install auto-round compressed-tensors
    fairbits mix MODEL --text help --languages eng,fra,fin --out calib.jsonl
    python examples/recipes/with_auto_round.py MODEL calib.jsonl OUT [GROUP [ITERATIONS]]

MODEL is a directory or an id on the Hub. OUT is in the format compressed-tensors, which vLLM and transformers load.
Tested with auto-round 0.16.1, compressed-tensors 0.19.0 and transformers 5.22.2.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from auto_round import AutoRound, SignRoundConfig

name, calibration, out = sys.argv[1:4]
group = int(sys.argv[4]) if len(sys.argv) > 4 else 128
iterations = int(sys.argv[5]) if len(sys.argv) > 5 else 200

samples = [json.loads(line) for line in Path(calibration).read_text(encoding="utf-8").splitlines()]
rounding = AutoRound(
    name,
    alg_configs=SignRoundConfig(bits=4, group_size=group, sym=True, iters=iterations),
    dataset=calibration,  # the name must end in .jsonl
    nsamples=len(samples),
    seqlen=min(each["tokens"] for each in samples),  # it drops shorter samples
)
with TemporaryDirectory(dir=Path(out).parent) as draft:
    rounding.quantize_and_save(draft, format="llm_compressor")
    next(Path(draft).iterdir()).rename(out)  # it writes into a folder of its own within
