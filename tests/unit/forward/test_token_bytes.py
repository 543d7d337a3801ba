"""Every byte of a document belongs to its tokens, and to none of them twice."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import NO_LABEL, bytes_by_token, document_encoder
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.tokenization import BYTE_LEVEL

MIXED = "The weather, מזג האוויר, 天気 and 𐍈 are  fine.\n"


def test_tokens_have_the_bytes_of_their_characters():
    assert bytes_by_token("abc", [(0, 1), (1, 3)]).tolist() == [1, 2]
    assert bytes_by_token("aא漢𐍈", [(0, 1), (1, 2), (2, 3), (3, 4)]).tolist() == [1, 2, 3, 4]


def test_a_shared_character_is_divided_and_a_dropped_one_belongs_to_the_next_token():
    assert bytes_by_token("漢", [(0, 1)] * 3).tolist() == [1, 1, 1]
    assert bytes_by_token(" a b ", [(1, 2), (3, 4)]).tolist() == [2, 3]
    assert bytes_by_token("ab", [(0, 0), (0, 1), (1, 2)]).tolist() == [0.5, 0.5, 1]  # a token without characters
    assert bytes_by_token("ab", [(0, 2), (2, 2)]).tolist() == [1.5, 0.5]
    assert bytes_by_token("", []).tolist() == []


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.data())
def test_tokens_together_have_all_bytes_whatever_their_spans(document, data):
    place = st.integers(0, len(document))
    spans = data.draw(st.lists(st.tuples(place, place).map(sorted).map(tuple), min_size=1, max_size=12))
    sizes = bytes_by_token(document, spans)
    assert (sizes > 0).all()
    assert sizes.sum() == pytest.approx(len(document.encode()))


def byte_level() -> PreTrainedTokenizerFast:
    """A tokenizer with a token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def dropping_spaces() -> PreTrainedTokenizerFast:
    """A tokenizer of words without the spaces between them, in lower case."""
    backend = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize("tokenizer", [byte_level, dropping_spaces, Checkpoint("embedded:tiny").tokenizer])
def test_real_tokenizers_report_all_bytes(tokenizer):
    (encoded,) = document_encoder(tokenizer())([MIXED])
    assert len(encoded.token_bytes) == len(encoded.ids)
    assert encoded.token_bytes.sum() == pytest.approx(len(MIXED.encode()))
    assert (encoded.token_bytes > 0).all()


def test_byte_level_pieces_have_one_byte_each():
    (encoded,) = document_encoder(byte_level())([MIXED])
    np.testing.assert_allclose(encoded.token_bytes, 1)


def test_a_slow_tokenizer_reports_no_bytes():
    (encoded,) = document_encoder(ByT5Tokenizer())([MIXED])
    assert encoded.token_bytes is None
    assert len(encoded.ids) == len(MIXED.encode())


def documents_of(size):
    return tuple(f"{i}. {MIXED * size}" for i in range(8))


@pytest.mark.parametrize("family", ["llama", "qwen2", "xlmr", "mt5"])
def test_bytes_are_those_of_the_predicted_tokens(reading_model, family):
    """In every task: next token (with and without a start token), masked tokens, and the second half."""
    checkpoint = reading_model(family)
    corpus = Corpus("mixed", {"eng_Latn": documents_of(10)}, {})
    text = tokenize_corpus(checkpoint, corpus, request=TextRequest(tokens=300, sequence=64))
    labels = [[] for _ in text.lang]
    for window in text.windows:
        labels[window.document] += [label for label in window.main.labels if label != NO_LABEL]
    vocabulary = checkpoint.tokenizer().convert_ids_to_tokens
    for size, predicted in zip(text.size_bytes, labels, strict=True):
        spelled = sum(len(bytes_of_piece(piece)) for piece in vocabulary(predicted))
        assert size == pytest.approx(spelled, abs=12)  # a shared character is divided and not spelled
        assert size < len(documents_of(10)[0].encode()) - 12
    assert text.estimated == 0


def bytes_of_piece(piece: str) -> bytes:
    """Returns the bytes that a piece of a byte-level vocabulary stands for."""
    return piece.translate(BYTE_LEVEL).encode("latin-1")


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_documents_that_are_predicted_whole_have_exactly_their_bytes(reading_model, family):
    corpus = Corpus("mixed", {"eng_Latn": documents_of(1)}, {})
    text = tokenize_corpus(reading_model(family), corpus)
    assert text.size_bytes.tolist() == [len(document.encode()) for document in corpus.calibration["eng_Latn"]]
