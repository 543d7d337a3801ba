"""Accuracy of language detection on held-out sentences of the declaration.

python benchmarks/detection.py            prints the tables
python benchmarks/detection.py --write    puts them, and the list of languages, into docs/languages.md

Evaluation sections only. A sentence ends at its punctuation or at a line; short texts are the first 10, 3 or 1 words
of the sentences that have more. Where words are not parted by spaces, two Han or kana characters, four letters of
Thai, Lao, Khmer or Burmese, or two Tibetan syllables count as one word. An adaptive model acts on a language that is
at least as likely as CONFIDENCE and else has its base: the last two tables say what it would do, with text of the
languages it serves and of others.
"""

import argparse
import re
import statistics
from collections.abc import Iterable
from pathlib import Path

from fairbits.serve.overlays.adaptive_model import CONFIDENCE
from fairbits.text.catalog import Language, catalog
from fairbits.text.detect import Detector, detectable_languages
from fairbits.text.included_texts import CALIBRATION, EVALUATION, udhr, udhr_languages, udhr_sections
from fairbits.text.language_codes import find_languages

EMBEDDED = [
    "amh", "ara", "ben", "deu", "eng", "fin", "fra", "heb", "hin", "ind",
    "jpn", "kor", "rus", "spa", "swa", "tha", "tur", "vie", "yor", "zho",
]  # fmt: skip
LENGTHS = (None, 10, 3, 1)
SHORT = (1, 3, 10)
SENTENCE = re.compile(r"(?<=[.!?;:。！？；।॥።؟։။།༎])\s*|\n")
UNSPACED = {"Hans": 2, "Hant": 2, "Jpan": 2, "Thai": 4, "Laoo": 4, "Khmr": 4, "Mymr": 4}
LEAST = 2  # words in a sentence
DOCS = Path(__file__).parents[1] / "docs/languages.md"

Told = dict[int | None, dict[str, list[tuple[bool, float]]]]
"""By length in words and by language, of every text: whether its language was told right, and how confidently."""


def sentences(language: Language, documents: tuple[str, ...]) -> list[list[str]]:
    """Returns the sentences of some documents, each as its words."""
    word_lists = (words(language, part) for document in documents for part in SENTENCE.split(document) if part)
    return [sentence for sentence in word_lists if len(sentence) >= LEAST]


def words(language: Language, sentence: str) -> list[str]:
    """Returns the pieces of a sentence that count as words; joined they are the sentence again."""
    if language.script == "Tibt":
        return re.findall(r"(?:[^་]+་?){1,2}", sentence)
    if size := UNSPACED.get(language.script):
        return [sentence[i : i + size] for i in range(0, len(sentence), size)]
    return re.findall(r"[^\s፡]+[\s፡]*", sentence)


def told(texts_of: Iterable[str], among: Iterable[str]) -> Told:
    """Returns what a detector that knows the languages of `among` makes of texts in others or in the same."""
    corpus, detector = udhr(texts_of), Detector(among)
    result: Told = {}
    for length in LENGTHS:
        result[length] = {}
        for language in corpus.languages:
            texts = sentences(language, corpus.evaluation[language.code])
            cut = ["".join(s[:length]).strip() for s in texts if length is None or len(s) >= length]
            guesses = [detector.detect(text) for text in cut if any(map(str.isalpha, text))]
            result[length][language.code] = [(guess.language == language, guess.confidence) for guess in guesses]
    return result


def table(result: Told) -> str:
    """Returns a Markdown table: accuracy over all texts, mean over languages, and the worst languages."""
    lines = ["| text | n | accuracy | mean of languages | lowest languages |", "|---|---|---|---|---|"]
    for length, by_language in result.items():
        shares = {code: accuracy(texts) for code, texts in by_language.items()}
        every = [text for texts in by_language.values() for text in texts]
        lowest = ", ".join(
            f"{code} {share:.2f}" for code, share in sorted(shares.items(), key=lambda item: item[1])[:4]
        )
        mean = statistics.mean(shares.values())
        lines.append(f"| {label(length)} | {len(every):,} | {accuracy(every):.3f} | {mean:.3f} | {lowest} |")
    return "\n".join(lines)


def table_of_languages(result: Told) -> str:
    """Returns a Markdown table: for every language and short length accuracy, and what is acted on."""
    heads = [f"{label(length)}: accuracy (n) | right / base / wrong" for length in SHORT]
    lines = [f"| language | {' | '.join(heads)} |", f"|---|{'---|---|' * len(SHORT)}"]
    rows = {code: [result[length][code] for length in SHORT] for code in result[SHORT[0]]}
    rows["all"] = [[text for texts in result[length].values() for text in texts] for length in SHORT]
    for code, cells in rows.items():
        shown = (f"{accuracy(texts):.2f} ({len(texts):,}) | {acted(texts)}" for texts in cells)
        lines.append(f"| {code} | {' | '.join(shown)} |")
    return "\n".join(lines)


def table_of_others(result: Told) -> str:
    """Returns a Markdown table: how often text of languages that are not served is taken for one that is."""
    lines = ["| text | n | acted on | confidence, median |", "|---|---|---|---|"]
    for length, by_language in result.items():
        sure = [confidence for texts in by_language.values() for _, confidence in texts]
        share = statistics.mean(confidence >= CONFIDENCE for confidence in sure)
        lines.append(f"| {label(length)} | {len(sure):,} | {share:.3f} | {statistics.median(sure):.3f} |")
    return "\n".join(lines)


