"""Accuracy of language detection on held-out sentences of the declaration.

python benchmarks/detection.py            prints the tables
python benchmarks/detection.py --write    puts them, and the list of languages, into docs/languages.md

Evaluation sections only. A sentence ends at its punctuation or at a line; short texts are the first 10, 3 or 1 words
of the sentences that have more. Where words are not parted by spaces, two Han or kana characters, four letters of
Thai, Lao, Khmer or Burmese, or two Tibetan syllables count as one word.
"""

import argparse
import re
import statistics
from pathlib import Path

from fairbits.language import Detector, Language, catalog, detectable_languages, udhr, udhr_languages
from fairbits.language.declaration import CALIBRATION, EVALUATION, declaration

EMBEDDED = [
    "amh", "ara", "ben", "deu", "eng", "fin", "fra", "heb", "hin", "ind",
    "jpn", "kor", "rus", "spa", "swa", "tha", "tur", "vie", "yor", "zho",
]  # fmt: skip
LENGTHS = (None, 10, 3, 1)
SENTENCE = re.compile(r"(?<=[.!?;:。！？；।॥።؟։။།༎])\s*|\n")
UNSPACED = {"Hans": 2, "Hant": 2, "Jpan": 2, "Thai": 4, "Laoo": 4, "Khmr": 4, "Mymr": 4}
LEAST = 2  # words in a sentence
DOCS = Path(__file__).parents[1] / "docs/languages.md"


def sentences(language: Language, documents: tuple[str, ...]) -> list[list[str]]:
    """Returns the sentences of some documents, each as its words."""
    found = (words(language, part) for document in documents for part in SENTENCE.split(document) if part)
    return [sentence for sentence in found if len(sentence) >= LEAST]


def words(language: Language, sentence: str) -> list[str]:
    """Returns the pieces of a sentence that count as words; joined they are the sentence again."""
    if language.script == "Tibt":
        return re.findall(r"(?:[^་]+་?){1,2}", sentence)
    if size := UNSPACED.get(language.script):
        return [sentence[i : i + size] for i in range(0, len(sentence), size)]
    return re.findall(r"[^\s፡]+[\s፡]*", sentence)


def accuracy(names: list[str]) -> dict[int | None, dict[str, tuple[int, int]]]:
    """Returns, by length in words and by language, how many texts were told right, and of how many."""
    corpus, detector = udhr(names), Detector(names)
    result: dict[int | None, dict[str, tuple[int, int]]] = {}
    for length in LENGTHS:
        result[length] = {}
        for language in corpus.languages:
            texts = sentences(language, corpus.evaluation[language.code])
            cut = ["".join(s[:length]).strip() for s in texts if length is None or len(s) >= length]
            cut = [text for text in cut if any(map(str.isalpha, text))]
            right = sum(detector.detect(text).language == language for text in cut)
            result[length][language.code] = right, len(cut)
    return result


def table(result: dict[int | None, dict[str, tuple[int, int]]]) -> str:
    """Returns a Markdown table: accuracy over all texts, mean over languages, and the worst languages."""
    lines = ["| text | n | accuracy | mean of languages | lowest languages |", "|---|---|---|---|---|"]
    for length, by_language in result.items():
        right, n = (sum(counts) for counts in zip(*by_language.values(), strict=True))
        shares = {code: r / n for code, (r, n) in by_language.items()}
        lowest = ", ".join(
            f"{code} {share:.2f}" for code, share in sorted(shares.items(), key=lambda item: item[1])[:4]
        )
        label = "sentence" if length is None else f"{length} word{'s' if length > 1 else ''}"
        lines.append(f"| {label} | {n:,} | {right / n:.3f} | {sum(shares.values()) / len(shares):.3f} | {lowest} |")
    return "\n".join(lines)


