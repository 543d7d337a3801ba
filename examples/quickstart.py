"""Quantize the embedded model for three languages, measure what each lost, and decide whether that is acceptable.

    python examples/quickstart.py

Writes a checkpoint into a temporary directory. It printed:

    eng_Latn  +0.0058 [-0.0078, +0.0337] bits per byte added
    heb_Hebr  -0.0022 [-0.0153, +0.0089] bits per byte added
    swh_Latn  +0.0295 [+0.0010, +0.0725] bits per byte added
    pass: worst language (swh_Latn) 0.0295 [-0.0143, 0.0725] bits per byte is at most 0.1
    pass: gap 0.0306 [0, 0.0787] bits per byte is at most 0.1
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import fairbits as fb

LANGUAGES = ["eng", "heb", "swh"]

with TemporaryDirectory() as directory:
    checkpoint = Path(directory) / "tiny-w4"
    plan = fb.plan("embedded:tiny", policy="gptq", bits=4, group=64, languages=LANGUAGES, tokens=128)
    fb.quantize("embedded:tiny", plan, out=checkpoint)
    scores = fb.evaluate(checkpoint, reference="embedded:tiny", languages=LANGUAGES, tokens=512)

for code, damage in scores.frame("bits_per_byte").by_language().items():
    print(f"{code}  {damage.value:+.4f} [{damage.low:+.4f}, {damage.high:+.4f}] bits per byte added")
verdict = fb.gate(scores, max_worst=0.1, max_gap=0.1)
for check in verdict.checks:
    print(f"{check.outcome}: {check.reason}")
