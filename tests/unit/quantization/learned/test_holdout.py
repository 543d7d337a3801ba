from dataclasses import replace

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.models.checkpoint import Checkpoint
from fairbits.quantization.learned.holdout import HELD_OUT_POSITIONS, HELD_OUT_SHARE, HoldoutSplit
from fairbits.text.corpus import TextRequest
from fairbits.text.included_texts import udhr

NAMES = ("eng", "heb", "swa")


@pytest.fixture(scope="module")
def text():
    return tokenize_corpus(Checkpoint("embedded:tiny"), udhr(NAMES), request=TextRequest(tokens=2048, sequence=128))


def test_documents_are_trained_on_or_held_out_in_all_languages_alike(text):
    split = HoldoutSplit.of(text, seed=0)
    assert sorted((*split.training, *split.held_out)) == list(range(len(text.windows)))
    sides = [{text.windows[i].document for i in side} for side in (split.training, split.held_out)]
    assert not sides[0] & sides[1]
    numbers = [{(str(text.lang[i]), int(text.document[i])) for i in side} for side in sides]
    for code in text.languages:
        documents = [{number for lang, number in side if lang == code} for side in numbers]
        assert len(documents[1]) == max(1, round(HELD_OUT_SHARE * (len(documents[0]) + len(documents[1]))))
    assert HoldoutSplit.of(text, seed=1).held_out != split.held_out


def test_no_more_of_a_long_text_is_held_out_than_is_needed(text):
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
    split = HoldoutSplit.of(long, seed=0)
    longest = np.bincount([w.document for w in long.windows], [w.length for w in long.windows]).max()
    for code in long.languages:
        held_out = [long.windows[i] for i in split.held_out if long.lang[long.windows[i].document] == code]
        assert HELD_OUT_POSITIONS <= sum(window.length for window in held_out) < HELD_OUT_POSITIONS + longest


def test_a_language_with_a_single_document_is_refused(text):
    first = {code: int(np.flatnonzero(text.lang == code)[0]) for code in text.languages}
    short = replace(
        text,
        lang=text.lang[list(first.values())],
        document=text.document[list(first.values())],
        size_bytes=text.size_bytes[list(first.values())],
        windows=tuple(
            replace(window, document=number)
            for number, document in enumerate(first.values())
            for window in text.windows
            if window.document == document
        ),
    )
    with pytest.raises(InputError, match=r"at least 2 documents of every language.*eng_Latn has 1: give more"):
        HoldoutSplit.of(short, seed=0)


def test_a_shortened_text_has_all_held_out_text_and_about_as_much_of_every_language(text):
    split = HoldoutSplit.of(text, seed=0)
    short = split.shorten(600)
    held_out = {text.windows[i].document for i in split.held_out}
    assert {window.document for window in short.windows} >= held_out
    assert all(window in text.windows for window in short.windows)
    for code in text.languages:
        lengths = [window.length for window in short.windows if text.lang[window.document] == code]
        assert 600 <= sum(lengths) < 600 + 128
    assert split.shorten(10**6).windows == text.windows
    alone = split.shorten(600, held_out=False)
    assert {window.document for window in alone.windows}.isdisjoint(held_out)
    assert sum(window.length for window in alone.windows) >= 600 * len(text.languages)


def test_languages_take_turns_and_windows_of_a_step_are_about_equally_long(text):
    split = HoldoutSplit.of(text, seed=0)
    order = split.training_order(steps=60, rows=2, seed=0)
    assert order == split.training_order(steps=60, rows=2, seed=0) != split.training_order(steps=60, rows=2, seed=1)
    language = text.language_of
    turns = [int(language[text.windows[i].document]) for windows in order for i in windows]
    assert np.bincount(turns).tolist() == [40, 40, 40]
    assert {i for windows in order for i in windows} <= set(split.training)
    lengths = np.array([[text.windows[i].length for i in windows] for windows in order])
    spread = (lengths.max(1) - lengths.min(1)).mean()
    mixed = np.abs(np.subtract.outer(lengths.ravel(), lengths.ravel())).mean()
    assert spread < mixed / 2
