"""The language weights of the policy gptq."""

import dataclasses
from typing import Any

import pytest

from fairbits.core.errors import InputError
from fairbits.quantization.evidence import Evidence


def test_language_weights_of_each_mix(llama: Evidence, make_plan: Any) -> None:
    english, equal = make_plan("gptq", llama, mix="english"), make_plan("gptq", llama)
    assert english.languages == {"eng_Latn": 1.0}
    assert english.calibration is not None
    assert equal.calibration is not None
    assert english.calibration.tokens == 3 * equal.calibration.tokens  # as many as three languages have
    assert make_plan("gptq", llama, mix={"he": 3, "hin": 1}).languages == {
        "eng_Latn": 0.0,
        "heb_Hebr": 0.75,
        "hin_Deva": 0.25,
    }
    minimax = make_plan("gptq", llama, mix="minimax")
    assert minimax.languages["heb_Hebr"] == 0.5
    assert minimax.settings["rounds"] == [{"pi": {}}]
    assert "found" in minimax.notes
    with pytest.raises(InputError, match="fra_Latn is not one"):
        make_plan("gptq", llama, mix={"fr": 1})


def test_mix_english_needs_english_text(llama: Evidence, make_plan: Any) -> None:
    with pytest.raises(InputError, match="eng_Latn is not one of the languages heb_Hebr"):
        make_plan("gptq", dataclasses.replace(llama, languages=("heb_Hebr",)), mix="english")