def both() -> list[str]:
    """Returns the languages with a declaration that py3langid knows, one for each of its labels."""
    known = set(detectable_languages()) & set(udhr_languages())
    doubles = {"zho_Hant", "srp_Latn", "uzn_Cyrl"}
    return [language.code for language in catalog() if language in known and language.code not in doubles]


TEXT = """# Languages

Written by `python benchmarks/detection.py --write`; catalog and texts come from the scripts in `data/`.

fairbits knows {known} languages (a language in two scripts counts twice): the 204 of FLORES-200, and every other one
whose declaration is embedded. {declared} have the Universal Declaration of Human Rights, {whole} of them with all 31
sections; {detectable} can be detected. A code, an English name or an autonym names a language:

    >>> from fairbits.language import resolve
    >>> resolve("ara")
    Resolution(given='ara', language=Language(code='arb_Arab', …), because='macrolanguage Arabic: its standard form')

Families are the top-level ones of Glottolog. Creoles go with the language most of their words come from; a language
without relatives is its own family.

## Embedded text

`fairbits.language.udhr(["en", "he"])` gives the declaration as a parallel corpus; a document is one section.
A few translations ({partial}) have no preamble: together with one of them the preamble is left out of every language,
and a note of the corpus says so. The Amharic text parts words by ፡, as older print does.

| split | sections |
|---|---|
| calibration | preamble, articles {calibration}: half of the bytes (median of all languages {share:.3f}) |
| evaluation | articles {evaluation} |

No sentence is in both, in any language.

The declaration is in the training data of most models: it is here to calibrate and to try things out, not for claims
about quality.

## Detection

`Detector(languages)` is py3langid restricted to the languages at hand. Share of held-out sentences of the declaration
(evaluation articles) whose language is told right; short texts are the first words of the same sentences, and where
no spaces part words, two Han or kana characters, four Thai, Lao, Khmer or Burmese letters, or two Tibetan syllables
count as one.

The {n_embedded} languages of the embedded model:

{embedded}

All {n_both} languages that have a declaration and are known to py3langid, one script of each:

{both}

Chinese, Serbian and Uzbek are one label in both of their scripts: a detector takes one of the two. Bosnian is mostly
taken for Croatian, Indonesian for Malay, Nynorsk for Bokmål.

## Catalog

{catalog}
"""


def page(embedded: str, every: str) -> str:
    """Returns docs/languages.md."""
    declared, detectable = udhr_languages(), set(detectable_languages())
    whole = [language for language in declared if declaration(language.code)[0]]
    corpus = udhr()
    sizes = [[corpus.size(language.code, split) for split in ("calibration", "evaluation")] for language in whole]
    rows = ["| code | BCP-47 | name | autonym | family | declaration | detected |", "|---|---|---|---|---|---|---|"]
    for language in catalog():
        sections = "" if language not in declared else "31" if language in whole else "30"
        facts = (language.code, language.bcp47, language.name, language.autonym, language.family, sections)
        rows.append(f"| {' | '.join(facts)} | {'yes' if language in detectable else ''} |")
    return TEXT.format(
        known=len(catalog()),
        declared=len(declared),
        whole=len(whole),
        detectable=len(detectable),
        calibration=", ".join(map(str, CALIBRATION[1:])),
        evaluation=", ".join(map(str, EVALUATION)),
        share=statistics.median(a / (a + b) for a, b in sizes),
        partial=", ".join(language.name for language in declared if language not in whole),
        n_embedded=len(EMBEDDED),
        embedded=embedded,
        n_both=len(both()),
        both=every,
        catalog="\n".join(rows),
    )


def main() -> None:
    """Prints the tables, or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/languages.md")
    write = parser.parse_args().write
    embedded, every = table(accuracy(EMBEDDED)), table(accuracy(both()))
    print(f"{len(EMBEDDED)} languages\n\n{embedded}\n\n{len(both())} languages\n\n{every}")
    if write:
        DOCS.write_text(page(embedded, every), encoding="utf-8")


if __name__ == "__main__":
    main()
