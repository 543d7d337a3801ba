"""Options beside --resume: those that the plan of the draft contradicts are refused."""

from dataclasses import replace

import pytest

from fairbits.cli.quantize_command import check_agrees
from fairbits.core.errors import InputError
from fairbits.quantization.plan import Calibration, Plan

TEXT = Calibration("udhr", {"eng_Latn": "a", "heb_Hebr": "b"}, 64, 32, 1)
SETTINGS = {"bits": 4, "group": 128, "embeddings": "keep", "mix": "equal"}
PLAN = Plan(
    "gptq", SETTINGS, "m", "0" * 64, "llama", (), 1, languages={"eng_Latn": 0.5, "heb_Hebr": 0.5}, calibration=TEXT
)
GIVEN = replace(PLAN, settings={**SETTINGS, "mix": "given"}, languages={"eng_Latn": 2 / 3, "heb_Hebr": 1 / 3})
ENGLISH = replace(
    PLAN,
    settings={**SETTINGS, "mix": "english"},
    languages={"eng_Latn": 1.0},
    calibration=replace(TEXT, tokens=128),  # those of both languages
)
ALLOCATED = replace(
    PLAN, policy="allocate", settings={"bits": [4, 8], "avg_bits": 5.0, "sensitivity": {"how": "predicted"}}
)


@pytest.mark.parametrize(
    ("plan", "options"),
    [
        (PLAN, {}),
        (PLAN, {"policy": "gptq", "bits": 4, "group": 128, "embeddings": "keep", "mix": "equal"}),
        (PLAN, {"languages": ["he", "en"], "tokens": 64, "sequence": 32, "seed": 1, "text": "texts", "device": "cpu"}),
        (GIVEN, {"mix": {"en": 4.0, "heb": 2.0}}),
        (ENGLISH, {"mix": "english", "languages": ["eng", "heb"], "tokens": 64}),
        (ALLOCATED, {"avg_bits": 5, "sensitivity": "predicted"}),
    ],
)
def test_what_agrees_goes_on(plan, options) -> None:
    assert check_agrees(plan, options) is plan


@pytest.mark.parametrize(
    ("plan", "options", "message"),
    [
        (PLAN, {"policy": "rtn"}, "--policy is rtn, but the interrupted run had gptq"),
        (PLAN, {"group": "channel"}, "--group is channel, .* had 128"),
        (PLAN, {"languages": ["eng"]}, "--languages is eng_Latn, .* had eng_Latn,heb_Hebr"),
        (PLAN, {"tokens": 65}, "--tokens is 65, .* had 64"),
        (PLAN, {"seed": 0}, "--seed is 0"),
        (PLAN, {"mix": {"eng": 1.0}}, "--mix is eng_Latn=1, .* had equal"),
        (GIVEN, {"mix": {"eng": 1.0, "heb": 2.0}}, "--mix is"),
        (ENGLISH, {"tokens": 128}, "--tokens is 128, .* had 64"),
        (ALLOCATED, {"avg_bits": 4.5}, "--avg-bits is 4.5, .* had 5"),
        (ALLOCATED, {"sensitivity": "measured"}, "had predicted"),
    ],
)
def test_what_does_not_agree_is_refused(plan, options, message) -> None:
    with pytest.raises(InputError, match=message):
        check_agrees(plan, options)
