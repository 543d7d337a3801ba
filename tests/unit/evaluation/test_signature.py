"""The signature of a measurement: one line that has everything, read back, and held against another measurement."""

from dataclasses import replace

import pytest

from fairbits.core.errors import InputError
from fairbits.evaluation.signature import Signature

LINE = (
    "model:1f|reference:2e|text:help|hash:3d|split:evaluation|languages:deu_Latn+eng_Latn|tokens:512|window:64|seed:7"
    "|measure:loss|fairbits:0.2.0|torch:2.13.0"
)


def test_a_line_is_read_back() -> None:
    signature = Signature.parse(LINE)
    assert str(signature) == LINE
    assert (signature.languages, signature.tokens, signature.window, signature.seed) == (
        ("deu_Latn", "eng_Latn"),
        512,
        64,
        7,
    )
    assert signature.versions == {"fairbits": "0.2.0", "torch": "2.13.0"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "model is missing"),
        ("help", "model is missing"),
        (LINE.replace("|hash:3d", ""), "hash is missing"),
        (LINE.replace("tokens:512", "tokens:many"), "tokens 'many'"),
        (LINE.replace("measure:loss", "measure:luck"), "measure"),
        (LINE + "|seed:8", "twice"),
    ],
)
def test_what_is_no_signature_is_refused(line: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Signature.parse(line)


def test_other_models_or_text_are_refused_and_other_versions_noted() -> None:
    signature = Signature.parse(LINE)
    assert signature.check(signature) == ()
    for name, value in {"model": "0", "reference": "0", "hash": "0", "tokens": 1, "languages": ("eng_Latn",)}.items():
        with pytest.raises(InputError, match=f"{name} is"):
            signature.check(replace(signature, **{name: value}))
    (note,) = signature.check(replace(signature, versions={"fairbits": "0.2.0", "torch": "3.0"}))
    assert note == "measured with torch 3.0; the signature has 2.13.0"
