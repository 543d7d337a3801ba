import hashlib
import json
import unicodedata

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.text.corpus import Corpus, TextRequest

FRA, HEB = "fra_Latn", "heb_Hebr"


def two_languages(**changes) -> Corpus:
    arguments = {
        "calibration": {"fr": ["Le chat dort.", "Il pleut."], "he": ["החתול ישן.", "יורד גשם."]},
        "evaluation": {"fr": ["La mer."], "he": ["הים."]},
        "parallel": True,
    } | changes
    return Corpus("small", arguments.pop("calibration"), arguments.pop("evaluation"), **arguments)


def test_documents_are_nfc_and_keyed_by_code() -> None:
    corpus = Corpus("x", {"French": ["  e\u0301te\u0301\n"]}, {})
    assert corpus.calibration == {FRA: ("été",)}
    assert corpus.evaluation == {FRA: ()}
    assert [language.name for language in corpus.languages] == ["French"]


def test_a_frozen_corpus_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        two_languages().calibration[FRA] = ()


def test_hash_is_that_of_the_documents_with_their_lengths() -> None:
    corpus = Corpus("x", {"fra": ["ab", "é"]}, {"fra": ["abé"]})
    framed = (2).to_bytes(8, "big") + b"ab" + (2).to_bytes(8, "big") + "é".encode()
    assert corpus.hashes["calibration"][FRA] == hashlib.sha256(framed).hexdigest()
    assert corpus.hashes["evaluation"][FRA] != corpus.hashes["calibration"][FRA]


def test_restrict_keeps_the_order_asked_for() -> None:
    corpus = two_languages().restrict(["heb", "fra"])
    assert list(corpus.calibration) == list(corpus.evaluation) == [HEB, FRA]
    assert corpus.parallel
    with pytest.raises(InputError, match=r"no text in deu_Latn, eng_Latn; it has fra_Latn, heb_Hebr"):
        two_languages().restrict(["deu", "fra", "eng"])


def test_deduplication_folds_case_white_space_and_normal_form() -> None:
    corpus = Corpus("x", {"fra": ["L'ÉTÉ  dure", "autre"]}, {"fra": [unicodedata.normalize("NFD", "l'été\u00a0dure")]})
    clean = corpus.deduplicate()
    assert clean.calibration[FRA] == ("autre",)
    assert clean.evaluation == corpus.evaluation
    assert clean.notes == ("fra_Latn: 1 of 2 calibration documents left out, as they are evaluation documents too",)


def test_deduplication_of_a_parallel_corpus_keeps_alignment() -> None:
    corpus = two_languages(
        calibration={"fr": ["un", "deux", "trois", "quatre"], "he": ["אחת", "שתיים", "שלוש", "ארבע"]},
        evaluation={"fr": ["TROIS", "cinq"], "he": ["חמש", "אחת"]},
    ).deduplicate()
    assert corpus.calibration == {FRA: ("deux", "quatre"), HEB: ("שתיים", "ארבע")}
    assert len(corpus.notes) == 2


def test_no_overlap_means_no_note() -> None:
    assert two_languages().deduplicate() == two_languages()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"calibration": {"fr": ["a"], "fra": ["b"]}}, "names fra_Latn twice"),
        ({"calibration": {"fr": ["a", " \n"]}}, r"fra_Latn\[1\] is empty"),
        ({"calibration": {"fr": [3]}}, "must be a str"),
        ({"calibration": {"fr": "one string"}}, "must be a list"),
        ({"calibration": ["a"]}, "must map language codes"),
        ({"calibration": {"fr": ["a"], "he": ["b", "c"]}}, "not aligned .fra_Latn 1, heb_Hebr 2."),
        ({"evaluation": {"fr": ["a"]}}, "parallel evaluation documents are not aligned"),
        ({"calibration": {"fr": ["\ud800"]}}, "surrogate"),
        ({"calibration": {"frech": ["a"]}}, "unknown"),
        ({"calibration": {"../fra": ["a"]}}, "your own name for a language must have"),
        ({"notes": "text"}, "must be a list"),
    ],
)
def test_bad_documents_are_refused(changes, reason) -> None:
    with pytest.raises(InputError, match=reason):
        two_languages(**changes)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("tokens", 15), ("tokens", 100.0), ("tokens", True), ("sequence", 3), ("seed", -1), ("split", "training")],
)
def test_settings_are_checked(setting, value):
    with pytest.raises(InputError, match=f"^{setting} is "):
        TextRequest(**{setting: value})


def test_its_settings_are_what_files_hold():
    request = TextRequest("evaluation", np.int64(64), 32, np.int32(7))
    assert json.dumps(request.settings) == '{"tokens": 64, "sequence": 32, "seed": 7}'
    assert request == TextRequest("evaluation", **request.settings)
