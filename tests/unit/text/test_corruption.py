import pytest

from fairbits.text.corruption import SENTENCE_END, corrupt, sentence_spans, sentences

TEXTS = {
    "spaces": "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "no spaces": "人人生而自由，在尊严和权利上一律平等。",
    "marks": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกัน",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_two_neighbours_change_places_and_nothing_is_lost(text) -> None:
    other = corrupt(text)
    assert other != text
    assert sorted(other) == sorted(text)
    assert (other[0], other[-1]) == (text[0], text[-1])
    assert corrupt(text) == other  # the same in every run
    assert len({corrupt(text, seed=seed) for seed in range(20)}) > 2


def test_marks_stay_with_their_letters() -> None:
    for seed in range(30):
        other = corrupt(TEXTS["marks"], seed=seed)
        assert "ย์" in other
        assert "ั้" in other


@pytest.mark.parametrize("text", ["", "ja", "ha ha ha ha ha", "aaaaaaaaaa", "a b"])
def test_what_cannot_be_corrupted(text) -> None:
    assert corrupt(text) is None


def test_sentences_are_neither_short_nor_long() -> None:
    text = "No. This sentence is long enough. " + "a" * 500 + ". 这一句话也足够长了可以用。\nA line without an end"
    assert sentences(text) == ["This sentence is long enough.", "这一句话也足够长了可以用。", "A line without an end"]


@pytest.mark.parametrize("text", [*TEXTS.values(), "One.  Two!\n\nThree? ", "甲。乙！ 丙？\n丁", "", " \n ", "。。"])
def test_spans_are_the_parts_between_the_ends_of_sentences(text) -> None:
    parts = [part.strip() for part in SENTENCE_END.split(text)]
    assert [text[start:end] for start, end in sentence_spans(text)] == [part for part in parts if part]
