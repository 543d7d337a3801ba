"""benchmarks/cover.py and own_samples.py: sets of languages, prompts, and tables of known numbers."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import cover
import own_samples
from fairbits.text.language_codes import language_from_code
from language_trial import Results

LANGUAGES = ("amh_Ethi", "deu_Latn", "eng_Latn", "fra_Latn", "heb_Hebr")


@pytest.mark.parametrize(("size", "draws"), [(2, 5), (3, 5), (4, 10)])
def test_random_sets_have_every_language_equally_often(size: int, draws: int) -> None:
    sets = cover.random_sets(LANGUAGES, size, draws=draws, seed=0)
    assert {len(set(chosen)) for chosen in sets} == {size}
    assert set(Counter(code for chosen in sets for code in chosen).values()) == {size * draws // len(LANGUAGES)}
    assert sets != cover.random_sets(LANGUAGES, size, draws=draws, seed=1)


def test_prompts_need_a_name_or_a_few_words() -> None:
    german, sections = language_from_code("deu_Latn"), ("Alle Menschen sind frei", "Jeder hat Anspruch")
    assert own_samples.prompts_of("name", german, sections, 2) == ["Deutsch", "Deutsch"]
    assert own_samples.prompts_of("words", german, sections, 3) == ["Alle Menschen", "Jeder hat", "Alle Menschen"]
    assert own_samples.first_words("short") == "short"


def results(kl: dict[str, list[float]], inside: dict[str, list[str]]) -> Results:
    """Returns results of two languages with six documents each, all of whose documents have nearly the same KL."""
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


def test_table_compares_languages_inside_and_outside_of_sets(tmp_path: Path) -> None:
    kl = {"random 0": [0.1, 0.4], "random 1": [0.3, 0.2], "largest": [0.2, 0.2]}
    inside = {"random 0": ["deu_Latn"], "random 1": ["eng_Latn"], "largest": ["eng_Latn"]}
    results(kl, inside).save(tmp_path / "results.json")
    *_, row = cover.table([Results.load(tmp_path / "results.json")])
    assert row == "| 1 of 2 | 0.1500 | 0.3500 | 2.33 | 0.2500 [0.2500, 0.2500] |  | 0.2000 |"


def test_samples_are_compared_with_the_text_that_is_evaluated() -> None:
    measured = results({"declaration 0": [0.1, 0.2], "words 0": [0.1, 0.3]}, {"declaration 0": [], "words 0": []})
    rows = [line.split(" | ") for line in own_samples.table(measured).splitlines() if line.startswith("| words")]
    ((_, seeds, tokens, worst, ratio, mean, of_mean, *_),) = rows
    assert (seeds, tokens, ratio, mean, of_mean) == ("1", "100", "1.50", "0.2000", "1.33")
    assert worst.startswith("0.3000 [")
    assert worst.endswith("eng")
