import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.forward.tokenize import estimated_size_notes, tokenize_corpus
from fairbits.forward.windows import NO_LABEL, Cutter, EncodedDocument, cutter_for, tokenize_documents, unigrams
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import Corpus, TextRequest

CAUSAL = Cutter("causal", 5, 0, start=1, end=None, mask=None)
NO_START = Cutter("causal", 5, 0, start=None, end=None, mask=None)
MASKED = Cutter("masked", 10, 0, start=1, end=2, mask=4)
COMPLETION = Cutter("completion", 6, 0, start=3, end=2, mask=None)


def letters(texts):
    """A token per letter."""
    return [
        EncodedDocument([ord(letter) for letter in text], np.array([len(letter.encode()) for letter in text]))
        for text in texts
    ]


def read(documents, *, tokens, parallel=False, seed=0, cut=CAUSAL):
    return tokenize_documents(
        documents, letters, cut, request=TextRequest(tokens=tokens, seed=seed), parallel=parallel, padding=0
    )


def test_causal_windows_begin_with_the_start_token_and_predict_all_text():
    windows = list(CAUSAL.windows(7, list(range(10, 19))))
    assert [window.main.ids for window in windows] == [[1, 10, 11, 12, 13], [1, 14, 15, 16, 17], [1, 18]]
    assert windows[2].main.labels == [18, NO_LABEL]
    assert windows[0].main.text == [False, True, True, True, True]
    assert {window.document for window in windows} == {7}
    predicted = [label for window in windows for label in window.main.labels if label != NO_LABEL]
    assert predicted == list(range(10, 19))


def test_without_a_start_token_the_first_of_a_window_is_not_predicted():
    first, second = NO_START.windows(0, list(range(10, 17)))
    assert first.main.ids == [10, 11, 12, 13, 14]
    assert first.main.labels == [11, 12, 13, 14, NO_LABEL]
    assert all(first.main.text)
    assert second.main.labels == [16, NO_LABEL]


def test_masked_windows_hide_a_share_of_the_text_and_ask_for_it():
    ids = list(range(100, 900))
    windows = list(MASKED.windows(2, ids))
    hidden = 0
    for number, window in enumerate(windows):
        piece = ids[8 * number : 8 * number + 8]
        part = window.main
        assert part.ids[0] == 1
        assert part.ids[-1] == 2
        assert part.text == [False] + [True] * 8 + [False]
        assert part.labels[0] == part.labels[-1] == NO_LABEL
        shown, labels = part.ids[1:-1], part.labels[1:-1]
        for token, seen, label in zip(piece, shown, labels, strict=True):
            assert (seen, label) in {(token, NO_LABEL), (4, token)}
        assert any(label != NO_LABEL for label in labels)
        hidden += sum(label != NO_LABEL for label in labels)
    assert 0.15 < hidden / len(ids) < 0.32  # 15 % and at least one of 8
    assert windows == list(MASKED.windows(2, ids))
    assert [window.main for window in windows] != [window.main for window in MASKED.windows(3, ids)]


def test_completion_gives_half_to_the_encoder_and_asks_for_the_other():
    first, second = COMPLETION.windows(0, list(range(10, 23)))
    assert first.encoder.ids == [10, 11, 12, 13, 2]
    assert first.encoder.text == [True] * 4 + [False]
    assert first.main.ids == [3, 14, 15, 16]
    assert first.main.text == [False, True, True, True]
    assert first.main.labels == [14, 15, 16, 17]
    assert second.encoder.ids == [18, 19, 2]
    assert second.main.labels == [20, 21, 22]
    assert max(first.length, second.length) <= 6
    assert list(COMPLETION.windows(0, [5])) == []  # one token has no second half


def test_cutters_follow_the_tokenizer(reading_model):
    def make_cutter(checkpoint, task, start=None):
        return cutter_for(checkpoint.tokenizer(), task, length=8, seed=5, start=start)

    assert make_cutter(Checkpoint("embedded:tiny"), "causal") == Cutter("causal", 8, 5, 1, None, None)
    assert make_cutter(reading_model("qwen2"), "causal") == Cutter("causal", 8, 5, None, None, None)
    assert make_cutter(reading_model("xlmr"), "masked") == Cutter("masked", 8, 5, 1, 2, 0)
    assert make_cutter(reading_model("mt5"), "completion", start=3) == Cutter("completion", 8, 5, 3, 2, None)
    with pytest.raises(InputError, match="no mask token"):
        make_cutter(reading_model("llama"), "masked")
    with pytest.raises(InputError, match="decoder_start_token_id"):
        make_cutter(reading_model("mt5"), "completion")


def test_the_budget_ends_with_whole_documents_of_each_language():
    documents = {"eng": tuple("abcdefghij" for _ in range(40)), "heb": tuple("abcde" for _ in range(40))}
    text = read(documents, tokens=95)
    counts = {code: int((text.lang == code).sum()) for code in documents}
    assert counts == {"eng": 10, "heb": 19}
    assert text.document.tolist() == list(range(29))  # nothing is parallel
    assert text.languages == ("eng", "heb")
    assert text.language_of.tolist() == [0] * 10 + [1] * 19


