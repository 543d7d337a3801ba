"""The search for a mix of languages: its steps, its halves of text, and that it keeps equal weights unless sure."""

from collections.abc import Callable

import numpy as np
import pytest

from fairbits.api.make_plan import plan
from fairbits.core.errors import InputError
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.quantization.search.language_weights import halves, is_better, minimax_mix, update_weights
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.included_texts import udhr

LANGUAGES = ("eng_Latn", "heb_Hebr")
SMALL = {"tokens": 600, "sequence": 32}


@pytest.fixture(scope="module")
def llama(reading_model: Callable[[str], Checkpoint]) -> Checkpoint:
    return reading_model("llama")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Short documents of two languages, which are no translations of each other."""
    source = udhr(LANGUAGES)
    cut = {code: [part for text in texts for part in text.split(". ")] for code, texts in source.calibration.items()}
    texts = {code: [part[:60] for part in parts if len(part) > 20][:24] for code, parts in cut.items()}
    return Corpus("parts", texts, {})


@pytest.fixture(scope="module")
def text(llama: Checkpoint, corpus: Corpus) -> TokenizedText:
    return tokenize_corpus(llama, corpus, request=TextRequest(**SMALL))


def test_weights_move_to_the_damaged() -> None:
    pi = update_weights(np.array([0.2, 0.5, 0.3]), np.array([1.0, 1.0, 4.0]), rate=0.5, least=0.05)
    assert pi.sum() == pytest.approx(1)
    assert pi[2] > 0.3
    assert pi.min() >= 0.05
    ratio = (pi[2] - 0.05) / (pi[1] - 0.05)
    assert ratio == pytest.approx(0.3 / 0.5 * np.exp(0.5 * (4 - 1) / 2))  # the mean damage is 2


def test_equal_damage_moves_nothing() -> None:
    pi = np.array([0.5, 0.5])
    for damage in ([2.0, 2.0], [0.0, 0.0], [-1.0, -1.0]):
        assert update_weights(pi, np.array(damage), rate=1.0, least=0.1) == pytest.approx(pi)
    assert update_weights(pi, np.array([1.0, -3.0]), rate=1.0, least=0.1)[0] > 0.5  # whatever the sign of the mean


def test_halves_share_no_document(text: TokenizedText) -> None:
    fit, check = halves(text, seed=0)
    assert len(fit.windows) + len(check.windows) == len(text.windows)
    for code in LANGUAGES:
        counts = [(half.lang == code).sum() for half in (fit, check)]
        assert abs(counts[0] - counts[1]) <= 1
        assert sum(counts) == (text.lang == code).sum()
    languages = {tuple(window.main.ids): text.lang[window.document] for window in text.windows}
    for half in (fit, check):
        assert all(languages[tuple(window.main.ids)] == half.lang[window.document] for window in half.windows)
    assert not set(fit.document.tolist()) & set(check.document.tolist())
    assert halves(text, seed=1)[0].document.tolist() != fit.document.tolist()


def test_parallel_documents_stay_together(llama: Checkpoint) -> None:
    text = tokenize_corpus(llama, udhr(LANGUAGES), request=TextRequest(tokens=400, sequence=32))
    for half in halves(text, seed=0):
        one, other = (set(half.document[half.lang == code].tolist()) for code in LANGUAGES)
        assert one == other


def test_a_search_is_recorded_and_leaves_weights_equal_unless_sure(llama: Checkpoint, corpus: Corpus) -> None:
    seen: list[tuple[str, float, float]] = []
    planned = plan(
        llama,
        text=corpus,
        mix="minimax",
        rounds=1,
        bits=4,
        group=16,
        progress=lambda *call: seen.append(call),
        **SMALL,
    )
    rounds = planned.settings["rounds"]
    assert len(rounds) == 2
    assert seen == sorted(seen)
    assert {stage for stage, _, _ in seen} == {"trying language weights"}
    assert seen[-1][1] == seen[-1][2]
    assert rounds[0]["pi"] == dict.fromkeys(LANGUAGES, 0.5)
    assert rounds[1]["pi"] != rounds[0]["pi"]
    worst = [max(entry["damage"].values()) for entry in rounds]
    best = int(np.argmin(worst))
    taken = {code: pytest.approx(value, abs=1e-5) for code, value in planned.languages.items()}
    if any("stay equal" in note for note in planned.notes):
        assert taken == rounds[0]["pi"]
    else:
        assert best == 1
        assert taken == rounds[1]["pi"]


def test_better_means_better_than_noise(text: TokenizedText) -> None:
    rng = np.random.default_rng(0)
    predicted = np.full(len(text.lang), 20.0)
    old = 20 * (0.1 + 0.2 * text.language_of + 0.05 * rng.standard_normal(len(predicted)))
    noisy = 20 * (0.1 + 0.2 * text.language_of + 0.05 * rng.standard_normal(len(predicted)))
    options = {"predicted": predicted, "text": text, "seed": 0}
    assert is_better(old - 2 * text.language_of, old, **options)
    assert not is_better(old + 2 * text.language_of, old, **options)
    assert not is_better(old - 2 * (text.language_of == 0), old, **options)  # the better language is not the worst
    assert not is_better(noisy, old, **options)
    assert not is_better(old, old, **options)


def test_too_few_documents_are_refused_before_anything_is_quantized(llama: Checkpoint, corpus: Corpus) -> None:
    few = Corpus("few", {code: texts[:6] for code, texts in corpus.calibration.items()}, {})
    base = plan(llama, text=few, group=16, **SMALL)
    with pytest.raises(InputError, match="eng_Latn has 6 documents; half of them must be at least 5"):
        minimax_mix(llama, base, text=tokenize_corpus(llama, few, request=TextRequest(**SMALL)))
