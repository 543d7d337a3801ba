import hashlib
import re
import unicodedata
from importlib.resources import files
from pathlib import Path

import pytest

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.embedded import LANGUAGES
from fairbits.text.catalog import Language
from fairbits.text.corpus import SPLITS, Corpus
from fairbits.text.documents import fold_text
from fairbits.text.included_texts import help_languages, help_text
from fairbits.text.language_codes import find_languages

DOCUMENTS = Path(__file__).parents[3] / "data" / "help_documents.txt"
OWN = ("deu", "eng", "fin", "fra", "ind", "jpn", "kor", "rus", "spa", "tur", "vie", "zho")
PARTIAL = ["dzo_Tibt", "est_Latn", "gaz_Latn", "glg_Latn"]
PREFIX = {
    "Cyrl": "CYRILLIC",
    "Grek": "GREEK",
    "Hang": "HANGUL",
    "Hans": "CJK",
    "Hant": "CJK",
    "Jpan": ("CJK", "HIRAGANA", "KATAKANA"),
    "Khmr": "KHMER",
    "Latn": "LATIN",
    "Tibt": "TIBETAN",
}


def paragraphs(corpus: Corpus, code: str, *splits: str) -> list[str]:
    return [line for split in splits or SPLITS for text in corpus.split(split)[code] for line in text.split("\n")]


def test_there_are_thirty_languages_in_little_space() -> None:
    assert len(help_languages()) == 30
    assert sorted({each.script for each in help_languages()}) == sorted(PREFIX)
    assert len(files("fairbits").joinpath("assets/help/help.zip").read_bytes()) <= 1_500_000


@pytest.mark.parametrize("language", help_languages(), ids=lambda language: language.code)
def test_each_text_is_clean_in_its_script_and_repeats_nothing(language: Language) -> None:
    corpus = help_text([language.code])
    lines = paragraphs(corpus, language.code)
    text = "".join(lines)
    assert unicodedata.is_normalized("NFC", text)
    assert all(line == " ".join(line.split()) for line in lines)
    assert not re.search(r"</?[a-z]|/>|&#?\w+;|[{}]", text)  # markup
    assert not [c for c in set(text) if unicodedata.category(c) in ("Cc", "Cn", "Co", "Cs")]
    assert len({fold_text(line) for line in lines}) == len(lines)
    letters = [unicodedata.name(c) for c in text if c.isalpha()]
    assert sum(name.startswith(PREFIX[language.script]) for name in letters) >= 0.8 * len(letters)


@pytest.mark.parametrize("language", help_languages(), ids=lambda language: language.code)
def test_no_paragraph_is_left_in_english(language: Language) -> None:
    if language.code == "eng_Latn":
        return
    corpus = help_text([language.code, "eng"])
    assert corpus.parallel
    for own, english in zip(paragraphs(corpus, language.code), paragraphs(corpus, "eng_Latn"), strict=True):
        assert own != english
        words = re.findall("[a-z]+", english.lower())
        runs = {" ".join(words[start : start + 8]) for start in range(len(words) - 7)}
        assert not any(run in " ".join(re.findall("[a-z]+", own.lower())) for run in runs), own


def test_only_a_few_languages_lack_documents() -> None:
    whole = help_text()
    assert [each.code for each in help_languages() if each not in whole.languages] == PARTIAL
    assert [len(texts) for texts in whole.calibration.values()] == [92] * 26
    assert [len(texts) for texts in whole.evaluation.values()] == [64] * 26
    assert len(whole.notes) == 1
    for code in PARTIAL:
        assert len(help_text([code]).evaluation[code]) >= 45


def test_documents_that_a_language_lacks_are_left_out_in_all() -> None:
    alone, both = help_text(["eng"]), help_text(["eng", "om"])
    assert len(both.evaluation["eng_Latn"]) == len(both.evaluation["gaz_Latn"]) < len(alone.evaluation["eng_Latn"])
    assert set(both.evaluation["eng_Latn"]) < set(alone.evaluation["eng_Latn"])
    assert both.notes[2] == (
        "5 of 64 evaluation documents are left out in every language, as they are not translated into Oromo (gaz_Latn)"
    )


def test_the_splits_share_no_paragraph() -> None:
    corpus = help_text()
    assert corpus.deduplicate() == corpus
    for code in corpus.calibration:
        calibration, evaluation = ({fold_text(line) for line in paragraphs(corpus, code, split)} for split in SPLITS)
        assert not calibration & evaluation


def test_there_is_enough_text_for_the_embedded_model() -> None:
    corpus = help_text(OWN)
    tokenizer = Checkpoint("embedded:tiny").tokenizer()
    assert [each.code for each in find_languages(OWN)] == [
        code for code in LANGUAGES["tiny"] if code in {each.code for each in help_languages()}
    ]
    for split, least in (("calibration", 7_900), ("evaluation", 5_000)):
        for code, texts in corpus.split(split).items():
            counts = [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]
            assert sum(counts) >= least, (split, code)
            assert 40 <= min(counts) <= max(counts) <= 500, (split, code)


def test_text_stays_what_it_is() -> None:
    """Results are compared across versions: a change of the text must be meant."""
    hashes = help_text(["eng", "fin"]).hashes
    assert hashes["calibration"]["eng_Latn"].startswith("3bcc91bd19549aba")
    assert hashes["evaluation"]["fin_Latn"].startswith("576a24e7c273e292")


def test_a_language_without_text_is_refused_with_those_that_have_text() -> None:
    with pytest.raises(InputError, match=r"the help has no text in Hindi \(hin_Deva\); it has cat_Latn, .*zho_Hant: "):
        help_text(["hin", "eng"])


def test_the_list_of_documents_is_that_of_the_text() -> None:
    rows = [line.split() for line in DOCUMENTS.read_text(encoding="utf-8").splitlines()]
    english = help_text(["eng"])
    pages = {
        split: {number.partition("#")[0] for own, *numbers in rows for number in numbers if own == split}
        for split in SPLITS
    }
    assert not pages["calibration"] & pages["evaluation"]
    for split in SPLITS:
        listed = [len(numbers) for own, *numbers in rows if own == split]
        assert listed == [document.count("\n") + 1 for document in english.split(split)["eng_Latn"]]


def test_the_licence_and_the_notice_are_next_to_the_text() -> None:
    folder = files("fairbits").joinpath("assets/help")
    licence = folder.joinpath("LICENSE").read_bytes()
    assert hashlib.sha256(licence).hexdigest().startswith("fab3dd6bdab226f1")
    notice = folder.joinpath("NOTICE").read_text(encoding="utf-8")
    assert "4:7.4.7-1+deb12u14" in notice
    assert "Changed:" in notice
