import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbits.core.errors import InputError
from fairbits.text.samples import cut_samples, next_start, token_counter


def words(text: str) -> int:
    """Tokens of a tokenizer that adds one at each end and knows words."""
    return len(text.split()) + 2


def bytes_and_end(text: str) -> int:
    """Tokens of a tokenizer of bytes that adds one at the end: most characters are several tokens."""
    return len(text.encode()) + 1


def ends_of_bytes(text: str) -> list[int]:
    """Where the tokens of that tokenizer end: each character is as many tokens as bytes."""
    return [i + 1 for i, character in enumerate(text) for _ in character.encode()]


def test_texts_are_cut_from_the_documents_in_their_order() -> None:
    documents = ["one two three", "four", "five six seven eight nine ten eleven"]
    assert list(cut_samples(documents, 6, count=words)) == [("one two three\nfour", 6), ("five six seven eight", 6)]


def test_what_is_left_is_less_than_a_text() -> None:
    documents = [" ".join(f"w{i}-{j}" for j in range(7)) for i in range(50)]
    packed = list(cut_samples(documents, 32, count=words))
    assert [tokens for _, tokens in packed] == [32] * (350 // 30)
    assert "\n".join(text for text, _ in packed).split() == " ".join(documents).split()[: 30 * (350 // 30)]


@settings(deadline=None)
@given(
    st.lists(st.text("aé语ठा \n", min_size=1).filter(str.strip), min_size=1, max_size=40),
    st.integers(9, 40),
    st.sampled_from([None, ends_of_bytes]),
)
def test_every_text_counts_what_it_says(documents, length, ends) -> None:
    documents = [unicodedata.normalize("NFC", document).strip() for document in documents]
    rest = "\n".join(documents)
    for text, tokens in cut_samples(documents, length, count=bytes_and_end, ends=ends):
        assert text
        assert bytes_and_end(text) == tokens <= length
        assert text == text.strip()
        rest = rest[rest.index(text) + len(text) :]  # in order, and nothing twice


def test_a_tokenizer_of_bytes_fills_most_texts_whole_and_uses_most_of_the_documents() -> None:
    documents = ["所有的人生而自由，在尊严和权利上一律平等。" * 5, "Tous les êtres humains naissent libres."] * 80
    tokens = [tokens for _, tokens in cut_samples(documents, 512, count=bytes_and_end)]
    assert tokens.count(512) > 0.9 * len(tokens)
    assert sum(tokens) > 0.9 * sum(len(document.encode()) for document in documents)


@pytest.mark.parametrize("ends", [None, ends_of_bytes])
def test_a_character_keeps_its_marks(ends) -> None:
    for text, tokens in cut_samples(["ठा" * 100, "ক্ষি" * 50], 40, count=bytes_and_end, ends=ends):
        assert not unicodedata.category(text[0]).startswith("M")
        assert text.endswith(("ठा", "ক্ষি", "ক্"))
        assert tokens > 40 - 12


@pytest.mark.parametrize("document", ["a" + "\u0316" * 500, "\u0316" * 500, ("x" + "\u0316" * 30) * 9, "\u200b" * 300])
def test_marks_without_end_are_parted(document) -> None:
    packed = list(cut_samples([document], 12, count=bytes_and_end))
    assert len(packed) >= 9
    assert all(text and bytes_and_end(text) == tokens for text, tokens in packed)


def test_knowing_where_tokens_end_saves_most_of_the_counting() -> None:
    documents = ["所有的人生而自由，在尊严和权利上一律平等。" * 5] * 80
    counted = {None: 0, ends_of_bytes: 0}

    def count(text: str) -> int:
        counted[ends] += 1
        return bytes_and_end(text)

    packed = {}
    for ends in counted:
        packed[ends] = list(cut_samples(documents, 128, count=count, ends=ends))
    assert packed[None] == packed[ends_of_bytes]
    assert counted[ends_of_bytes] < counted[None] / 2


def test_a_huge_document_is_cut_in_linear_time() -> None:
    counted = []

    def count(text: str) -> int:
        counted.append(len(text))
        return words(text)

    packed = list(cut_samples(["word " * 100_000], 102, count=count))
    assert len(packed) == 1000
    assert sum(counted) < 20 * 500_000


def test_next_start_finishes_the_word_but_not_a_script_without_spaces() -> None:
    assert next_start("所有的人生而自由" * 10, 3) == 3
    assert next_start("born free", 9) == 9
    assert next_start("born  free", 4) == 6
    assert next_start("born", 0) == 0


def test_what_is_no_tokenizer_is_refused() -> None:
    with pytest.raises(InputError, match="tokenizer is a str"):
        token_counter("gpt2")("text")
