from dataclasses import replace

import numpy as np
import pytest

import score_table
from fairbits.evaluation.meaning import LEVELS, SUGGESTED, Meaning, advice
from fairbits.stats.intervals import Estimate


def meaning(changed: float, *, bounded: bool = True) -> Meaning:
    low, high = (changed - 1, changed + 1) if bounded else (float("-inf"), float("inf"))
    return Meaning("fin_Latn", Estimate(changed, low, high, 20), Estimate(1.87, 1.8, 1.9, 20))


@pytest.mark.parametrize(
    ("changed", "level"), [(0.0, 0), (5.0, 0), (5.1, 1), (10.0, 1), (24.9, 2), (25.1, 3), (51.0, 3), (100.0, 3)]
)
def test_levels(changed: float, level: int) -> None:
    assert meaning(changed).level == LEVELS[level][1]
    assert meaning(changed).acceptable == (level < 3)


def test_the_sentence_names_language_share_interval_and_perplexity() -> None:
    assert meaning(51).sentence == (
        "Finnish changes most: of 100 next tokens, 51 are no longer the reference's first choice (95 % interval 50 to "
        "52), and perplexity is multiplied by 1.87. That is too much for most uses."
    )
    assert "(no interval)" in meaning(51, bounded=False).sentence


def test_the_sentence_says_if_the_text_cannot_tell_and_which_language_is_worst_by_kl() -> None:
    changed = replace(meaning(16), close=("heb_Hebr", "arb_Arab"), kl_language="heb_Hebr")
    assert changed.sentence == (
        "Finnish, Hebrew and Arabic change most, and this text cannot tell which of them most. In Finnish, of 100 "
        "next tokens, 16 are no longer the reference's first choice (95 % interval 15 to 17), and perplexity is "
        "multiplied by 1.87. That is a clear change. By KL divergence, Hebrew is worst."
    )
    many = replace(changed, close=("heb_Hebr", "arb_Arab", "eng_Latn", "deu_Latn"), kl_language="fin_Latn")
    assert many.sentence.startswith("Finnish and 4 other languages change most, ")
    assert "KL" not in many.sentence


def test_the_sentence_says_what_changes_where_the_reference_is_sure_and_how_many_words_it_adds() -> None:
    sure, words = Estimate(5.21, 4, 6, 20), Estimate(6.34, 6, 7, 20)
    sentence = replace(meaning(16), sure=sure, added_words=words).sentence
    assert sentence.endswith(
        "Where the reference is sure, 5.2 of 100 change (4.0 to 6.0). Predicting 100 words takes as many bits as 106.3 "
        "words took before (106.0 to 107.0)."
    )
    assert (
        "as many bits as 126.4 words took before (126.0 to 127.0)"
        in replace(meaning(16), added_words=Estimate(26.4, 26, 27, 20)).sentence
    )


def test_languages_that_change_alike_are_named_together(draw) -> None:
    scores = draw({"fin_Latn": 5.0, "heb_Hebr": 5.0, "eng_Latn": 1.0}, parallel=False)
    flips = np.random.default_rng(0).binomial(100, 0.3, 40).astype(float)
    for second, close in ((flips, 1), (flips // 3, 0)):
        changes = np.concatenate([flips, second, flips // 4])
        changed = replace(scores, documents=replace(scores.documents, flips=changes)).meaning
        assert len(changed.close) == close
        assert {changed.language, *changed.close} <= {"fin_Latn", "heb_Hebr"}


def test_advice_leaves_out_what_was_done() -> None:
    assert advice({"bits": 4, "group": "channel"}, policy="rtn") == "--policy fair, --group 32, --bits 8"
    assert advice({"bits": 8, "group": 32}, policy="fair") == "a larger model"


def test_the_suggested_limit_is_a_level_of_the_table() -> None:
    """What is suggested must stay below what is called too much, and the page must show the stored table."""
    assert SUGGESTED in [limit for limit, _ in LEVELS[:-2]]
    page = score_table.PAGE.read_text(encoding="utf-8")
    assert score_table.tables() in page
