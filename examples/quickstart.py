"""Quantize the embedded model for three languages, measure the damage to each, and decide whether it is acceptable.

    python examples/quickstart.py

Writes a checkpoint into a temporary directory. It printed:

    eng_Latn  changed 11.4 of 100, KL 0.0103 [0.0092, 0.0119] bits per byte
    heb_Hebr  changed 16.4 of 100, KL 0.0133 [0.0124, 0.0149] bits per byte
    swh_Latn  changed 11.9 of 100, KL 0.0219 [0.0196, 0.0245] bits per byte
    Hebrew changes most: of 100 next tokens, 16 are no longer the reference's first choice (95 % interval 15 to 18),
    and perplexity is multiplied by 0.99. That is a clear change. Where the reference is sure, 1.0 of 100 change. By KL
    divergence, Swahili is worst.
    not released: fail: heb_Hebr: 16.4 of 100 next tokens change (95 % interval 14.7 to 17.9, corrected for the choice
    of the worst of 3), limit 5. Also over the limit: swh_Latn, eng_Latn
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import fairbits as fb

LANGUAGES = ["eng", "heb", "swh"]

with TemporaryDirectory() as directory:
    checkpoint = Path(directory) / "tiny-w4"
    plan = fb.plan("embedded:tiny", policy="gptq", bits=4, group=64, languages=LANGUAGES, tokens=128)
    fb.quantize("embedded:tiny", plan, out=checkpoint)
    scores = fb.evaluate(checkpoint, reference="embedded:tiny", languages=LANGUAGES, tokens=2048)

for code, damage in scores.frame().by_language().items():
    changed, interval = 100 * scores.flips[code].value, f"[{damage.low:.4f}, {damage.high:.4f}]"
    print(f"{code}  changed {changed:.1f} of 100, KL {damage.value:.4f} {interval} bits per byte")
print(scores.meaning.sentence)
result = fb.gate(scores, max_changed=5)
print("released" if result else f"not released: {result.reason}")
