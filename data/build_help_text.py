"""Writes src/fairbits/assets/help/help.zip: paragraphs of LibreOffice's help in 30 languages, as parallel documents.

python data/build_help_text.py [--cache FOLDER]

`help_documents.txt` lists the documents: their split, and their paragraphs by page and number. The archive has two
members per language, `calibration/deu_Latn.txt` and `evaluation/deu_Latn.txt`: a line per paragraph, a blank line
between two documents. A document is empty in a language that lacks a paragraph of it. The same packages give the same
bytes.
"""

import argparse
import tempfile
import zipfile
from pathlib import Path

from build_languages import TARGET as LANGUAGES
from build_udhr import EPOCH
from help_pages import ENGLISH, PACKAGES, Paragraphs, read_help, translated

DOCUMENTS = Path(__file__).with_name("help_documents.txt")
TARGET = LANGUAGES.with_name("help") / "help.zip"
SPLITS = ("calibration", "evaluation")


def main() -> None:
    """Builds the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, help="where the fetched packages are kept")
    cache = parser.parse_args().cache or Path(tempfile.mkdtemp())
    rows = [line.split() for line in DOCUMENTS.read_text(encoding="utf-8").splitlines()]
    chosen = [number for _, *numbers in rows for number in numbers]
    pages = {number.partition("#")[0] for number in chosen}
    english = read_help(ENGLISH, cache, pages)
    absent = [number for number in chosen if number not in english]
    if absent:
        raise SystemExit(f"the English help has no {', '.join(absent)}; run choose_help_text.py for these packages")
    with zipfile.ZipFile(TARGET, "w") as archive:
        for code in sorted(PACKAGES):
            texts = read_help(code, cache, pages)
            # a wider ratio than the choice was made with: the usual length depends on the paragraphs that are compared
            kept = translated(chosen, texts, english, code=code, ratio=2.5)
            usable = {number: texts[number] for number in kept}
            documents = [(split, _document(usable, numbers)) for split, *numbers in rows]
            for split in SPLITS:
                member = zipfile.ZipInfo(f"{split}/{code}.txt", EPOCH)
                member.external_attr = 0o644 << 16
                text = "\n\n".join(document for document_split, document in documents if document_split == split)
                archive.writestr(member, text, compress_type=zipfile.ZIP_LZMA)
            missing = sum(not document for _, document in documents)
            print(f"{code}: {len(documents) - missing} documents" + (f", {missing} are not translated" * bool(missing)))
    print(f"{TARGET.stat().st_size:,} bytes")


def _document(usable: Paragraphs, numbers: list[str]) -> str:
    return "\n".join(usable[number] for number in numbers) if all(number in usable for number in numbers) else ""


if __name__ == "__main__":
    main()
