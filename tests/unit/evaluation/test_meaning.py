from dataclasses import replace

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


def test_the_sentence_names_what_may_change_as_much_and_what_is_worst_by_kl() -> None:
    changed = replace(meaning(16), close=("heb_Hebr", "arb_Arab"), kl_language="heb_Hebr")
    assert changed.sentence.endswith(
        " Hebrew and Arabic may change as much: the intervals overlap. By KL divergence, Hebrew is worst."
    )
    many = replace(changed, close=("heb_Hebr", "arb_Arab", "eng_Latn"), kl_language="fin_Latn")
    assert many.sentence.endswith(" 3 other languages may change as much: the intervals overlap.")


def test_advice_leaves_out_what_was_done() -> None:
    assert advice({"bits": 4, "group": "channel"}, policy="rtn") == "--policy fair, --group 32, --bits 8"
    assert advice({"bits": 8, "group": 32}, policy="fair") == "a larger model"


def test_the_suggested_limit_is_a_level_of_the_table() -> None:
    """What is suggested must stay below what is called too much, and the page must show the stored table."""
    assert SUGGESTED in [limit for limit, _ in LEVELS[:-2]]
    page = score_table.PAGE.read_text(encoding="utf-8")
    assert score_table.tables() in page
