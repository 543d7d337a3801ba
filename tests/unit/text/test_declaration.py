import hashlib
import re
import subprocess
import sys
import unicodedata
import zipfile
from collections import Counter
from importlib.resources import files

import pytest

from fairbits.core.errors import InputError
from fairbits.text.catalog import Language
from fairbits.text.included_texts import CALIBRATION, EVALUATION, SECTIONS, udhr, udhr_languages, udhr_sections

SENTENCE_END = re.compile(r"(?<=[.!?;。！？；।॥።؟։။།])\s*|\n")

# ISO 15924 -> how the Unicode names of its letters begin
PREFIX = {
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
    in_script = sum(n for c, n in letters.items() if unicodedata.name(c).startswith(PREFIX[language.script]))
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


def test_text_stays_what_it_is() -> None:
    """Results are compared across versions: a change of the text must be meant."""
    corpus = udhr(["eng", "heb"])
    digest = hashlib.sha256("".join(corpus.evaluation["heb_Hebr"]).encode()).hexdigest()
    assert digest.startswith("7245bcd06f6a6e29")


def test_a_language_without_declaration_names_its_relatives() -> None:
    with pytest.raises(InputError, match=r"no declaration in Southern Pashto .* related: Northern Pashto \(pbu_Arab\)"):
        udhr(["pbt"])


def test_torch_is_not_loaded() -> None:
    code = "import sys; from fairbits.text import udhr_languages, udhr; udhr([l.code for l in udhr_languages()]); "
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
