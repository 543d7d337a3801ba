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


def test_the_sentence_says_how_sure_it_is_and_which_language_is_worst_by_kl() -> None:
    changed = replace(meaning(16), share=0.774, kl_language="heb_Hebr")
    assert changed.sentence.endswith(
        " That is a clear change. It changes most in 77 of 100 resamples. By KL divergence, Hebrew is worst."
    )
    assert replace(changed, kl_language="fin_Latn").sentence.endswith(" 77 of 100 resamples.")


def test_how_sure_it_is_comes_from_the_resamples(draw) -> None:
    """Of two languages that change alike, either is the one that changes most in about half of the resamples."""
    scores = draw({"fin_Latn": 5.0, "heb_Hebr": 5.0}, parallel=False)
    per_document = np.random.default_rng(0).binomial(100, 0.3, 40).astype(float)
    for second, share in ((per_document, 0.5), (per_document // 3, 1.0)):
        flips = np.concatenate([per_document, second])
        changed = replace(scores, documents=replace(scores.documents, flips=flips)).meaning
        assert changed.share == pytest.approx(share, abs=0.1)


def test_advice_leaves_out_what_was_done() -> None:
    assert advice({"bits": 4, "group": "channel"}, policy="rtn") == "--policy fair, --group 32, --bits 8"
    assert advice({"bits": 8, "group": 32}, policy="fair") == "a larger model"


def test_the_suggested_limit_is_a_level_of_the_table() -> None:
    """What is suggested must stay below what is called too much, and the page must show the stored table."""
    assert SUGGESTED in [limit for limit, _ in LEVELS[:-2]]
    page = score_table.PAGE.read_text(encoding="utf-8")
    assert score_table.tables() in page
