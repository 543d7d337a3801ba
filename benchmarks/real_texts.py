"""Texts of `real.py`: one to calibrate on, and several to evaluate on."""

import argparse
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fairbits.text.corpus import Corpus
from fairbits.text.included_texts import udhr, udhr_languages
from fairbits.text.language_codes import resolve_language
from fairbits.text.reading import open_corpus

DECLARATION = "declaration"
CALIBRATED = (
    *("deu_Latn", "eng_Latn", "fin_Latn", "fra_Latn", "ind_Latn", "jpn_Jpan", "kor_Hang", "rus_Cyrl", "spa_Latn"),
    *("tur_Latn", "vie_Latn", "zho_Hans"),
)
"""The languages of calibration."""
LANGUAGES = (
    *CALIBRATED,
    *("amh_Ethi", "arb_Arab", "ben_Beng", "ell_Grek", "heb_Hebr", "hin_Deva", "ita_Latn", "nld_Latn", "por_Latn"),
    *("swh_Latn", "tha_Thai", "yor_Latn"),
)
"""The languages of evaluation, as far as a text has them."""


@dataclass(frozen=True)
class Texts:
    """The text to calibrate on, and the texts to evaluate on by name."""

    calibration: Corpus
    evaluation: Mapping[str, Corpus]

    @classmethod
    def of(cls, options: argparse.Namespace) -> "Texts":
        """Returns the texts that were requested."""
        calibration_corpus = open_text(options.text, [*options.languages, *options.evaluation_languages])
        return cls(
            calibration_corpus.restrict(options.languages),
            {Path(name).name: evaluation_text(name, calibration_corpus, options) for name in options.evaluation},
        )


def open_text(name: str, languages: Iterable[str]) -> Corpus:
    """Returns a text by its name or path, in those of the languages that it has."""
    wanted = dict.fromkeys(resolve_language(language).language.code for language in languages)
    corpus = None if name == DECLARATION else open_corpus(name, None)
    available = {language.code for language in (udhr_languages() if corpus is None else corpus.languages)}
    codes = [code for code in wanted if code in available]
    return udhr(codes) if corpus is None else corpus.restrict(codes)


def evaluation_text(name: str, calibration_corpus: Corpus, options: argparse.Namespace) -> Corpus:
    """Returns the evaluation split of the text that is calibrated on, or all of another text."""
    wanted = [resolve_language(language).language.code for language in options.evaluation_languages]
    if name == options.text:
        return calibration_corpus.restrict([code for code in wanted if code in calibration_corpus.evaluation])
    corpus = open_text(name, wanted)
    together = {code: (*texts, *corpus.evaluation[code]) for code, texts in corpus.calibration.items()}
    return replace(corpus, calibration={}, evaluation=together)


def digest(hashes: Mapping[str, str]) -> str:
    """Returns one hash for the hashes of all languages."""
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()[:16]
