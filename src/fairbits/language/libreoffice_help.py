"""Paragraphs of the help of LibreOffice in 30 languages, aligned by document; MPL-2.0, see `assets/help`.

`assets/help/help.zip` is written by `data/build_help_text.py`. A document is made of paragraphs of one help page, or of
neighbouring pages of one module. Calibration and evaluation documents come from different pages.
"""

from collections.abc import Iterable
from functools import cache

from fairbits.errors import InputError
from fairbits.language.catalog import Language
from fairbits.language.corpus import SPLITS, Corpus
from fairbits.language.documents import Documents
from fairbits.language.embedded_text import documents_in, keep_complete, languages_in
from fairbits.language.lookup import find_languages

ASSET = "help/help.zip"
SOURCE = (
    "LibreOffice 7.4 help, from the Debian packages libreoffice-help 4:7.4.7-1+deb12u14 (MPL-2.0); held out from the "
    "training of embedded:tiny, but other models may have seen it"
)


def help_text(languages: Iterable[str] | None = None) -> Corpus:
    """Returns the help in these languages, or in every language that has all documents.

    Four languages lack some documents: if one of them is chosen, these are left out in all languages, and a note says
    so.

    >>> corpus = help_text(["deu", "fin"])
    >>> len(corpus.calibration["fin_Latn"]), len(corpus.evaluation["fin_Latn"])
    (92, 64)
    """
    chosen = _complete() if languages is None else find_languages(languages)
    missing = [language for language in chosen if language not in help_languages()]
    if missing:
        raise InputError(
            f"the help has no text in {', '.join(map(str, missing))}; it has "
            f"{', '.join(language.code for language in help_languages())}: choose among these or give text of your own"
        )
    splits: dict[str, Documents] = {}
    notes = [SOURCE]
    for split in SPLITS:
        documents = {language.code: _documents(language.code, split) for language in chosen}
        splits[split], partial = keep_complete(documents)
        if partial:
            before, after = (len(next(iter(each.values()))) for each in (documents, splits[split]))
            notes.append(
                f"{before - after} of {before} {split} documents are left out in every language, as they are not "
                f"translated into {partial}"
            )
    return Corpus("help", splits["calibration"], splits["evaluation"], parallel=True, notes=tuple(notes))


@cache
def help_languages() -> tuple[Language, ...]:
    """Returns the languages of the help, with or without all documents."""
    return languages_in(ASSET, "evaluation/")


def _complete() -> tuple[Language, ...]:
    return tuple(each for each in help_languages() if all(all(_documents(each.code, split)) for split in SPLITS))


@cache
def _documents(code: str, split: str) -> tuple[str, ...]:
    return documents_in(ASSET, f"{split}/{code}")
