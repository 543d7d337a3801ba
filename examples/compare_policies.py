"""Compare two ways to calibrate GPTQ and plain rounding, at 3 bits, on the same text.

    python examples/compare_policies.py

It printed:

    gptq              eng_Latn 0.030  swh_Latn 0.013 bits per byte added, 12.07 MB
    gptq:mix=english  eng_Latn 0.043  swh_Latn 0.275 bits per byte added, 12.07 MB
    rtn               eng_Latn 0.114  swh_Latn 0.222 bits per byte added, 12.07 MB
    gptq:mix=english loses 0.1375 [0.0699, 0.2067] (n=8) more than gptq on average
    rtn loses 0.1465 [0.1124, 0.1868] (n=8) more than gptq on average
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
    print(f"{entry.policy:16}  {damage} bits per byte added, {entry.size_bytes / 1e6:.2f} MB")
for contrast in found.contrasts:
    print(f"{contrast.policy} loses {contrast.mean} more than {contrast.against} on average")