def accuracy(texts: list[tuple[bool, float]]) -> float:
    """Returns the share of texts whose language was told right."""
    return statistics.mean(right for right, _ in texts)


def acted(texts: list[tuple[bool, float]]) -> str:
    """Returns the shares that are served as their own language, by the base, and as another language."""
    sure = [right for right, confidence in texts if confidence >= CONFIDENCE]
    right, wrong = sure.count(True) / len(texts), sure.count(False) / len(texts)
    return f"{right:.2f} / {1 - len(sure) / len(texts):.2f} / {wrong:.2f}"


def label(length: int | None) -> str:
    """Returns how long a text is."""
    return "sentence" if length is None else f"{length} word{'s' if length > 1 else ''}"


def both() -> list[str]:
    """Returns the languages with a declaration that py3langid knows, one for each of its labels."""
    detectable = set(detectable_languages()) & set(udhr_languages())
    doubles = {"zho_Hant", "srp_Latn", "uzn_Cyrl"}
    return [language.code for language in catalog() if language in detectable and language.code not in doubles]


def others() -> list[str]:
    """Returns those of them that are none of the embedded model's."""
    embedded = {language.code for language in find_languages(EMBEDDED)}
    return [code for code in both() if code not in embedded]


TEXT = """# Languages

Written by `python benchmarks/detection.py --write`; catalog and texts come from the scripts in `data/`.

fairbits knows {known} languages (a language in two scripts counts twice): the 204 of FLORES-200, and every other one
whose declaration is embedded. {declared} have the Universal Declaration of Human Rights, {whole} of them with all 31
sections; {detectable} can be detected. Any other language can be named too, by its tag or a name of your own, where you
have text in it ([rules](guides/text.md#names-of-languages)). A code, an English name or an autonym names a language:

    >>> from fairbits.text.language_codes import resolve_language
    >>> resolve_language("ara")
    Resolution(name='ara', language=Language(code='arb_Arab', …), because='macrolanguage Arabic: its standard form')

Families are the top-level ones of Glottolog. Creoles go with the language most of their words come from; a language
without relatives is its own family.

## Embedded text

`fairbits.text.included_texts.udhr(["en", "he"])` gives the declaration as a parallel corpus; a document is one section.
A few translations ({partial}) have no preamble: if one of them is chosen, the preamble is left out in every language,
and a note of the corpus says so. The Amharic text separates words by ፡, as older print does.

| split | sections |
|---|---|
| calibration | preamble, articles {calibration}: half of the bytes (median of all languages {share:.3f}) |
| evaluation | articles {evaluation} |

No sentence is in both, in any language.

The declaration is in the training data of most models: it is here to calibrate and to try things out, not for claims
about quality. A second text, the help of LibreOffice in 30 languages:
[Text and languages](guides/text.md#texts-that-come-with-fairbits).

## Detection

`Detector(languages)` is py3langid restricted to these languages. The tables give the share of held-out sentences of
the declaration (evaluation articles) whose language is detected correctly. Short texts are the first words of the same
sentences; where spaces do not separate words, two Han or kana characters, four Thai, Lao, Khmer or Burmese letters, or
two Tibetan syllables count as one word.

The {n_embedded} languages of the embedded model:

{embedded}

All {n_both} languages that have a declaration and are known to py3langid, one script of each:

{both}

Short texts in each of the {n_embedded} languages. An [adaptive model](guides/overlays.md) acts on a language that is
at least {confidence:g} likely, and else has its base: "right" is the share of texts served as what they are, "base"
of those
too doubtful to act on, "wrong" of those served as another language.

{each}

Text in the {n_others} other languages above, given to a detector of the {n_embedded}: the share that it assigns to one
of these with a confidence of at least {confidence:g}. Confidence is relative to the languages of the
detector; it does not show that a text is in none of them.

{others}

Chinese, Serbian and Uzbek are one label in both of their scripts: a detector takes one of the two. Bosnian is mostly
taken for Croatian, Indonesian for Malay, Nynorsk for Bokmål.

## Catalog

{catalog}
"""


def page(tables: dict[str, str]) -> str:
    """Returns docs/languages.md."""
    declared, detectable = udhr_languages(), set(detectable_languages())
    whole = [language for language in declared if udhr_sections(language.code)[0]]
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
        n_both=len(both()),
        n_others=len(others()),
        confidence=CONFIDENCE,
        **tables,
        catalog="\n".join(rows),
    )


def main() -> None:
    """Prints the tables, or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/languages.md")
    write = parser.parse_args().write
    embedded = told(EMBEDDED, EMBEDDED)
    tables = {
        "embedded": table(embedded),
        "both": table(told(both(), both())),
        "each": table_of_languages(embedded),
        "others": table_of_others(told(others(), EMBEDDED)),
    }
    print(f"{len(EMBEDDED)} languages\n\n{tables['embedded']}\n\n{len(both())} languages\n\n{tables['both']}")
    print(f"\neach of {len(EMBEDDED)}\n\n{tables['each']}\n\n{len(others())} others\n\n{tables['others']}")
    if write:
        DOCS.write_text(page(tables), encoding="utf-8")


if __name__ == "__main__":
    main()
