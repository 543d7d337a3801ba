import json
from itertools import product

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from fairbits.models.checkpoint import Checkpoint
from fairbits.text.included_texts import udhr
from fairbits.text.tokenization import BYTE_LEVEL, partial_characters, tokenization

ENG, HEB, ZHO = "eng_Latn", "heb_Hebr", "zho_Hans"
EMBEDDED = [
    "amh",
    "ara",
    "ben",
    "deu",
    "eng",
    "fin",
    "fra",
    "heb",
    "hin",
    "ind",
    "jpn",
    "kor",
    "rus",
    "spa",
    "swa",
    "tha",
    "tur",
    "vie",
    "yor",
    "zho",
]


@pytest.fixture(scope="module")
def embedded():
    return Checkpoint("embedded:tiny").tokenizer()


@pytest.fixture(scope="module")
def with_byte_pieces() -> PreTrainedTokenizerFast:
    """A BPE that knows a, b and ab, and falls back to bytes as SentencePiece does; it adds a token at the beginning."""
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "b", "ab"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    bpe = Tokenizer(models.BPE(vocabulary, [("a", "b")], unk_token="<unk>", byte_fallback=True))
    bpe.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, unk_token="<unk>", bos_token="<s>")


@pytest.fixture(scope="module")
def with_words() -> PreTrainedTokenizerFast:
    wordpiece = Tokenizer(models.WordPiece({"[UNK]": 0, "hello": 1, "##s": 2}, unk_token="[UNK]"))
    wordpiece.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=wordpiece, unk_token="[UNK]")


def test_byte_pieces_by_hand(with_byte_pieces) -> None:
    # "ab€" is ab E2 82 AC: 5 bytes in 4 tokens, 3 of them parts of a character; the line's end is a whole one.
    euro, line = tokenization({ENG: ["ab€"] * 6, HEB: ["ab\n"] * 6}, with_byte_pieces, parallel=True).values()
    assert (euro.bytes_per_token.value, euro.fallback_share.value, euro.unknown_share.value) == (5 / 4, 3 / 4, 0)
    assert (line.bytes_per_token.value, line.fallback_share.value) == (3 / 2, 0)
    assert (euro.tokens, euro.documents) == (24, 6)
    assert line.tokens_per_sentence_ratio.value == pytest.approx(1 / 2)
    assert line.quality.value == pytest.approx(2)
    assert euro.quality.value == euro.quality.low == euro.quality.high == 1


def test_words_have_no_bytes_but_unknowns(with_words) -> None:
    (measured,) = tokenization({ENG: ["hellos שלום"] * 5}, with_words, parallel=False).values()
    assert measured.bytes_per_token.value == pytest.approx(15 / 3)
    assert (measured.fallback_share.value, measured.unknown_share.value) == (0, pytest.approx(1 / 3))


def test_a_tokenizer_of_bytes_cuts_all_but_ascii() -> None:
    # é is two bytes; a is a whole character
    (measured,) = tokenization({ENG: ["éa"] * 5}, ByT5Tokenizer(), parallel=False).values()
    assert (measured.bytes_per_token.value, measured.fallback_share.value) == (1, pytest.approx(2 / 3))


