"""The text of tokens as they come."""

import pytest

from fairbits.models.checkpoint import Checkpoint
from fairbits.serve.server.decoding import Detokenizer, StopFilter
from fairbits.text.included_texts import udhr

LANGUAGES = ["eng_Latn", "heb_Hebr", "jpn_Jpan", "tha_Thai", "amh_Ethi", "hin_Deva", "kor_Hang"]


@pytest.fixture(scope="module")
def tokenizer():
    return Checkpoint("embedded:tiny").tokenizer()


@pytest.mark.parametrize("code", LANGUAGES)
def test_pieces_make_the_text_and_no_piece_has_half_a_character(code, tokenizer) -> None:
    text = udhr([code, "fra_Latn"]).evaluation[code][3][:300] + " 🙂 👩‍👩‍👧 𝔄 end"
    ids = tokenizer(text)["input_ids"]
    for split in (1, 7, len(ids) // 2):
        detokenizer = Detokenizer(tokenizer, ids[:split])
        pieces = [detokenizer.add(token) for token in ids[split:]]
        whole = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        before = tokenizer.decode(ids[:split], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        if before.endswith("\ufffd"):
            continue  # a prompt is text, and never ends inside a character
        assert before + "".join(pieces) + detokenizer.flush() == whole
        assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_that_is_never_finished_comes_at_the_end(tokenizer) -> None:
    ids = tokenizer("🙂")["input_ids"]
    assert len(ids) > 1
    detokenizer = Detokenizer(tokenizer, tokenizer("a")["input_ids"])
    assert [detokenizer.add(token) for token in ids[:-1]] == [""] * (len(ids) - 1)
    assert set(detokenizer.flush()) == {"\ufffd"}


@pytest.mark.parametrize("stops", [["ab"], ["aab", "b c"], ["xyz"], ["abab c"], []])
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_stop_string_is_found_however_the_text_is_cut(stops, size) -> None:
    text = "aaab ababab cab c"
    stopper = StopFilter(stops)
    output = "".join(stopper.add(text[i : i + size]) for i in range(0, len(text), size)) + stopper.flush()
    ends = [text.index(stop) for stop in stops if stop in text]
    # the stop string that is whole first ends the text
    if size == 1:
        first = min(((text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text), default=None)
        assert output == (text if first is None else text[: first[1]])
    elif size == 100:
        assert output == text[: min(ends, default=len(text))]
    assert stopper.stopped == bool(ends)
    assert text.startswith(output)
    assert not any(stop in output for stop in stops)
