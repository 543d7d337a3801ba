import threading
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import py3langid
import pytest

from fairbits.core.errors import InputError
from fairbits.text.detect import Detector, detectable_languages
from fairbits.text.included_texts import udhr

TWENTY = "amh ara ben deu eng fin fra heb hin ind jpn kor rus spa swa tha tur vie yor zho".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def detector() -> Detector:
    return Detector(TWENTY)


def test_tells_every_evaluation_section_of_the_twenty_languages(detector: Detector) -> None:
    corpus = udhr(TWENTY)
    for language in corpus.languages:
        assert {detector.detect(text).language.code for text in corpus.evaluation[language.code]} == {language.code}


def test_three_words_are_mostly_enough(detector: Detector) -> None:
    corpus = udhr(TWENTY)
    right = n = 0
    for language in corpus.languages:
        for text in corpus.evaluation[language.code]:
            start = " ".join(text.replace("፡", " ").split()[:3])[:40]
            right += detector.detect(start).language == language
            n += 1
    assert right / n > 0.98


def test_probabilities_are_ranked_and_sum_to_one(detector: Detector) -> None:
    ranking = detector.rank("Everyone has the right to rest and leisure.")
    probabilities = [detection.confidence for detection in ranking]
    assert len({detection.language.code for detection in ranking}) == 20
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) == pytest.approx(1.0, abs=1e-5)
    assert ranking[0] == detector.detect("Everyone has the right to rest and leisure.")
    assert ranking[0].language.code == "eng_Latn"


def test_decomposed_text_is_read_as_composed(detector: Detector) -> None:
    text = udhr(["vi", "en"]).evaluation["vie_Latn"][0]
    assert detector.detect(unicodedata.normalize("NFD", text)) == detector.detect(text)


def test_answers_are_among_the_languages_at_hand() -> None:
    assert Detector(["sw", "zu"]).detect("Bonjour tout le monde").language.code in {"swh_Latn", "zul_Latn"}


def test_each_detector_and_the_global_one_keep_their_languages() -> None:
    french, german = Detector(["fr", "en"]), Detector(["de", "en"])
    assert french.detect("le monde entier est ici").language.code == "fra_Latn"
    assert german.detect("die ganze Welt ist hier").language.code == "deu_Latn"
    assert french.detect("le monde entier est ici").language.code == "fra_Latn"
    assert py3langid.classify("Всички хора се раждат свободни")[0] == "bg"


def test_is_safe_between_threads(detector: Detector) -> None:
    texts = [udhr(TWENTY).evaluation[language.code][0] for language in detector.languages] * 10
    barrier = threading.Barrier(4)

    def detect_codes(part: int) -> list[str]:
        barrier.wait()
        return [detector.detect(text).language.code for text in texts[part::4]]

    with ThreadPoolExecutor(4) as pool:
        parallel = list(pool.map(detect_codes, range(4)))
    assert parallel == [[detector.detect(text).language.code for text in texts[part::4]] for part in range(4)]


@pytest.mark.parametrize("text", ["", "  \n", "1234", "?!…", "🙂"])
def test_text_without_letters_is_refused(detector: Detector, text: str) -> None:
    with pytest.raises(InputError, match="at least one letter"):
        detector.detect(text)


def test_text_must_be_a_string(detector: Detector) -> None:
    with pytest.raises(InputError, match="must be a str"):
        detector.detect(b"shalom")  # type: ignore[arg-type]


def test_unknown_languages_are_named() -> None:
    with pytest.raises(InputError, match=r"does not know Cherokee \(chr_Cher\), Hawaiian \(haw_Latn\); it knows 1\d\d"):
        Detector(["en", "chr", "haw"])


def test_two_scripts_under_one_label_are_refused() -> None:
    with pytest.raises(InputError, match=r"not distinguish Chinese \(Simplified\) .* from Chinese \(Traditional\)"):
        Detector(["zh-Hans", "zh-Hant", "en"])


def test_one_language_is_no_choice() -> None:
    with pytest.raises(InputError, match="at least 2"):
        Detector(["he"])


def test_each_language_it_knows_can_be_asked_for() -> None:
    detectable = detectable_languages()
    assert len(detectable) > 120
    english = next(language for language in detectable if language.code == "eng_Latn")
    for language in detectable:
        if language is not english:
            assert Detector([language.code, "eng_Latn"]).languages == (language, english)
