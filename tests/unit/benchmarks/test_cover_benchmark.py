"""benchmarks/cover.py and own_samples.py: sets of languages, prompts, and tables of known numbers."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import cover_tables
import samples_tables
from cover_sets import largest, random_sets
from fairbits.text.language_codes import language_from_code
from language_trial import Results
from own_samples import first_words, prompts_of

LANGUAGES = ("amh_Ethi", "deu_Latn", "eng_Latn", "fra_Latn", "heb_Hebr")


@pytest.mark.parametrize(("size", "draws"), [(2, 5), (3, 5), (4, 10)])
def test_random_sets_have_every_language_equally_often(size: int, draws: int) -> None:
    sets = random_sets(LANGUAGES, size, draws=draws, seed=0)
    assert {len(set(each)) for each in sets} == {size}
    assert set(Counter(code for each in sets for code in each).values()) == {size * draws // len(LANGUAGES)}
    assert sets == random_sets(LANGUAGES, size, draws=draws, seed=0)
    assert sets != random_sets(LANGUAGES, size, draws=draws, seed=1)


def test_the_largest_are_those_with_most_training_text_or_pages() -> None:
    assert largest(LANGUAGES, 2, model="embedded:tiny") == ("eng_Latn", "fra_Latn")
    assert largest(LANGUAGES, 2, model="gemma-3-270m") == ("eng_Latn", "deu_Latn")


def test_prompts_need_a_name_or_a_few_words() -> None:
    german, sections = language_from_code("deu_Latn"), ("Alle Menschen sind frei", "Jeder hat Anspruch")
    assert prompts_of("name", german, sections, 2) == ["Deutsch", "Deutsch"]
    assert prompts_of("words", german, sections, 3) == ["Alle Menschen", "Jeder hat", "Alle Menschen"]
    assert prompts_of("free", german, sections, 1) == [""]
    assert first_words("short") == "short"


def results(kl: dict[str, list[float]], inside: dict[str, list[str]]) -> Results:
    """Returns results of two languages with six documents each, all of whose documents have the same KL."""
    lang = [code for code in ("deu_Latn", "eng_Latn") for _ in range(6)]
    noise = np.tile(np.linspace(-0.01, 0.01, 6), 2)
    sets = {
        name: {
            "size": 1,
            "languages": inside[name],
            "calibration_tokens": 100,
            "kl": (np.repeat(values, 6) * (100 + 100 * noise)).tolist(),
        }
        for name, values in kl.items()
    }
    return Results("model", "4:64", {}, ["declaration"] * 12, lang, list(range(6)) * 2, [100.0] * 12, sets=sets)


def test_what_a_language_loses_is_unseen_less_seen(tmp_path: Path) -> None:
    kl = {"random 0": [0.1, 0.4], "random 1": [0.3, 0.2], "largest": [0.2, 0.2]}
    inside = {"random 0": ["deu_Latn"], "random 1": ["eng_Latn"], "largest": ["eng_Latn"]}
    found = results(kl, inside)
    found.save(tmp_path / "found.json")
    text = cover_tables.table(Results.load(tmp_path / "found.json"))
    (row,) = [line for line in text.splitlines() if line.startswith("| 2 |")]
    assert row.startswith("| 2 | 2 | .1500 | .3500 | 2.33 | .2000 [")
    assert row.endswith("| 2.00 eng | 3.00 deu | 2 | 2 |")
    (row,) = [line for line in text.splitlines() if line.startswith("| largest")]
    assert row.startswith("| largest: eng | .2000 (0) | .2000 (0) | .2000 (0) | .2000 (0) | .3000 | .67 | −.1000 [")


def test_samples_are_compared_with_the_text_that_is_evaluated() -> None:
    found = results({"declaration 0": [0.1, 0.2], "words 0": [0.1, 0.3]}, {"declaration 0": [], "words 0": []})
    rows = [line.split(" | ") for line in samples_tables.table(found).splitlines() if line.startswith("| words")]
    ((_, seeds, tokens, worst, ratio, mean, of_mean, *_),) = rows
    assert (seeds, tokens, ratio, mean, of_mean) == ("1", "100", "1.50", ".2000", "1.33")
    assert worst.startswith(".3000 [")
    assert worst.endswith("eng")
