"""Names of AutoRound's policies, and the rows that it is given."""

import sys
from pathlib import Path

import numpy as np
import pytest

import real
from fairbits import Checkpoint
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import TokenizedText, Window, WindowPart
from fairbits.text.corpus import TextRequest
from fairbits.text.included_texts import udhr
from real_autoround import Recipe, carry_out, rows_of, title_of

START = 1


def text_of(documents: dict[str, list[list[int]]], *, start: bool = True) -> TokenizedText:
    """Returns a text whose documents have these tokens, one window each."""
    langs = [code for code, sequences in documents.items() for _ in sequences]
    tokens = [ids for sequences in documents.values() for ids in sequences]
    before = [START] if start else []
    parts = [
        WindowPart(before + ids, [False] * len(before) + [True] * len(ids), [-100] * len(before + ids))
        for ids in tokens
    ]
    windows = tuple(Window(i, part) for i, part in enumerate(parts))
    numbers = np.arange(len(langs))
    return TokenizedText(tuple(documents), np.array(langs), numbers, np.ones(len(langs)), windows, padding=0)


@pytest.mark.parametrize(
    ("policy", "recipe", "title"),
    [
        ("autoround@all", Recipe(), "AutoRound, 200 iterations, all text"),
        ("autoround", Recipe(), "AutoRound, 200 iterations"),
        (
            "autoround:iterations=1000:alg_ext@all",
            Recipe(1000, alg_ext=True),
            "AutoRound, 1,000 iterations, extended, all text",
        ),
        ("autoround:float32@all", Recipe(float32=True), "AutoRound, 200 iterations, float32, all text"),
        ("gptq:mix=english@all", None, None),
    ],
)
def test_the_recipe_and_the_title_of_a_policy(policy: str, recipe: Recipe | None, title: str | None) -> None:
    assert Recipe.of(policy) == recipe
    assert title_of(policy) == title


@pytest.mark.parametrize(
    "policy", ["autoround:best", "autoround:alg_ext:alg_ext", "autoround:iterations=1:iterations=2"]
)
def test_an_unknown_word_is_refused(policy: str) -> None:
    with pytest.raises(ValueError, match="at most once"):
        Recipe.of(policy)


def test_autoround_has_the_text_and_size_of_gptq_and_seeds() -> None:
    item, peer = (real.Item("embedded:tiny", "4:128", policy, 0) for policy in ("autoround@all", "gptq@all"))
    assert (item.variant, item.tokens(450)) == (peer.variant, peer.tokens(450))
    assert (item.has_seeds, peer.has_seeds) == (True, False)


def test_rows_hold_every_token_of_a_language_and_take_turns() -> None:
    text = text_of({"eng": [[10, 11], [12], [13, 14]], "heb": [[20, 21, 22]]})
    assert rows_of(text, 4) == [[START, 10, 11, 12], [START, 20, 21, 22], [START, 13, 14, 10]]


def test_rows_of_a_tokenizer_without_a_start_token() -> None:
    assert rows_of(text_of({"eng": [[10, 11], [12]]}, start=False), 2) == [[10, 11], [12, 10]]


def test_rows_of_real_text_have_one_length_and_all_tokens() -> None:
    checkpoint = Checkpoint("embedded:tiny")
    text = tokenize_corpus(checkpoint, udhr(["eng", "heb"]), request=TextRequest("calibration", 300, 64))
    rows = rows_of(text, 64)
    assert {len(row) for row in rows} == {64}
    expected = {token for window in text.windows for token in window.main.ids}
    assert {token for row in rows for token in row} == expected


@pytest.mark.long
def test_a_worker_gives_back_weights_on_a_grid() -> None:
    """Runs where AutoRound is installed."""
    pytest.importorskip("auto_round")
    checkpoint = Checkpoint("embedded:tiny")
    modules = [linear.module for linear in checkpoint.architecture.linears.values()][:1]
    job = {
        "model": str(checkpoint.directory),
        "modules": modules,
        "samples": [[1] * 16] * 8,
        "bits": 4,
        "group": 128,
        "threads": 1,
        "device": "cpu",
        "options": {"iterations": 1},
    }
    result, weights = carry_out(job, Path(sys.executable))
    assert result["seconds"] > 0
    assert all(len(np.unique(row)) <= 16 for row in weights[modules[0]][:, :128].numpy())
