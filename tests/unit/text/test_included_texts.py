import hashlib
import re
import subprocess
import sys
import unicodedata
import zipfile
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.embedded import LANGUAGES
from fairbits.text.catalog import Language
from fairbits.text.corpus import SPLITS, Corpus
from fairbits.text.documents import fold_text
from fairbits.text.included_texts import (
    CALIBRATION,
    EVALUATION,
    SECTIONS,
    help_languages,
    help_text,
    keep_complete,
    udhr,
    udhr_languages,
    udhr_sections,
)
from fairbits.text.language_codes import find_languages

SENTENCE_END = re.compile(r"(?<=[.!?;。！？；।॥።؟։။།])\s*|\n")

# ISO 15924 -> how the Unicode names of its letters begin
SCRIPTS = {
    "Adlm": "ADLAM", "Arab": "ARABIC", "Armn": "ARMENIAN", "Beng": "BENGALI", "Cakm": "CHAKMA", "Cher": "CHEROKEE",
    "Cyrl": "CYRILLIC", "Deva": "DEVANAGARI", "Ethi": "ETHIOPIC", "Geor": "GEORGIAN", "Grek": "GREEK",
    "Gujr": "GUJARATI", "Guru": "GURMUKHI", "Hang": "HANGUL", "Hans": "CJK", "Hant": "CJK", "Hebr": "HEBREW",
    "Java": "JAVANESE", "Jpan": ("CJK", "HIRAGANA", "KATAKANA"), "Khmr": "KHMER", "Knda": "KANNADA", "Lana": "TAI THAM",
    "Laoo": "LAO", "Latn": "LATIN", "Mlym": "MALAYALAM", "Mymr": "MYANMAR", "Orya": "ORIYA", "Sinh": "SINHALA",
    "Syrc": "SYRIAC", "Taml": "TAMIL", "Tavt": "TAI VIET", "Telu": "TELUGU", "Tfng": "TIFINAGH", "Thaa": "THAANA",
    "Thai": "THAI", "Tibt": "TIBETAN", "Vaii": "VAI", "Yiii": "YI SYLLABLE",
}  # fmt: skip


def test_there_are_many_languages_in_little_space() -> None:
    assert len(udhr().languages) == 335
    assert len(udhr_languages()) == 339
    assert len(files("fairbits").joinpath("assets/udhr.zip").read_bytes()) <= 4_000_000


@pytest.mark.parametrize("language", udhr_languages(), ids=lambda language: language.code)
def test_each_declaration_is_whole_clean_and_in_its_script(language: Language) -> None:
    sections = udhr_sections(language.code)
    assert len(sections) == SECTIONS
    assert all(sections[1:])
    text = "\n".join(sections)
    assert unicodedata.is_normalized("NFC", text)
    assert all(line == " ".join(line.split()) for line in text.split("\n"))
    assert not set("<[{") & set(text)
    for line in filter(None, text.split("\n")):
        assert any(map(str.isalpha, line))
        assert not re.match(r"\(?\d+\s?[).-]", line)
    assert not text.isupper() or language.script == "Cher"  # whose capitals are its usual letters
    assert not [c for c in set(text) - {"\n"} if unicodedata.category(c) in ("Cc", "Cn", "Co", "Cs")]
    assert len(set(sections)) == SECTIONS
    letters = Counter(
        c for c in text if unicodedata.category(c).startswith("L") and unicodedata.name(c)[:8] != "MODIFIER"
    )
    in_script = sum(n for c, n in letters.items() if unicodedata.name(c).startswith(SCRIPTS[language.script]))
    assert in_script >= 0.9 * letters.total()


def test_only_a_few_preambles_are_missing() -> None:
    partial = [language.code for language in udhr_languages() if not udhr_sections(language.code)[0]]
    assert partial == ["amh_Ethi", "grn_Latn", "miq_Latn", "srq_Latn"]


def test_the_languages_of_the_embedded_model_are_there() -> None:
    names = "amh ara ben deu eng fin fra heb hin ind jpn kor rus spa swa tha tur vie yor zho".split()  # noqa: SIM905
    corpus = udhr(names)
    assert [len(texts) for texts in corpus.calibration.values()] == [11] * 20
    assert [len(texts) for texts in corpus.evaluation.values()] == [19] * 20
    assert "Amharic" in corpus.notes[-1]


def test_splits_are_parallel_and_cover_every_section_once() -> None:
    assert sorted(CALIBRATION + EVALUATION) == list(range(SECTIONS))
    corpus = udhr(["en", "he"])
    assert corpus.parallel
    english = udhr_sections("eng_Latn")
    assert corpus.calibration["eng_Latn"] == tuple(english[n] for n in CALIBRATION)
    assert corpus.evaluation["eng_Latn"] == tuple(english[n] for n in EVALUATION)
    assert "reason and conscience" in corpus.calibration["eng_Latn"][1]
    assert corpus.deduplicate() == corpus


def test_evaluation_text_does_not_depend_on_the_other_languages() -> None:
    assert udhr(["en", "am"]).evaluation["eng_Latn"] == udhr(["en"]).evaluation["eng_Latn"]
    assert udhr(["en", "am"]).calibration["eng_Latn"] == udhr(["en"]).calibration["eng_Latn"][1:]


