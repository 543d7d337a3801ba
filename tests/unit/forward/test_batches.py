import numpy as np
import torch

from fairbits.forward.batches import batches
from fairbits.forward.windows import NO_LABEL, TokenizedText, Window, WindowPart


def causal(document, length):
    ids = list(range(10, 10 + length))
    return Window(document, WindowPart(ids, [False] + [True] * (length - 1), [*ids[1:], NO_LABEL]))


def text_of(*windows, padding=3):
    n = 1 + max(window.document for window in windows)
    lang = np.array(["eng", "heb"] * n)[:n]
    return TokenizedText(("eng", "heb"), lang, np.arange(n), np.ones(n), windows, padding)


def test_rows_are_padded_on_the_right_and_padding_is_no_text():
    (batch,) = batches(text_of(causal(0, 4), causal(1, 2)), positions=100)
    assert batch.document.tolist() == [1, 0]  # shortest first
    assert batch.inputs["input_ids"].tolist() == [[10, 11, 3, 3], [10, 11, 12, 13]]
    assert batch.inputs["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert batch.labels.tolist() == [[11, *[NO_LABEL] * 3], [11, 12, 13, NO_LABEL]]
    assert batch.main.real.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert batch.main.text.tolist() == [[0, 1, 0, 0], [0, 1, 1, 1]]
    assert batch.main.text.dtype == torch.float32
    assert batch.encoder is None
    assert batch.positions("encoder") is batch.positions("decoder") is batch.main


def test_two_stacks_are_padded_apart():
    short = Window(0, WindowPart([3], [False], [7]), WindowPart([5, 2], [True, False], [NO_LABEL] * 2))
    long = Window(
        1, WindowPart([3, 8], [False, True], [8, 9]), WindowPart([5, 6, 7, 2], [True] * 3 + [False], [NO_LABEL] * 4)
    )
    (batch,) = batches(text_of(long, short, padding=0), positions=8)
    assert batch.inputs["input_ids"].tolist() == [[5, 2, 0, 0], [5, 6, 7, 2]]
    assert batch.inputs["attention_mask"].tolist() == [[1, 1, 0, 0], [1] * 4]
    assert batch.inputs["decoder_input_ids"].tolist() == [[3, 0], [3, 8]]
    assert batch.inputs["decoder_attention_mask"].tolist() == [[1, 0], [1, 1]]
    assert batch.labels.tolist() == [[7, NO_LABEL], [8, 9]]
    assert batch.positions("decoder").text.tolist() == [[0, 0], [0, 1]]
    assert batch.positions("encoder").text.tolist() == [[1, 0, 0, 0], [1, 1, 1, 0]]


def test_no_batch_is_larger_than_allowed_but_for_a_single_window():
    lengths = [9, 2, 2, 5, 3, 30, 2, 4]
    windows = [causal(i, length) for i, length in enumerate(lengths)]
    all_batches = list(batches(text_of(*windows), positions=12))
    shapes = [tuple(batch.labels.shape) for batch in all_batches]
    assert shapes == [(4, 3), (2, 5), (1, 9), (1, 30)]
    order = [document for batch in all_batches for document in batch.document.tolist()]
    assert [lengths[i] for i in order] == sorted(lengths)
    assert sorted(order) == list(range(8))  # every window once
    assert order[:3] == [1, 2, 6]  # equal lengths in the order they came
