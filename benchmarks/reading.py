"""The time to read a file of scores as large as that of a real run, with all of its checks.

python benchmarks/reading.py
"""

import tempfile
from pathlib import Path
from time import process_time

import numpy as np

from fairbits.evaluation.document_scores import DocumentScores, TokenPercentiles
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.setting import EvaluationSetting, Identity
from fairbits.text.included_texts import udhr_languages

LANGUAGES, DOCUMENTS, REPEATS, SEED = 122, 64, 15, 0


def drawn_scores() -> Scores:
    """Returns scores with drawn numbers."""
    rng, count = np.random.default_rng(SEED), LANGUAGES * DOCUMENTS
    codes = tuple(language.code for language in udhr_languages())[:LANGUAGES]
    tokens = rng.integers(100, 900, count).astype(float)
    losses = [rng.random(count) * 900 for _ in range(3)]
    documents = DocumentScores(
        np.repeat(codes, DOCUMENTS), np.tile(np.arange(DOCUMENTS), LANGUAGES), tokens, tokens * 4, *losses, tokens // 20
    )
    question = EvaluationSetting("causal", "drawn", "evaluation", True, dict.fromkeys(codes, "0" * 64), 4096, 512, SEED)
    models = Identity("quantized", "f" * 64, 1000), Identity("reference", "e" * 64, 4000)
    return Scores(*models, question, codes, documents, dict.fromkeys(codes, TokenPercentiles(*[0.5] * 6)))


def main() -> None:
    """Prints the time."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "scores.json"
        drawn_scores().save(file)
        times = []
        for _ in range(REPEATS + 1):
            began = process_time()
            Scores.load(file)
            times.append(process_time() - began)
        size = file.stat().st_size
    print(
        f"{LANGUAGES} languages, {DOCUMENTS} documents each, {size / 1000:.0f} kB: {1000 * min(times[1:]):.0f} ms of "
        f"processor time, the best of {REPEATS}"
    )


if __name__ == "__main__":
    main()
