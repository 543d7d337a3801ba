"""Signature: one line with everything that is needed to repeat a measurement, to be quoted next to its numbers."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from fairbits.core.checks import one_of
from fairbits.core.errors import UNPRINTABLE, InputError
from fairbits.core.records import Code, Count, Positive, Split, check_once, check_record
from fairbits.core.units import MEASURES

if TYPE_CHECKING:
    from fairbits.evaluation.scores import Scores

LONGEST_NUMBER = 19
DIGITS = 16
"""Hexadecimal digits of a hash."""
FORM = "name:value pairs between |, as fairbits evaluate prints at its end"


@dataclass(frozen=True)
class Signature:
    """What was measured: both models, the text and how much of it, the measure, and the versions that matter.

    >>> line = "model:1|reference:2|text:help|hash:3|split:evaluation|languages:deu_Latn+eng_Latn|tokens:512"
    >>> found = Signature.parse(line + "|window:64|seed:0|measure:divergence|fairbits:0.2.0|torch:2.13.0")
    >>> found.languages, found.tokens, found.versions
    (('deu_Latn', 'eng_Latn'), 512, {'fairbits': '0.2.0', 'torch': '2.13.0'})
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

    @classmethod
    def of(cls, scores: "Scores", versions: Mapping[str, str], *, measure: str = MEASURES[0]) -> "Signature":
        """Returns the signature of scores."""
        own = scores.setting
        return cls(
            model=scores.quantized.fingerprint[:DIGITS],
            reference=scores.reference.fingerprint[:DIGITS],
            text=own.corpus,
            hash=hash_of(own.hashes),
            split=own.split,
            languages=tuple(sorted(scores.languages)),
            tokens=own.tokens,
            window=own.sequence,
            seed=own.seed,
            measure=one_of("measure", measure, MEASURES),
            versions=dict(versions),
        )

    @classmethod
    def parse(cls, line: str) -> "Signature":
        """Returns the signature in a line."""
        if UNPRINTABLE.search(line.strip()):
            raise InputError(f"{line!r:.80} is not a signature (it holds control characters); it must be {FORM}")
        pairs = [part.partition(":") for part in line.strip().split("|")]
        found = {name.strip(): value for name, _, value in pairs}
        names = [each.name for each in fields(cls) if each.name != "versions"]
        missing = [name for name in names if not found.get(name)]
        if missing or len(found) < len(pairs):
            lacks = f"{missing[0]} is missing" if missing else "a name is there twice"
            raise InputError(f"{line!r:.80} is not a signature ({lacks}); it must be {FORM}")
        numbers = {name: _number(name, found[name]) for name in ("tokens", "window", "seed")}
        lists = {"languages": found["languages"].split("+")}
        versions = {name: value for name, value in found.items() if name not in names}
        own = {name: found[name] for name in names} | numbers | lists | {"versions": versions}
        parsed = check_record(cls, own, source="the signature")
        one_of("measure of the signature", parsed.measure, MEASURES)
        check_once("languages of the signature", parsed.languages)
        return parsed

    def __str__(self) -> str:
        """Returns the line. A text is named as it was given; a sign that would end the field is replaced."""
        named = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "versions"}
        named |= {"text": self.text.replace("|", "/"), "languages": "+".join(self.languages)}
        return "|".join(f"{name}:{value}" for name, value in {**named, **self.versions}.items())

    def check(self, other: "Signature") -> tuple[str, ...]:
        """Raises if another measurement is not of the same models and text; returns notes on other versions."""
        for name in ("model", "reference", "hash", "split", "languages", "tokens", "window", "seed"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise InputError(
                    f"{name} is {theirs!s:.80} here and {mine!s:.80} in the signature; "
                    "the models, the text and the settings must be those of the signature"
                )
        return tuple(
            f"measured with {name} {other.versions.get(name, 'unknown')}; the signature has {version}"
            for name, version in self.versions.items()
            if other.versions.get(name) != version
        )


def hash_of(hashes: Mapping[str, str]) -> str:
    """Returns one hash of the texts of all languages.

    >>> hash_of({"b": "2", "a": "1"}) == hash_of({"a": "1", "b": "2"})
    True
    """
    lines = "\n".join(f"{code} {value}" for code, value in sorted(hashes.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:DIGITS]


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER):
        raise InputError(f"the signature has {name} {text!r:.40}; it must be a whole number")
    return int(text)
