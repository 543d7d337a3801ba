from dataclasses import replace

import numpy as np
import pytest

from fairbits.language import udhr
from fairbits.language.text_request import TextRequest
from fairbits.measure.passes.prepare import text_for
from fairbits.model import Checkpoint
from fairbits.quantize.learning.lessons import APART_AT_MOST, KEPT_APART, Lessons
from fairbits.quantize.learning.objective import Candidate, weights_for

NAMES = ("eng", "heb", "swa")


@pytest.fixture(scope="module")
def text():
    return text_for(Checkpoint("embedded:tiny"), udhr(NAMES), request=TextRequest(tokens=2048, sequence=128))


def test_documents_are_learned_from_or_kept_apart_in_all_languages_alike(text):
    lessons = Lessons.of(text, seed=0)
    assert sorted((*lessons.learned, *lessons.apart)) == list(range(len(text.windows)))
    sides = [{text.windows[i].document for i in side} for side in (lessons.learned, lessons.apart)]
    assert not sides[0] & sides[1]
    numbers = [{(str(text.lang[i]), int(text.document[i])) for i in side} for side in sides]
    for code in text.languages:
        own = [{number for lang, number in side if lang == code} for side in numbers]
        assert len(own[1]) == max(1, round(KEPT_APART * (len(own[0]) + len(own[1]))))
    assert Lessons.of(text, seed=1).apart != lessons.apart


def test_no_more_is_kept_apart_of_a_long_text_than_is_needed(text):
    copies = 40
    long = replace(
        text,
        lang=np.tile(text.lang, copies),
        document=np.arange(copies * len(text.lang)),
        size_bytes=np.tile(text.size_bytes, copies),
        windows=tuple(
            replace(window, document=window.document + i * len(text.lang))
            for i in range(copies)
            for window in text.windows
        ),
    )
    lessons = Lessons.of(long, seed=0)
    longest = np.bincount([w.document for w in long.windows], [w.length for w in long.windows]).max()
    for code in long.languages:
        own = [long.windows[i] for i in lessons.apart if long.lang[long.windows[i].document] == code]
        assert APART_AT_MOST <= sum(window.length for window in own) < APART_AT_MOST + longest


def test_a_shortened_text_has_all_that_is_kept_apart_and_about_as_much_of_every_language(text):
    lessons = Lessons.of(text, seed=0)
    short = lessons.shortened(600)
    apart = {text.windows[i].document for i in lessons.apart}
    assert {window.document for window in short.windows} >= apart
    assert all(window in text.windows for window in short.windows)
    for code in text.languages:
        lengths = [window.length for window in short.windows if text.lang[window.document] == code]
        assert 600 <= sum(lengths) < 600 + 128
    assert lessons.shortened(10**6).windows == text.windows


def test_languages_take_turns_and_windows_of_a_step_are_about_equally_long(text):
    lessons = Lessons.of(text, seed=0)
    order = lessons.order(steps=60, rows=2, seed=0)
    assert order == lessons.order(steps=60, rows=2, seed=0) != lessons.order(steps=60, rows=2, seed=1)
    language = text.language_of
    turns = [int(language[text.windows[i].document]) for windows in order for i in windows]
    assert np.bincount(turns).tolist() == [40, 40, 40]
    assert {i for windows in order for i in windows} <= set(lessons.learned)
    lengths = np.array([[text.windows[i].length for i in windows] for windows in order])
    spread = (lengths.max(1) - lengths.min(1)).mean()
    mixed = np.abs(np.subtract.outer(lengths.ravel(), lengths.ravel())).mean()
    assert spread < mixed / 2


def test_weights_of_languages_follow_what_shall_be_small():
    damage, start = np.array([1.0, 2.0, 1.5]), np.array([2.0, 2.0, 4.0])
    assert weights_for(damage, start, "mean").tolist() == [1 / 3] * 3
    worst = weights_for(damage, start, "worst")
    # the gradient of the power mean of order 5
    h = 1e-6
    norm = lambda d: np.sum(d**5) ** (1 / 5)  # noqa: E731
    slope = np.array([(norm(damage + h * np.eye(3)[i]) - norm(damage)) / h for i in range(3)])
    assert np.allclose(worst, slope / slope.sum(), atol=1e-4)
    regret = weights_for(damage, start, "regret")
    assert regret.argmax() == 1
    assert np.allclose([worst.sum(), regret.sum()], 1)
    assert np.isfinite(weights_for(np.zeros(3), np.zeros(3), "worst")).all()


def test_a_candidate_that_hurts_a_language_does_not_count():
    start = np.array([1.0, 2.0])
    assert Candidate(1, np.array([0.9, 1.9])).hurts_none(start)
    assert not Candidate(1, np.array([1.1, 0.5])).hurts_none(start)
    values = [Candidate(1, np.array([0.5, 1.8])).value(start, each) for each in ("mean", "worst", "regret")]
    assert values == pytest.approx([1.15, 1.8, 0.9])
