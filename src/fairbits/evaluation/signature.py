"""Signature: one line with everything that is needed to repeat a measurement, to be quoted next to its numbers."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields

from fairbits.core.checks import one_of
from fairbits.core.errors import UNPRINTABLE, InputError
from fairbits.core.records import Code, Count, Positive, Split, check_once, check_record
from fairbits.core.units import MEASURES

LONGEST_NUMBER = 19
DIGITS = 16  # hexadecimal digits of a hash
OPTIONAL, YES = ("kv_cache", "joined", "all_text"), "yes"
FORM = "name:value pairs between |, as fairbits evaluate prints at its end"


@dataclass(frozen=True)
class Signature:
    """What was measured: both models, the text and how much of it, the measure, and the versions that matter.

    The type of the quantized model's KV cache, and whether documents were `joined` or `all_text` was read (`YES`), are
    there if chosen.
    """

    model: str
    reference: str
    text: str
    hash: str
    split: Split
    languages: tuple[Code, ...]
    tokens: Positive
    window: Positive
    seed: Count
    measure: str
    versions: Mapping[str, str]
    kv_cache: str = ""
    joined: str = ""
    all_text: str = ""

    @classmethod
    def parse(cls, line: str) -> "Signature":
        if UNPRINTABLE.search(line.strip()):
            raise InputError(f"{line!r:.80} is not a signature (it contains control characters); it must be {FORM}")
        pairs = [part.partition(":") for part in line.strip().split("|")]
        values = {name.strip(): value for name, _, value in pairs}
        names = [field.name for field in fields(cls) if field.name != "versions"]
        missing = [name for name in names if not values.get(name) and name not in OPTIONAL]
        if missing or len(values) < len(pairs):
            problem = f"{missing[0]} is missing" if missing else "a name occurs twice"
            raise InputError(f"{line!r:.80} is not a signature ({problem}); it must be {FORM}")
        record = {name: values[name] for name in names if name in values} | {
            **{name: _number(name, values[name]) for name in ("tokens", "window", "seed")},
            "languages": values["languages"].split("+"),
            "versions": {name: value for name, value in values.items() if name not in names},
        }
        parsed = check_record(cls, record, source="the signature")
        one_of("measure of the signature", parsed.measure, MEASURES)
        for name in ("joined", "all_text"):
            one_of(f"{name} in the signature", getattr(parsed, name), ("", YES))
        check_once("languages of the signature", parsed.languages)
        return parsed

    def __str__(self) -> str:
        """Returns the line. A text is named as it was given; a sign that would end the field is replaced."""
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "versions"}
        named = {name: value for name, value in named.items() if value != "" or name not in OPTIONAL}
        named |= {"text": self.text.replace("|", "/"), "languages": "+".join(self.languages)}
        return "|".join(f"{name}:{value}" for name, value in {**named, **self.versions}.items())

    def check(self, measured: "Signature") -> tuple[str, ...]:
        """Raises if another measurement is not of the same models and text; returns notes on other versions."""
        text = ("hash", "split", "languages", "tokens", "window", "seed", "joined")
        for name in ("model", "reference", "kv_cache", *text):
            mine, theirs = getattr(self, name), getattr(measured, name)
            if mine != theirs:
                raise InputError(
                    f"{name} is {theirs!s:.80} here and {mine!s:.80} in the signature; "
                    "the models, the text and the settings must be the same as in the signature"
                )
        return tuple(
            f"measured with {name} {measured.versions.get(name, 'unknown')}; the signature has {version}"
            for name, version in self.versions.items()
            if measured.versions.get(name) != version
        )


def hash_texts(hashes: Mapping[str, str]) -> str:
    """Returns one hash of the texts of all languages."""
    lines = "\n".join(f"{code} {value}" for code, value in sorted(hashes.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:DIGITS]


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER):
        raise InputError(f"the signature has {name} {text!r:.40}; it must be a whole number")
    return int(text)
