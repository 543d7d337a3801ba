"""The embedded model's tokenizer with fewer tokens: most of the time of a small model is that of its logits."""

import json
from pathlib import Path


def smaller_tokenizer(file: Path, size: int) -> str:
    """Returns the content of a tokenizer.json with its first `size` tokens; it still reads every text, as bytes."""
    whole = json.loads(file.read_text(encoding="utf-8"))
    bpe = whole["model"]
    bpe["vocab"] = {token: number for token, number in bpe["vocab"].items() if number < size}
    bpe["merges"] = [pair for pair in bpe["merges"] if "".join(pair) in bpe["vocab"]]
    return json.dumps(whole)
