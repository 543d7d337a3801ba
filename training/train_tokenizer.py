"""Trains the tokenizer: `python training/train_tokenizer.py CORPUS OUT [mixtral.toml]` writes OUT/tokenizer.json."""

import sys
import tomllib
from pathlib import Path

from text import train_tokenizer

if __name__ == "__main__":
    corpus, out = map(Path, sys.argv[1:3])
    config = sys.argv[3] if len(sys.argv) > 3 else "config.toml"
    settings = tomllib.loads(Path(__file__).with_name(config).read_text(encoding="utf-8"))
    out.mkdir(parents=True, exist_ok=True)
    train_tokenizer(corpus, settings).save(str(out / "tokenizer.json"))
