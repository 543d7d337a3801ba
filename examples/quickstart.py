"""Quantize the embedded model for three languages, measure the damage to each, and decide whether it is acceptable.

    python examples/quickstart.py

Writes a checkpoint into a temporary directory. It printed:

    eng_Latn  divergence 0.0101 [0.0088, 0.0131] bits per byte, added loss +0.0058
    heb_Hebr  divergence 0.0136 [0.0115, 0.0193] bits per byte, added loss -0.0022
    swh_Latn  divergence 0.0269 [0.0235, 0.0303] bits per byte, added loss +0.0295
    pass: swh_Latn lost 0.0269 bits per byte (95 % CI 0.0227 to 0.0303), limit 0.1
    pass: languages differ by 0.0167 bits per byte (95 % CI 0.0112 to 0.0199), limit 0.1
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

for code, damage in scores.frame().by_language().items():
    changed, interval = 100 * scores.flips[code].value, f"[{damage.low:.4f}, {damage.high:.4f}]"
    print(f"{code}  changed {changed:.1f} of 100, KL {damage.value:.4f} {interval} bits per byte")
print(scores.meaning.sentence)
result = fb.gate(scores, max_changed=10)
print("released" if result else f"not released: {result.reason}")
