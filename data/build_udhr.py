"""Writes src/fairbits/assets/udhr.zip: the declaration in every language of the catalog that has a sound one.

python data/build_udhr.py [--cache FOLDER]     (after build_languages.py)

One member per language, `heb_Hebr.txt`: the preamble and the 30 articles, a blank line between two sections. A
preamble that does not exist is empty. The same packages give the same bytes.
"""

import argparse
import json
import tempfile
import zipfile
from pathlib import Path

from build_languages import TARGET as LANGUAGES
from declarations import chosen_declarations

TARGET = LANGUAGES.with_name("udhr.zip")
EPOCH = (1980, 1, 1, 0, 0, 0)  # so that the file does not depend on when it was written


def main() -> None:
    """Builds the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, help="where the fetched packages are kept")
    chosen, reasons = chosen_declarations(parser.parse_args().cache or Path(tempfile.mkdtemp()))
    catalog = {row[0] for row in json.loads(LANGUAGES.read_text(encoding="utf-8"))["languages"]}
    with zipfile.ZipFile(TARGET, "w") as archive:
        for code in sorted(catalog & set(chosen)):
            member = zipfile.ZipInfo(f"{code}.txt", EPOCH)
            member.external_attr = 0o644 << 16
            archive.writestr(member, "\n\n".join(chosen[code].sections), compress_type=zipfile.ZIP_LZMA)
    for file, reason in sorted(reasons.items()):
        print(f"left out {file}: {reason}")
    for code in sorted(set(chosen) - catalog):
        print(f"left out {chosen[code].file}: no sure facts about {code}")
    whole = sum(bool(chosen[code].sections[0]) for code in catalog & set(chosen))
    print(f"{len(catalog & set(chosen))} languages, {whole} with all 31 sections, {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
