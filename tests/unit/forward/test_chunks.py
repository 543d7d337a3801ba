"""Chunks: every one full, its second half predicted, and no document in two of them."""

import re

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.forward.chunks import chunk_corpus, predicted_in_chunk
from fairbits.forward.windows import NO_LABEL
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import Corpus, TextRequest


@pytest.fixture(scope="module")
def tiny() -> Checkpoint:
    return Checkpoint("embedded:tiny")


def corpus_of(documents: int, *, longest: int = 60) -> Corpus:
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{i}" for _ in range(rng.integers(2, longest))) + "." for i in range(documents)]
    return Corpus("words", {}, {"eng": texts, "swh": [text.replace("w", "ŵ") for text in texts]})


@pytest.mark.parametrize("length", [32, 33])
def test_the_second_half_of_every_chunk_is_predicted(tiny: Checkpoint, length: int) -> None:
    text = chunk_corpus(tiny, corpus_of(40), request=TextRequest("evaluation", 100, length))
    start = tiny.tokenizer().bos_token_id
    for window in text.windows:
        ids, labels = window.main.ids, window.main.labels
        assert len(ids) == length
        assert ids[0] == start
        expected = [NO_LABEL] * length
        for t in range(length // 2, length - 1):
            expected[t] = ids[t + 1]
        assert labels == expected
        assert sum(label != NO_LABEL for label in labels) == predicted_in_chunk(length)
    chunks = -(-100 // predicted_in_chunk(length))
    assert text.lang.tolist() == ["eng_Latn"] * chunks + ["swh_Latn"] * chunks
    assert text.document.tolist() == list(range(2 * chunks))
    assert not text.notes


def test_no_document_is_in_two_chunks_and_bytes_are_those_of_predicted_tokens(tiny: Checkpoint) -> None:
    text = chunk_corpus(tiny, corpus_of(60), request=TextRequest("evaluation", 400, 64))
    tokenizer, words = tiny.tokenizer(), []
    for window, size, code in zip(text.windows, text.size_bytes, text.lang, strict=True):
        predicted = [label for label in window.main.labels if label != NO_LABEL]
        if code == "eng_Latn":  # in the other language, a chunk may begin or end within a letter
            assert len(tokenizer.decode(predicted)) == pytest.approx(size)
        # the last number may be cut, and so may another word
        words.append({*re.findall(r"[wŵ]\d+(?=[ .])", tokenizer.decode(window.main.ids[1:]))})
    eng = words[: len(words) // 2]
    assert sum(map(len, eng)) == len(set.union(*eng))


def test_short_text_gives_fewer_chunks_and_a_note_and_too_short_text_is_refused(tiny: Checkpoint) -> None:
    corpus = corpus_of(20)
    text = chunk_corpus(tiny, corpus, request=TextRequest("evaluation", 100_000, 64))
    count = int((text.lang == "eng_Latn").sum())
    assert text.notes[0].startswith(
        f"eng_Latn has text for {count} chunks of 64 tokens, so that {31 * count} of 100,000"
    )
    with pytest.raises(InputError, match="has text for 0 chunks of 512 tokens; add text"):
        chunk_corpus(tiny, corpus_of(1), request=TextRequest("evaluation", 100_000, 512))


def test_the_seed_chooses_the_order_of_documents(tiny: Checkpoint) -> None:
    first, same, other = (
        chunk_corpus(tiny, corpus_of(40), request=TextRequest("evaluation", 100, 32, seed)) for seed in (0, 0, 1)
    )
    assert [window.main.ids for window in first.windows] == [window.main.ids for window in same.windows]
    assert [window.main.ids for window in first.windows] != [window.main.ids for window in other.windows]
