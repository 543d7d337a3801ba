import numpy as np
import pytest

from fairbits.forward import tokenize
from fairbits.forward.tokenize import count_tokens, short_text_notes, tokenize_corpus
from fairbits.forward.windows import TokenizedText, Window, WindowPart
from fairbits.text.corpus import Corpus, TextRequest

LENGTHS = {"eng_Latn": 80, "fin_Latn": 95, "heb_Hebr": 20, "fra_Latn": 50, "deu_Latn": 60}


def text_of(lengths: dict[str, int]) -> TokenizedText:
    """One document per language, behind a start token."""
    windows = [
        Window(i, WindowPart([1] * (n + 1), [False] + [True] * n, [1] * n + [-100]))
        for i, n in enumerate(lengths.values())
    ]
    lang = np.array(list(lengths))
    return TokenizedText(tuple(lengths), lang, np.arange(len(lang)), np.ones(len(lang)), tuple(windows), 0)


def test_the_shortest_are_named_and_the_others_counted(monkeypatch) -> None:
    assert count_tokens(text_of(LENGTHS)) == LENGTHS
    (note,) = short_text_notes(text_of(LENGTHS), TextRequest("evaluation", tokens=100), parallel=False)
    assert note == (
        "evaluation text is shorter than the budget: heb_Hebr 20 of 100 tokens, fra_Latn 50, deu_Latn 60, eng_Latn 80"
    )
    monkeypatch.setattr(tokenize, "NAMED", 3)
    (note,) = short_text_notes(text_of(LENGTHS), TextRequest("evaluation", tokens=100), parallel=False)
    assert note.endswith("deu_Latn 60 and 1 more")
    (note,) = short_text_notes(text_of(LENGTHS), TextRequest(tokens=60), parallel=False)
    assert note == "calibration text is shorter than the budget: heb_Hebr 20 of 60 tokens, fra_Latn 50"
    assert short_text_notes(text_of(LENGTHS), TextRequest("evaluation", tokens=22), parallel=False) == ()


def test_of_parallel_text_the_mean_language_counts() -> None:
    assert short_text_notes(text_of(LENGTHS), TextRequest("evaluation", tokens=61), parallel=True) == ()  # their mean
    assert short_text_notes(text_of(LENGTHS), TextRequest("evaluation", tokens=100), parallel=True) != ()


@pytest.mark.parametrize("family", ["llama", "qwen2", "xlmr", "mt5"])
def test_all_tokens_count_whatever_must_be_predicted(reading_model, family) -> None:
    sentences = [f"On day {i} the wind came from the north." for i in range(6)]
    checkpoint = reading_model(family)
    text = tokenize_corpus(checkpoint, Corpus("weather", {}, {"eng": sentences}), request=TextRequest("evaluation"))
    ids = checkpoint.tokenizer()(sentences, add_special_tokens=False)["input_ids"]
    assert count_tokens(text) == {"eng_Latn": sum(map(len, ids))}
