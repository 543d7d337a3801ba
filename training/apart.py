"""Writes the text that `arms.py` keeps apart and `training-choices` measures: `python training/apart.py CORPUS OUT`.

OUT is one JSONL file with 30 documents of every language for evaluation and 6 for calibration. They are the documents
of the lowest draws by which `text.encode` holds documents out, so that those held out of every training come first.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from text import documents, languages
from train import settings_of

SPLITS = {"evaluation": 30, "calibration": 6}


def lines(corpus: Path) -> list[str]:
    """Returns a line of JSON for every document that is kept apart, the same for the same corpus."""
    settings = settings_of("config.toml", [])["text"]
    written = []
    for index, lang in enumerate(languages(corpus)):
        texts = documents(corpus, lang, settings)
        draws = np.random.default_rng([settings["seed"], index]).random(len(texts))
        unique = iter(dict.fromkeys(texts[i] for i in np.argsort(draws, kind="stable")))
        for split, count in SPLITS.items():
            for _ in range(count):
                record = {"lang": lang, "split": split, "text": next(unique)}
                written.append(json.dumps(record, ensure_ascii=False))
    return written


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("corpus", "out"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    options.out.write_text("\n".join(lines(options.corpus)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
