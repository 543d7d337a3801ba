"""A base file for llama-perplexity, read number by number as llama.cpp does, against transformers."""

import struct
import tempfile

import numpy as np
import pytest
import torch

from fairbits.evaluation.llama_cpp.base_file import base_file_size, encode_logits, write_base_file
from fairbits.evaluation.reference import ReferenceModel
from fairbits.forward.chunks import chunk_corpus, predicted_in_chunk
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import TextRequest
from fairbits.text.reading import open_corpus

LENGTH = 33


def read_row(data: bytes, at: int, vocabulary: int) -> tuple[list[float], float]:
    """Returns the log-probabilities of a row, and the distance between two codes."""
    scale, least = struct.unpack_from("<ff", data, at)
    codes = struct.unpack_from(f"<{vocabulary}H", data, at + 8)
    return [scale * code + least for code in codes], scale


@pytest.fixture(scope="module")
def written():
    checkpoint = Checkpoint("embedded:tiny")
    request = TextRequest("evaluation", 60, LENGTH)
    text = chunk_corpus(checkpoint, open_corpus(None, ["eng", "heb"]), request=request)
    predicted = predicted_in_chunk(LENGTH)
    windows = [window for window in text.windows if text.lang[window.document] == "heb_Hebr"]
    first = (len(text.windows) - len(windows)) * predicted
    with ReferenceModel.on_text(checkpoint, text) as answers, tempfile.TemporaryFile() as file:
        positions = range(first, first + len(windows) * predicted)
        stored = write_base_file(file, answers, windows, positions, device="cpu")
        file.seek(0)
        data = file.read()
    return checkpoint, windows, data, stored


def test_every_number_is_the_log_probability_that_transformers_computes(written) -> None:
    checkpoint, windows, data, stored = written
    model, vocabulary = checkpoint.load(), checkpoint.config.vocab_size
    assert data[:8] == b"_logits_"
    assert struct.unpack_from("<iii", data, 8) == (LENGTH, vocabulary, len(windows))
    assert len(data) == base_file_size(len(windows), LENGTH, vocabulary, predicted=LENGTH - 1 - LENGTH // 2)
    at, number = 20, 0
    for window in windows:
        assert list(struct.unpack_from(f"<{LENGTH}i", data, at)) == window.main.ids
        at += 4 * LENGTH
    for window in windows:
        with torch.no_grad():
            logits = model(torch.tensor([window.main.ids])).logits[0].double()
        for t in range(LENGTH // 2, LENGTH - 1):
            row, scale = read_row(data, at, vocabulary)
            at += 8 + 2 * (vocabulary + vocabulary % 2)
            expected = logits[t].log_softmax(0).numpy()
            kept = expected > expected.max() - 16
            np.testing.assert_allclose(np.array(row)[kept], expected[kept], rtol=0, atol=scale / 2 + 2e-5)
            token = window.main.ids[t + 1]
            assert stored.nll[number] == pytest.approx(-expected[token], abs=2e-5)
            assert stored.nll_stored[number] == pytest.approx(-row[token], abs=2e-5)
            number += 1
    assert at == len(data)
    assert number == len(stored.nll)


@pytest.mark.parametrize("vocabulary", [50, 51])
def test_peaked_rows_are_cut_16_below_the_first_choice_and_the_error_is_stated(vocabulary: int) -> None:
    logits = 12 * torch.randn(20, vocabulary, generator=torch.Generator().manual_seed(0))
    logits[3] = 1.0  # all alike
    logits[4, 7] = logits[4].max()  # two first choices
    labels = torch.arange(20)
    rows, facts = encode_logits(logits, labels)
    log_p = logits.double().log_softmax(1).numpy()
    for i, row in enumerate(rows):
        read = np.array(read_row(row.tobytes(), 0, vocabulary)[0])
        floor = max(log_p[i].min(), log_p[i].max() - 16)
        np.testing.assert_allclose(read, log_p[i].clip(floor), rtol=0, atol=1.3e-4)
        used = read > -16
        kl = sum(np.exp(a) * (a - b) for a, b in zip(read[used], log_p[i][used], strict=True))
        assert facts[2, i] == pytest.approx(kl, abs=2e-6)
        assert facts[3, i] == pytest.approx(np.exp(log_p[i])[~used].sum(), rel=1e-4, abs=1e-12)
        assert facts[4, i] == (np.argmax(read) != logits[i].argmax())
        np.testing.assert_allclose(facts[:2, i], [-log_p[i, i], -read[i]], rtol=1e-5, atol=2e-5)
    assert facts[3].max() > 0
