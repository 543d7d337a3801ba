"""Calibrate without text: GPTQ on samples of the model itself, which begin with each language's name for itself.

    python examples/own_samples.py

Take 8 samples of 128 tokens of each language for a real model. Look at a few: a model that cannot write a language
cannot make its calibration text either. It printed:

    fin_Latn: 5 samples that begin with 'suomi'
    tha_Thai: 5 samples that begin with 'ไทย'
    quantized to 13.48 MB
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import fairbits as fb
from fairbits.text.language_codes import resolve_language

LANGUAGES, SAMPLES, TOKENS = ("fin", "tha"), 5, 32
checkpoint = fb.Checkpoint("embedded:tiny")
model, tokenizer = checkpoint.load(), checkpoint.tokenizer()
torch.manual_seed(0)
texts = {}
for name in LANGUAGES:
    language = resolve_language(name).language
    start = tokenizer(language.autonym, return_tensors="pt")
    drawn = model.generate(
        **start,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        min_new_tokens=TOKENS,
        max_new_tokens=TOKENS,
        num_return_sequences=SAMPLES,
        pad_token_id=tokenizer.pad_token_id,
    )
    texts[language.code] = tokenizer.batch_decode(drawn, skip_special_tokens=True)
    print(f"{language.code}: {SAMPLES} samples that begin with {language.autonym!r}")

corpus = fb.Corpus("own samples", texts, {})
plan = fb.plan(checkpoint, policy="gptq", bits=4, group=64, text=corpus)
with TemporaryDirectory() as directory:
    done = fb.quantize(checkpoint, plan, out=Path(directory) / "tiny-w4", text=corpus)
    print(f"quantized to {done.size_bytes / 1e6:.2f} MB")
