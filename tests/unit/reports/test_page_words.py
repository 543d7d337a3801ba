"""What the page of a report says next to its numbers."""

import copy
import re
from typing import Any

from fairbits.reports.content import Report


def words(own: dict[str, Any]) -> str:
    """Returns what the page of some content says, without its scripts."""
    text = re.sub(r"<(script|style)\b.*?</\1>", "", Report(own).html(), flags=re.DOTALL)
    return " ".join(re.sub("<[^>]*>", " ", text).split())


def test_the_page_says_what_was_predicted_and_what_was_measured(found) -> None:
    assert "The two differ" not in words(found)
    own = copy.deepcopy(found)
    own["prediction"] |= {"like": False, "made_with": "W4 per tensor"}
    scheme = own["prediction"]["scheme"]
    assert f"the prediction is for plain rounding, {scheme}; the measurement is for rtn, W4 per tensor. " in words(own)
    own["prediction"]["made_with"] = None
    assert "the measurement is for rtn, with an unknown width and group. " in words(own)


def test_cards_say_what_their_numbers_are(found) -> None:
    cards = re.findall(r'<article class="card">.*?</article>', Report(found).html(), flags=re.DOTALL)
    notes = ("corrected for selection", "corrected for noise", "all languages weighted equally", "all tensors")
    assert "divergence, bits per byte" in cards[0]
    assert [note in card for card, note in zip(cards, notes, strict=True)] == [True] * 4


def test_one_is_not_many(found) -> None:
    assert "All 4 models read the same 20 documents, " in words(found)
    own = copy.deepcopy(found)
    own["languages"] = own["languages"][:1]
    for side in ("before", "after"):
        own["headline"]["worst"][side]["language"] = own["languages"][0]["code"]
    own["provenance"]["models"] = own["provenance"]["models"][:2]
    own["provenance"]["evaluation"] |= {"documents": 1, "tokens": 1}
    assert "Both models read the same 1 document, 1 token in 1 language. They predict every" in words(own)


def test_points_that_a_log_scale_cannot_show_are_counted(found) -> None:
    own = copy.deepcopy(found)
    for curve in own["curves"]["damage"]:
        for point in curve:
            point["value"] = 0.1
    assert "0 or below" not in words(own)
    own["curves"]["damage"][0][0]["value"] = 0.0
    assert "1 of 8 points is 0 or below" in words(own)
