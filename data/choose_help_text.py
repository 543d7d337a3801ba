"""Writes data/help_documents.txt: which paragraphs of LibreOffice's help form the documents of the text `help`.

python data/choose_help_text.py CORPUS [--cache FOLDER]

CORPUS is the training text of the embedded model (training/README.md), which is not part of the project: that is why
the list is. A paragraph is chosen if, in each of the languages that the model and the help have in common,

- it is translated, in half to twice the usual length, and no other chosen paragraph is the same;
- it is not a line of the training text, and less than half of its runs of 32 characters are in the training text (runs
  of 12 in Chinese and Japanese, of 16 in Korean);

if, in English, it has at least 40 characters, mostly letters, no brackets of markup, and less than half of its runs are
in paragraphs that were chosen before it; and if it is translated into every other language that lacks less than 4 % of
the paragraphs.

A document is a page's chosen paragraphs, with those of the next pages of the same module (Writer, Calc, …) until it has
200 characters of English. Documents are split by a hash, so that the calibration documents have 60 % of the English
text.
"""

import argparse
import hashlib
import lzma
import tempfile
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from help_pages import ENGLISH, PACKAGES, Paragraphs, read_help, translated

TARGET = Path(__file__).with_name("help_documents.txt")
HELD_OUT = (
    *("deu_Latn", "eng_Latn", "fin_Latn", "fra_Latn", "ind_Latn", "jpn_Jpan", "kor_Hang", "rus_Cyrl", "spa_Latn"),
    *("tur_Latn", "vie_Latn", "zho_Hans"),
)
"""The languages of the help that the embedded model knows."""
RUN = {"jpn_Jpan": 12, "zho_Hans": 12, "kor_Hang": 16}
MOST_SEEN = 0.5
MOST_MISSING = 0.04
SHORTEST = 40
LEAST_LETTERS = 0.7
DOCUMENT = 200
CALIBRATION_SHARE = 0.6
FACTOR = np.uint64(1_000_003)

Hashes = NDArray[np.uint64]


def main() -> None:
    """Chooses and writes the documents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="the training text of the embedded model")
    parser.add_argument("--cache", type=Path, help="where the fetched packages are kept")
    args = parser.parse_args()
    cache = args.cache or Path(tempfile.mkdtemp())
    english = read_help(ENGLISH, cache)
    chosen = [number for number, text in english.items() if _is_prose(text)]
    for code in HELD_OUT:
        texts = english if code == ENGLISH else read_help(code, cache)
        path = args.corpus / "train" / f"{code[:3]}.txt.xz"
        if not path.is_file():
            raise SystemExit(f"{path} is not there; CORPUS must be the training text of the embedded model")
        translations = translated(chosen, texts, english, code=code, ratio=2)
        chosen = list(_held_out(translations, texts, code, path))
        print(f"{code}: {len(translations):,} translated, {len(chosen):,} of them held out")
    chosen = list(_not_nearly_repeated(chosen, english))
    for code in sorted(set(PACKAGES) - set(HELD_OUT)):
        texts = read_help(code, cache, {number.partition("#")[0] for number in chosen})
        translations = translated(chosen, texts, english, code=code, ratio=2)
        print(f"{code}: {len(translations):,} of {len(chosen):,} translated")
        if len(translations) > (1 - MOST_MISSING) * len(chosen):
            chosen = translations
    documents = list(_documents(chosen, english))
    lines = sorted(f"{split} {' '.join(numbers)}\n" for split, numbers in _split(documents, english))
    TARGET.write_text("".join(lines), encoding="utf-8")
    print(f"{len(chosen)} paragraphs in {len(documents)} documents")


def _is_prose(text: str) -> bool:
    letters = sum(map(str.isalpha, text))
    return (
        len(text) >= SHORTEST and letters >= LEAST_LETTERS * len(text.replace(" ", "")) and not set("<>{}") & set(text)
    )


def _held_out(numbers: Iterable[str], texts: Paragraphs, code: str, path: Path) -> Iterator[str]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        training = file.read()
    lines = set(map(_fold, training.splitlines()))
    run = RUN.get(code, 32)
    seen = np.unique(_run_hashes(_fold(training), run))
    for number in numbers:
        text = _fold(texts[number])
        if text not in lines and _share_among(_run_hashes(text, run), seen) < MOST_SEEN:
            yield number


def _not_nearly_repeated(numbers: Iterable[str], texts: Paragraphs) -> Iterator[str]:
    seen = np.zeros(0, np.uint64)
    for number in numbers:
        runs = _run_hashes(_fold(texts[number]), 32)
        if _share_among(runs, seen) < MOST_SEEN:
            yield number
            seen = np.union1d(seen, runs)


def _documents(numbers: Iterable[str], english: Paragraphs) -> Iterator[list[str]]:
    for _, in_module in groupby(numbers, lambda number: number.partition("/")[0]):
        documents: list[list[str]] = []
        for _, in_page in groupby(in_module, lambda number: number.partition("#")[0]):
            if not documents or sum(len(english[number]) for number in documents[-1]) >= DOCUMENT:
                documents.append([])
            documents[-1] += in_page
        *whole, last = documents
        if sum(len(english[number]) for number in last) >= DOCUMENT:
            whole.append(last)
        elif whole:
            whole[-1] += last
        yield from whole


def _split(documents: list[list[str]], english: Paragraphs) -> Iterator[tuple[str, list[str]]]:
    """Yields each document and its split; which documents come first is decided by a hash."""
    sizes = [sum(len(english[number]) for number in document) for document in documents]
    before = 0
    for size, document in sorted(
        zip(sizes, documents, strict=True), key=lambda pair: hashlib.sha256(pair[1][0].encode()).digest()
    ):
        yield ("calibration" if before < CALIBRATION_SHARE * sum(sizes) else "evaluation"), document
        before += size


def _fold(text: str) -> str:
    return " ".join(text.casefold().split())


def _run_hashes(text: str, length: int) -> Hashes:
    """Returns a hash of every run of this many characters."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32).astype(np.uint64)
    hashes = np.zeros(max(0, len(points) - length + 1), np.uint64)
    for start in range(length):
        hashes = hashes * FACTOR + points[start : start + len(hashes)]
    return hashes


def _share_among(hashes: Hashes, seen: Hashes) -> float:
    """Returns the share of the hashes that are among the sorted ones; 0 of none."""
    if not len(hashes) or not len(seen):
        return 0.0
    places = np.searchsorted(seen, hashes).clip(max=len(seen) - 1)
    return float((seen[places] == hashes).mean())


if __name__ == "__main__":
    main()