def test_byte_level_characters_stand_for_the_bytes_the_library_gives_them() -> None:
    text = "".join(map(chr, range(0x800))) + "अ語😀"
    ((piece, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    assert piece.translate(BYTE_LEVEL).encode("latin-1") == text.encode()


def test_partial_characters_of_the_embedded_model_are_those_its_decoder_cannot_write(embedded) -> None:
    partial = partial_characters(embedded)
    decoder = embedded.backend_tokenizer.decoder
    unwritable = {i for piece, i in embedded.get_vocab().items() if "\ufffd" in decoder.decode([piece])}
    assert set(np.flatnonzero(partial)) == unwritable
    assert 100 < len(unwritable) < 0.2 * len(partial)


def test_byte_level_is_seen_without_a_decoder(tokenizer) -> None:
    assert tokenizer.backend_tokenizer.decoder is None
    assert partial_characters(tokenizer)[tokenizer.convert_tokens_to_ids("Ã")]
    assert not partial_characters(tokenizer)[tokenizer.convert_tokens_to_ids("Ġ")]


def test_added_tokens_are_whole(embedded) -> None:
    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(embedded.backend_tokenizer.to_str()))
    other.add_tokens(["Ã!", "語"])  # read as bytes in disguise, the first would be no UTF-8
    assert len(other) == len(embedded) + 2
    assert not partial_characters(other)[len(embedded) :].any()


def test_the_embedded_model_in_its_languages(embedded) -> None:
    corpus = udhr(EMBEDDED)
    measured = tokenization(corpus.evaluation, embedded, parallel=corpus.parallel)
    assert list(measured) == list(corpus.evaluation)
    for code, texts in corpus.evaluation.items():
        token_lists = [embedded.tokenize(text) for text in texts]
        tokens = sum(map(len, token_lists))
        cut = sum("\ufffd" in embedded.convert_tokens_to_string([piece]) for pieces in token_lists for piece in pieces)
        assert measured[code].tokens == tokens
        assert measured[code].bytes_per_token.value == pytest.approx(corpus.size(code, "evaluation") / tokens)
        assert measured[code].fallback_share.value == pytest.approx(cut / tokens)
        assert measured[code].tokens_per_sentence_ratio.value == pytest.approx(tokens / measured[ENG].tokens)
        assert (
            measured[code].bytes_per_token.low
            < measured[code].bytes_per_token.value
            < measured[code].bytes_per_token.high
        )
    # Bytes per token would put Hindi before English; the same content says otherwise.
    assert measured["hin_Deva"].bytes_per_token.value > measured[ENG].bytes_per_token.value
    assert measured["hin_Deva"].quality.high < 0.5
    assert measured["tha_Thai"].fallback_share.low > 0.25 > 0.01 > measured["deu_Latn"].fallback_share.high


def test_documents_of_parallel_text_are_compared_one_by_one(with_byte_pieces) -> None:
    lengths = [1, 4, 2, 8, 3]
    documents = {ENG: ["a" * n for n in lengths], HEB: ["a" * 2 * n for n in lengths]}
    twice = tokenization(documents, with_byte_pieces, parallel=True)[HEB].tokens_per_sentence_ratio
    assert (twice.value, twice.low, twice.high) == pytest.approx((2, 2, 2))


def test_without_the_same_content_there_is_no_ratio(with_byte_pieces) -> None:
    documents = {HEB: ["a", "b", "ab", "aab", "bb", "bbb"], ZHO: ["a", "ab", "ab", "aa", "b", "a"]}
    for parallel, reason in ((False, "not parallel"), (True, "the reference language eng_Latn")):
        measured = tokenization(documents, with_byte_pieces, parallel=parallel)[HEB]
        assert measured.tokens_per_sentence_ratio is measured.quality is None
        assert reason in measured.no_ratio
    assert tokenization(documents, with_byte_pieces, parallel=True, reference="he")[ZHO].no_ratio is None


def test_a_share_of_one_document_has_bounds(with_byte_pieces) -> None:
    documents = ["ab" * n for n in (3, 4, 5, 6, 7)] + ["ab€"]
    share = tokenization({ENG: documents}, with_byte_pieces, parallel=False)[ENG].fallback_share
    assert share.value == pytest.approx(3 / (3 + 4 + 5 + 6 + 7 + 4))
    assert share.low == 0  # a third of all resamples do not hold the document
    assert share.value < share.high < 0.75


def test_the_interval_is_that_of_all_resamples(embedded) -> None:
    documents = udhr([ENG]).evaluation[ENG][:5]
    size = np.array([len(text.encode()) for text in documents])
    tokens = np.array([len(embedded.tokenize(text)) for text in documents])
    drawn = np.array(list(product(range(5), repeat=5)))
    values = size[drawn].sum(axis=1) / tokens[drawn].sum(axis=1)
    # t(4) at .9 is 1.5332, times √(5/4) is 1.7142, Φ of which is .95675
    limits = np.quantile(values, (1 - 0.95675, 0.95675))
    interval = tokenization({ENG: documents}, embedded, parallel=False, confidence=0.8)[ENG].bytes_per_token
    assert (interval.low, interval.high) == pytest.approx(tuple(limits), abs=0.03 * (limits[1] - limits[0]))


def test_data_is_json_and_the_same_again(with_byte_pieces) -> None:
    documents = {ENG: ["a", "b€", "ab", "aab", "bb"], HEB: ["a", "ab€", "ab", "aa", "b"]}
    once, again = (tokenization(documents, with_byte_pieces, parallel=True)[HEB].as_data() for _ in range(2))
    assert json.dumps(once) == json.dumps(again)
    assert once["tokens"] == 1 + 4 + 1 + 2 + 1
    assert once["quality"]["value"] == 1 / once["tokens_per_sentence_ratio"]["value"]


@pytest.mark.parametrize("few", [1, 4])
def test_few_documents_have_no_interval_and_leave_the_others_as_they_are(few, with_byte_pieces) -> None:
    documents = {ENG: ["ab", "b", "abab", "aab", "bba", "ba"]}
    alone = tokenization(documents, with_byte_pieces, parallel=False)[ENG]
    measured = tokenization(documents | {HEB: ["\u05d0b", "ab", "b", "a"][:few]}, with_byte_pieces, parallel=False)
    assert measured[ENG] == alone
    assert not measured[HEB].bytes_per_token.bounded
    assert measured[HEB].bytes_per_token.n == few
    assert measured[HEB].as_data()["bytes_per_token"]["low"] is None
    assert measured[HEB].fallback_share.value > 0


def test_the_quality_of_parallel_text_without_intervals(with_byte_pieces) -> None:
    measured = tokenization({ENG: ["ab", "b"], HEB: ["abab", "bb"]}, with_byte_pieces, parallel=True)[HEB]
    assert measured.tokens_per_sentence_ratio.value == 2.0
    assert (measured.quality.value, measured.quality.bounded) == (0.5, False)
