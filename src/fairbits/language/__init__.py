"""Languages: the catalog, text that comes with fairbits and text of the user, calibration mixes, detection."""

from fairbits.language.catalog import Language, catalog
from fairbits.language.corpus import Corpus
from fairbits.language.declaration import udhr, udhr_languages
from fairbits.language.detect import Detection, Detector, detectable_languages
from fairbits.language.libreoffice_help import help_languages, help_text
from fairbits.language.lookup import Resolution, find_language, find_languages, resolve
from fairbits.language.mix import build_mix
from fairbits.language.reading import read_corpus

__all__ = [
    "Corpus",
    "Detection",
    "Detector",
    "Language",
    "Resolution",
    "build_mix",
    "catalog",
    "detectable_languages",
    "find_language",
    "find_languages",
    "help_languages",
    "help_text",
    "read_corpus",
    "resolve",
    "udhr",
    "udhr_languages",
]
