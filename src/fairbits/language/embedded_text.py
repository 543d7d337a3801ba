"""Parallel texts that come with fairbits: archives with one member per language, a blank line between documents."""

import io
import zipfile
from functools import cache
from importlib.resources import files

from fairbits.language.catalog import Language, by_code, catalog
from fairbits.language.documents import Documents


def languages_in(asset: str, folder: str = "") -> tuple[Language, ...]:
    """Returns the languages that an archive has a member for, in the order of the catalog."""
    names = set(_archive(asset).namelist())
    return tuple(language for language in catalog() if f"{folder}{language.code}.txt" in names)


def documents_in(asset: str, member: str) -> tuple[str, ...]:
    """Returns the documents of one member; a document that the language lacks is empty."""
    return tuple(_archive(asset).read(f"{member}.txt").decode().split("\n\n"))


def keep_complete(documents: Documents) -> tuple[Documents, str]:
    """Returns the documents that every language has, and the names of the languages that lack others.

    >>> keep_complete({"eng_Latn": ("One.", "Two."), "amh_Ethi": ("", "ሁለት።")})
    ({'eng_Latn': ('Two.',), 'amh_Ethi': ('ሁለት።',)}, 'Amharic (amh_Ethi)')
    """
    complete = [all(texts) for texts in zip(*documents.values(), strict=True)]
    kept = {
        code: tuple(text for text, whole in zip(texts, complete, strict=True) if whole)
        for code, texts in documents.items()
    }
    return kept, ", ".join(str(by_code()[code]) for code, texts in documents.items() if not all(texts))


@cache
def _archive(asset: str) -> zipfile.ZipFile:
    # in memory (1.3 MB at most): no file stays open, and each language is unpacked on its own
    return zipfile.ZipFile(io.BytesIO(files("fairbits").joinpath("assets", asset).read_bytes()))