def test_documents_are_drawn_from_the_seed():
    documents = {"eng": tuple(chr(97 + i) * 10 for i in range(26))}

    def drawn(seed):
        return {window.main.labels[0] for window in read(documents, tokens=80, seed=seed).windows}

    assert drawn(0) == drawn(0)
    assert len(drawn(0)) == 8
    assert drawn(0) != drawn(1)
    assert drawn(0) != {97 + i for i in range(8)}


def taken(text):
    """How many tokens of each document are looked at."""
    counts = np.zeros(len(text.lang), dtype=int)
    for window in text.windows:
        counts[window.document] += sum(window.main.text)
    return counts


def test_at_least_five_documents_however_small_the_budget():
    text = read({"eng": tuple(letter * 100 for letter in "abcdefgh")}, tokens=50)
    assert taken(text).tolist() == [10] * 5
    np.testing.assert_allclose(text.size_bytes, 10)  # a tenth of 100 bytes


def test_long_documents_are_cut_to_what_short_ones_leave_of_the_budget():
    text = read({"eng": ("ab", "c" * 40, "d" * 400, "e" * 400, "f" * 400)}, tokens=342)
    assert sorted(taken(text).tolist()) == [2, 40, 100, 100, 100]
    np.testing.assert_allclose(text.size_bytes, taken(text))


def test_many_documents_rather_than_long_ones():
    text = read({"eng": tuple("a" * 1000 for _ in range(20))}, tokens=1280)
    assert taken(text).tolist() == [128] * 10


def test_parallel_documents_are_taken_whole():
    contents = ("a" * 300, *"bcdefg")
    text = read({"eng": contents, "heb": contents}, tokens=16, parallel=True)
    whole = [len(contents[number]) for number in text.document]
    assert taken(text).tolist() == whole
    assert text.size_bytes.tolist() == whole


def test_sizes_are_bytes_of_utf8():
    text = read({"heb": ("שלום", "אב", "א", "abc", "ש")}, tokens=1000)
    assert sorted(text.size_bytes.tolist()) == [2, 2, 3, 4, 8]


def test_of_cut_documents_the_bytes_of_the_predicted_tokens_count():
    documents = {"heb": tuple("שלום" * 3 + letter * 100 for letter in "abcdefgh")}
    assert read(documents, tokens=75).size_bytes.tolist() == [12 * 2 + 3] * 5
    whole, cut = (read(documents, tokens=tokens, cut=NO_START) for tokens in (10**6, 75))
    # the first token of every window of 5 has no prediction
    assert whole.size_bytes.tolist() == [12 * 2 + 100 - (2 + 2 + 2) - 20] * 8
    assert cut.size_bytes.tolist() == [12 * 2 + 3 - 3 * 2] * 5
    assert whole.estimated == cut.estimated == 0


@pytest.mark.parametrize(("cut", "estimated"), [(CAUSAL, 5), (NO_START, 5), (MASKED, 5), (COMPLETION, 5)])
def test_without_spans_the_bytes_of_cut_documents_are_estimated(cut, estimated):
    def encode(texts):
        return [EncodedDocument([ord(letter) for letter in text], None) for text in texts]

    documents = {"heb": tuple("שלום" * 3 + letter * 100 for letter in "abcdefgh")}
    text = tokenize_documents(documents, encode, cut, request=TextRequest(tokens=75), parallel=False, padding=0)
    predicted = np.zeros(len(text.lang))
    for window in text.windows:
        predicted[window.document] += sum(label != NO_LABEL for label in window.main.labels)
    np.testing.assert_allclose(text.size_bytes, (24 + 100) * predicted / 112)
    assert text.estimated == estimated
    whole = tokenize_documents(documents, encode, CAUSAL, request=TextRequest(tokens=10**6), parallel=False, padding=0)
    assert whole.size_bytes.tolist() == [124] * 8
    assert whole.estimated == 0
    assert estimated_size_notes(whole.estimated, 8) == ()
    assert "in 5 of 8 documents" in estimated_size_notes(text.estimated, 8)[0]


def test_parallel_documents_are_taken_in_all_languages_or_in_none():
    contents = [chr(97 + i) for i in range(12)]
    documents = {"eng": tuple(c * 4 for c in contents), "heb": tuple(c * 12 for c in contents)}
    text = read(documents, tokens=64, parallel=True)
    numbers = {code: text.document[text.lang == code].tolist() for code in documents}
    assert numbers["eng"] == numbers["heb"]
    assert len(numbers["eng"]) == 8  # the mean language needs 8 for each
    for window in text.windows:  # what is called document 3 is document 3
        assert window.main.labels[0] == ord(contents[text.document[window.document]])


