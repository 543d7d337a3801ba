"""The time of the first opening of a tokenizer: it is parsed in a child process, and the verdict is kept.

    python benchmarks/opening.py [TOKENIZER.json …]

Without names: that of the embedded model, and one of drawn words as large as Gemma 3's: 262,144 tokens and
514,906 merges.
"""

import json
import os
import random
import resource
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from fairbits.models.embedded import ASSETS
from fairbits.models.untrusted import tokenizer_sandbox as trial

TOKENS, MERGES, REPEATS, SEED = 262_144, 514_906, 9, 0
ALPHABETS = (
    *("abcdefghijklmnopqrstuvwxyz", "абвгдежзийклмнопрстуфхцчшщыьэюя", "ابتثجحخدذرزسشصضطظعغفقكلمنهوي"),
    "".join(map(chr, range(0x4E00, 0x5600))),
)
LENGTHS = (12, 12, 10, 4)
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def drawn_tokens(rng: random.Random) -> list[str]:
    """Returns tokens: special ones, bytes, characters, then beginnings and ends of drawn words."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<unused{i}>" for i in range(6_242))]
    found = dict.fromkeys([*special, *(f"<0x{i:02X}>" for i in range(256)), "▁", *"".join(ALPHABETS)])
    while len(found) < TOKENS:
        (alphabet,) = rng.choices(ALPHABETS, (6, 2, 1, 1))
        length = rng.randint(2, LENGTHS[ALPHABETS.index(alphabet)])
        word = rng.choice(("", "▁")) + "".join(alphabet[int(len(alphabet) * rng.random() ** 2)] for _ in range(length))
        found |= dict.fromkeys(each for n in range(2, len(word) + 1) for each in (word[:n], word[-n:]))
    return list(found)[:TOKENS]


def drawn_tokenizer() -> bytes:
    """Returns a tokenizer.json in the form of Gemma's: BPE with bytes to fall back on, indented."""
    rng = random.Random(SEED)
    vocab = {token: i for i, token in enumerate(drawn_tokens(rng))}
    pairs = [[t[:i], t[i:]] for t in vocab if t[0] != "<" for i in range(1, len(t)) if {t[:i], t[i:]} <= vocab.keys()]
    chosen = sorted(rng.sample(range(len(pairs)), MERGES))
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": t, **FLAGS} for t, i in vocab.items() if t[0] == "<" and t[1:3] != "0x"],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": split,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": model | {"vocab": vocab, "merges": [pairs[i] for i in chosen]},
    }
    return json.dumps(content, ensure_ascii=False, indent=2).encode()


def child_seconds() -> float:
    """Returns the processor time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def report(name: str, directory: Path) -> None:
    """Prints the times of one tokenizer."""
    walls, times = [], []
    for _ in range(REPEATS):
        os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(dir=directory)
        began, used = perf_counter(), child_seconds()
        trial.check_tokenizer(directory)
        walls.append(perf_counter() - began)
        times.append(child_seconds() - used)
    began = perf_counter()
    trial.check_tokenizer(directory)
    size = (directory / "tokenizer.json").stat().st_size
    print(
        f"{name} ({size / 1e6:.1f} MB): {median(walls):.2f} s (best {min(walls):.2f}), of the child "
        f"{median(times):.2f} s of processor time (best {min(times):.2f}); then {perf_counter() - began:.3f} s",
        flush=True,
    )


def main() -> None:
    """Prints a line for every tokenizer."""
    names = [Path(each) for each in sys.argv[1:]] or [ASSETS / "tiny" / "tokenizer.json", None]
    for each in names:
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "tokenizer.json"
            shutil.copy(each, file) if each else file.write_bytes(drawn_tokenizer())
            report(str(each) if each and sys.argv[1:] else "embedded" if each else f"{TOKENS:,} tokens", file.parent)
    print(f"medians of {REPEATS}")


if __name__ == "__main__":
    main()
