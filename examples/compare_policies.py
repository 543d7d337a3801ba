"""Compare two ways to calibrate GPTQ and plain rounding, at 3 bits, on the same text.

    python examples/compare_policies.py

It printed:

    gptq              divergence eng_Latn 0.057  swh_Latn 0.116 bits per byte, 12.07 MB
    gptq:mix=english  divergence eng_Latn 0.053  swh_Latn 0.441 bits per byte, 12.07 MB
    rtn               divergence eng_Latn 0.129  swh_Latn 0.318 bits per byte, 12.07 MB
    gptq:mix=english diverges 0.1605 [0.1470, 0.1692] (n=8) more than gptq on average
    rtn diverges 0.1367 [0.1265, 0.1477] (n=8) more than gptq on average
"""

import fairbits as fb

found = fb.compare(
    "embedded:tiny",
    policies=["gptq", "gptq:mix=english", "rtn"],
    bits=[3],
    group="channel",
    languages=["eng", "swh"],
    tokens=128,
    evaluation_tokens=512,
)
for entry in found.entries:
    damage = "  ".join(f"{code} {each.value:.3f}" for code, each in entry.frame.by_language().items())
    print(f"{entry.policy:16}  divergence {damage} bits per byte, {entry.size_bytes / 1e6:.2f} MB")
for contrast in found.contrasts:
    print(f"{contrast.policy} diverges {contrast.mean} more than {contrast.against} on average")
