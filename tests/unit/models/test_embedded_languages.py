import json
from pathlib import Path

import pytest

from fairbits.core.errors import InputError
from fairbits.models.embedded import ASSETS, LANGUAGES, TRAINING_TOKENS, embedded_languages, training_shares
from fairbits.text.language_codes import find_languages


@pytest.mark.parametrize("name", LANGUAGES)
def test_the_languages_are_those_of_the_card(name) -> None:
    card = (ASSETS / name / "README.md").read_text(encoding="utf-8")
    line = next(line for line in card.splitlines() if line.startswith("language: ["))
    named = line.removeprefix("language: [").removesuffix("]").split(", ")
    assert {language.code for language in find_languages(named)} == set(embedded_languages(f"embedded:{name}"))
    assert all(f"`{code}`" in card for code in LANGUAGES[name])


def test_every_embedded_model_has_languages() -> None:
    assert {path.parent.name for path in ASSETS.glob("*/config.json")} == LANGUAGES.keys()


def test_the_training_tokens_are_those_of_the_training() -> None:
    history = Path(__file__).parents[3] / "training" / "history.json"
    counted = json.loads(history.read_text(encoding="utf-8"))["tokens"]
    names = {find_languages([name])[0].code: count for name, count in counted.items()}
    assert names == TRAINING_TOKENS["tiny"]
    assert sum(training_shares("embedded:tiny?outliers=3:9").values()) == pytest.approx(1)
    assert training_shares("./model") is None


def test_other_models_have_none() -> None:
    assert embedded_languages("owner/name") is None
    with pytest.raises(InputError, match="does not name an embedded model"):
        embedded_languages("embedded:huge")