def test_parallel_documents_that_a_language_lacks_are_left_out_everywhere():
    def encode(texts):
        return [EncodedDocument([] if text == "silent" else [5, 6], None) for text in texts]

    documents = {"eng": ("spoken",) * 7, "heb": ("spoken", "silent", *("spoken",) * 5)}
    text = tokenize_documents(documents, encode, CAUSAL, request=TextRequest(tokens=1000), parallel=True, padding=0)
    for code in documents:
        assert sorted(text.document[text.lang == code].tolist()) == [0, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("parallel", [False, True])
def test_too_few_documents_are_refused(parallel):
    with pytest.raises(InputError, match="heb has 4 documents; each language needs at least 5"):
        read({"eng": ("ab",) * 4 + ("c",), "heb": ("ab",) * 4}, tokens=100, parallel=parallel)


def test_one_document_is_enough_where_no_interval_is_needed():
    documents = {"eng": ("ab",) * 6, "heb": ("ab",)}
    request = TextRequest(tokens=100)

    def encode(texts):
        return [EncodedDocument([5, 6], None) for _ in texts]

    text = tokenize_documents(documents, encode, CAUSAL, request=request, parallel=False, padding=0, least=1)
    assert [(text.lang == code).sum() for code in documents] == [6, 1]
    with pytest.raises(InputError, match="heb has 0 documents; each language needs at least 1"):
        tokenize_documents(documents | {"heb": ()}, encode, CAUSAL, request=request, parallel=False, padding=0, least=1)


@pytest.mark.parametrize("parallel", [False, True])
def test_documents_without_tokens_do_not_count(parallel):
    def encode(texts):
        return [EncodedDocument([] if text == "silent" else [5, 6], None) for text in texts]

    documents = {"eng": ("spoken",) * 6, "heb": ("spoken",) * 4 + ("silent",) * 2}
    with pytest.raises(InputError, match="at least 5"):
        tokenize_documents(documents, encode, CAUSAL, request=TextRequest(tokens=100), parallel=parallel, padding=0)


def test_unigrams_count_what_is_predicted():
    text = read({"eng": ("aab",) * 5, "heb": ("bc",) * 6}, tokens=1000)
    counts = unigrams(text)
    assert counts.shape == (2, ord("c") + 1)
    assert {letter: counts[:, ord(letter)].tolist() for letter in "abc"} == {"a": [10, 0], "b": [5, 6], "c": [0, 6]}
    assert counts.sum() == 5 * 3 + 6 * 2
    without_start = unigrams(read({"eng": ("aab",) * 5}, tokens=1000, cut=NO_START))
    assert without_start[0, [ord("a"), ord("b")]].tolist() == [5, 5]


TEXT = {"eng": [f"Sentence number {i} is about the weather of that day." for i in range(8)]}


def test_the_task_and_the_longest_input_follow_the_model(reading_model):
    tasks = {name: reading_model(name).task for name in ("llama", "gpt2", "xlmr", "mt5")}
    assert tasks == {"llama": "causal", "gpt2": "causal", "xlmr": "masked", "mt5": "completion"}
    assert reading_model("gpt2").longest_input == 64
    assert reading_model("xlmr").longest_input == 68 - 4  # positions are counted from behind the padding token, 3
    assert reading_model("mt5").longest_input > 10**6
    for name in ("gpt2", "xlmr"):
        long = {"eng": [" ".join(TEXT["eng"] * 2)] * 5}
        text = tokenize_corpus(reading_model(name), Corpus("weather", long, {}), request=TextRequest(tokens=2000))
        assert max(window.length for window in text.windows) == 64


def test_both_splits_can_be_read():
    corpus = Corpus("weather", TEXT, {"eng": ["Rain."] * 5})
    text = tokenize_corpus(Checkpoint("embedded:tiny"), corpus, request=TextRequest("evaluation"))
    assert text.size_bytes.tolist() == [5.0] * 5
    assert text.padding == 3


@pytest.mark.parametrize("family", ["llama", "xlmr", "mt5"])
def test_a_tokenizer_of_another_model_is_refused(family, reading_model, monkeypatch):
    checkpoint = reading_model(family)
    monkeypatch.setattr(checkpoint.config, "vocab_size", 100)
    with pytest.raises(InputError, match="vocabulary of 100"):
        tokenize_corpus(checkpoint, Corpus("weather", TEXT, {}), request=TextRequest(tokens=64))


def test_a_token_beyond_the_vocabulary_is_found_wherever_it_stands(reading_model, monkeypatch):
    """In the last place nothing but the label holds it; the encoder's text is not in the decoder's."""
    checkpoint = reading_model("mt5")
    corpus = Corpus("weather", {"eng": ["Rain on the old roof"] * 5}, {})
    text = tokenize_corpus(checkpoint, corpus)
    parts = [window.main.ids + window.main.labels + window.encoder.ids for window in text.windows]
    monkeypatch.setattr(checkpoint.config, "vocab_size", max(map(max, parts)))
    with pytest.raises(InputError, match=f"gives the id {max(map(max, parts))}"):
        tokenize_corpus(checkpoint, corpus)