@pytest.mark.parametrize("language", udhr_languages(), ids=lambda language: language.code)
def test_no_sentence_is_in_both_splits(language: Language) -> None:
    sections = udhr_sections(language.code)
    calibration, evaluation = (
        {part.casefold() for n in numbers for part in SENTENCE_END.split(sections[n]) if len(part) >= 15}
        for numbers in (CALIBRATION, EVALUATION)
    )
    assert calibration
    assert not calibration & evaluation


def test_splits_have_about_the_same_size() -> None:
    corpus = udhr()
    for language in corpus.languages:
        calibration, evaluation = (corpus.size(language.code, split) for split in ("calibration", "evaluation"))
        assert 0.4 < calibration / (calibration + evaluation) < 0.6


def test_the_declaration_never_changes() -> None:
    """Results are compared across versions: a change of the text must be meant."""
    corpus = udhr(["eng", "heb"])
    digest = hashlib.sha256("".join(corpus.evaluation["heb_Hebr"]).encode()).hexdigest()
    assert digest.startswith("7245bcd06f6a6e29")


def test_a_language_without_declaration_names_its_relatives() -> None:
    with pytest.raises(InputError, match=r"no declaration in Southern Pashto .* related: Northern Pashto \(pbu_Arab\)"):
        udhr(["pbt"])


def test_torch_is_not_loaded() -> None:
    code = "import sys; from fairbits.text.included_texts import udhr_languages, udhr; "
    code += "udhr([language.code for language in udhr_languages()]); "
    code += "print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_only_the_languages_that_are_named_are_unpacked_and_each_once(monkeypatch) -> None:
    unpacked: list[str] = []
    read = zipfile.ZipFile.read

    def spy(archive: zipfile.ZipFile, name: str) -> bytes:
        unpacked.append(name)
        return read(archive, name)

    monkeypatch.setattr(zipfile.ZipFile, "read", spy)
    codes = [language.code for language in udhr_languages()[:20]]
    udhr_sections.cache_clear()
    udhr(codes), udhr(codes)
    assert sorted(unpacked) == sorted(f"{code}.txt" for code in codes)


DOCUMENTS = Path(__file__).parents[3] / "data" / "help_documents.txt"
OWN = ("deu", "eng", "fin", "fra", "ind", "jpn", "kor", "rus", "spa", "tur", "vie", "zho")
PARTIAL = ["dzo_Tibt", "est_Latn", "gaz_Latn", "glg_Latn"]
HELP_SCRIPTS = {
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
    assert sorted({language.script for language in help_languages()}) == sorted(HELP_SCRIPTS)
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
    assert sum(name.startswith(HELP_SCRIPTS[language.script]) for name in letters) >= 0.8 * len(letters)


@pytest.mark.parametrize("language", help_languages(), ids=lambda language: language.code)
def test_no_paragraph_is_left_in_english(language: Language) -> None:
    if language.code == "eng_Latn":
        return
    corpus = help_text([language.code, "eng"])
    assert corpus.parallel
    for translated, english in zip(paragraphs(corpus, language.code), paragraphs(corpus, "eng_Latn"), strict=True):
        assert translated != english
        words = re.findall("[a-z]+", english.lower())
        runs = {" ".join(words[start : start + 8]) for start in range(len(words) - 7)}
        assert not any(run in " ".join(re.findall("[a-z]+", translated.lower())) for run in runs), translated


def test_only_a_few_languages_lack_documents() -> None:
    whole = help_text()
    assert [language.code for language in help_languages() if language not in whole.languages] == PARTIAL
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
    assert [language.code for language in find_languages(OWN)] == [
        code for code in LANGUAGES["tiny"] if code in {language.code for language in help_languages()}
    ]
    for split, least in (("calibration", 7_900), ("evaluation", 5_000)):
        for code, texts in corpus.split(split).items():
            counts = [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]
            assert sum(counts) >= least, (split, code)
            assert 40 <= min(counts) <= max(counts) <= 500, (split, code)


def test_the_help_never_changes() -> None:
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
        split: {number.partition("#")[0] for row_split, *numbers in rows for number in numbers if row_split == split}
        for split in SPLITS
    }
    assert not pages["calibration"] & pages["evaluation"]
    for split in SPLITS:
        listed = [len(numbers) for row_split, *numbers in rows if row_split == split]
        assert listed == [document.count("\n") + 1 for document in english.split(split)["eng_Latn"]]


def test_the_licence_and_the_notice_are_next_to_the_text() -> None:
    folder = files("fairbits").joinpath("assets/help")
    licence = folder.joinpath("LICENSE").read_bytes()
    assert hashlib.sha256(licence).hexdigest().startswith("fab3dd6bdab226f1")
    notice = folder.joinpath("NOTICE").read_text(encoding="utf-8")
    assert "4:7.4.7-1+deb12u14" in notice
    assert "Changed:" in notice


def test_documents_that_a_language_lacks_are_left_out_everywhere() -> None:
    kept, partial = keep_complete({"eng_Latn": ("One.", "Two."), "amh_Ethi": ("", "ሁለት።")})
    assert (kept, partial) == ({"eng_Latn": ("Two.",), "amh_Ethi": ("ሁለት።",)}, "Amharic (amh_Ethi)")
