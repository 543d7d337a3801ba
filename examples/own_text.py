"""Audit a model on text of your own: a JSONL file with one document per line, each with its language.

    python examples/own_text.py

The sentences are made here from a few words so that the example needs no download; take text of the kind that you
serve. It printed:

    note: texts.jsonl: 37 of 72 documents are for evaluation, chosen by hash with seed 0, the others for calibration
    eng_Latn  predicted 0.211 [0.171, 0.272] nats per token, at 3 bits
    fra_Latn  predicted 0.301 [0.219, 0.392] nats per token, at 3 bits
    spa_Latn  predicted 0.375 [0.260, 0.525] nats per token, at 3 bits
"""

import json
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import fairbits as fb

WORDS = {
    "eng": (
        ["The cat", "My sister", "The old man"],
        ["sees", "looks for", "buys"],
        ["a book.", "the house.", "bread."],
    ),
    "fra": (["Le chat", "Ma sœur", "Le vieil homme"], ["voit", "cherche", "achète"], ["un livre.", "la maison."]),
    "spa": (["El gato", "Mi hermana", "El viejo"], ["ve", "busca", "compra"], ["un libro.", "la casa.", "pan."]),
}

with TemporaryDirectory() as directory:
    file = Path(directory) / "texts.jsonl"
    lines = [{"lang": lang, "text": " ".join(words)} for lang, parts in WORDS.items() for words in product(*parts)]
    file.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    corpus = fb.read_corpus(file)  # split in half by a hash of the content: calibration and evaluation never meet

for note in corpus.notes:
    print("note:", note)
found = fb.audit("embedded:tiny", text=corpus, scheme=fb.Scheme(3, group=64), tokens=128)
for code, damage in found.predicted.estimates().items():
    print(f"{code}  predicted {damage.value:.3f} [{damage.low:.3f}, {damage.high:.3f}] nats per token, at 3 bits")
