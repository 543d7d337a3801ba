"""The languages fairbits knows, and what a name or code of a user stands for.

Codes are those of FLORES-200 (`heb_Hebr`); BCP-47, ISO 639-3, ISO 639-2/B and withdrawn codes, English names and
autonyms are understood too. Facts and sources: `assets/languages.json`, written by `data/build_languages.py`.
"""

import difflib
import json
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fairbits.checks import instance, sequence
from fairbits.errors import InputError

RIGHT_TO_LEFT = frozenset({"Adlm", "Arab", "Hebr", "Nkoo", "Syrc", "Thaa"})
SUGGESTIONS = 5
LONGEST_SHOWN = 60
APOSTROPHES = str.maketrans(dict.fromkeys("’ʼ‘ʻ`", "'"))


@dataclass(frozen=True)
class Language:
    """A language in one script.

    `family` is the top-level family in Glottolog; creoles go with the language most of their words come from, a
    language without relatives is its own family.
    """

    code: str
    iso639_3: str
    bcp47: str
    name: str
    autonym: str
    script: str
    family: str

    @property
    def right_to_left(self) -> bool:
        """Whether the script runs from right to left."""
        return self.script in RIGHT_TO_LEFT

    def __str__(self) -> str:
        """Returns name and code."""
        return f"{self.name} ({self.code})"


@dataclass(frozen=True)
class Resolution:
    """What a name was taken for: what was given, the language, and why."""

    given: str
    language: Language
    because: str


@cache
def catalog() -> tuple[Language, ...]:
    """Returns every language, in the order of their codes."""
    return tuple(Language(*row) for row in _table()["languages"])


def find_language(name: str) -> Language:
    """Returns the language that a code, an English name or an autonym stands for.

    >>> find_language("he").code, find_language("Hebrew").code, find_language("עברית").code
    ('heb_Hebr', 'heb_Hebr', 'heb_Hebr')
    """
    return resolve(name).language


def find_languages(names: Iterable[str]) -> tuple[Language, ...]:
    """Returns the languages that the names stand for, in their order; none may come twice."""
    found: dict[str, Resolution] = {}
    for name in sequence("languages", names):
        resolution = resolve(name)
        earlier = found.setdefault(resolution.language.code, resolution)
        if earlier is not resolution:
            raise InputError(
                f"languages name {resolution.language} twice, as {earlier.given!r} and as {name!r}; "
                "name every language once"
            )
    return tuple(resolution.language for resolution in found.values())


def resolve(name: str) -> Resolution:
    """Returns the language that a name stands for, and why; case, hyphens and underscores do not matter.

    >>> resolve("ara").language.code, resolve("ara").because
    ('arb_Arab', 'macrolanguage Arabic: its standard form')
    """
    given = unicodedata.normalize("NFC", instance("language", name, str)).strip()
    shown = repr(name if len(name) <= LONGEST_SHOWN else f"{name[:LONGEST_SHOWN]}…")
    folded = _folded(given)
    meant = _codes().get(folded) or _without_region(folded)
    if meant:  # "ga" is Irish; "Ga" may be the language of that name
        meant = meant | {code: why for code, why in _names().get(folded, {}).items() if _language(code).name == given}
    else:
        meant = _names().get(folded, {})
    if len(meant) == 1:
        ((code, because),) = meant.items()
        return Resolution(name, _language(code), because)
    if meant:
        raise InputError(f"language {shown} may be {_listed(meant)}; give the code of the one that is meant")
    near = _suggestions(folded)
    hint = f"did you mean {_listed(near)}?" if near else "`fairbits languages` lists all"
    raise InputError(f"language {shown} is unknown; give a code such as heb_Hebr or he, or an English name; {hint}")


Meanings = dict[str, str]
"""The codes of the languages that a name may stand for, each with the reason."""


@cache
def _codes() -> dict[str, Meanings]:
    """Returns the meaning of every folded code; where two claim one, the first does: ours, BCP-47, ISO 639-3."""
    index: dict[str, Meanings] = {}
    isos = [language.iso639_3 for language in catalog()]
    alone = [language for language in catalog() if isos.count(language.iso639_3) == 1]
    claims = [
        *((language.code, language.code, "code") for language in catalog()),
        *((language.bcp47, language.code, "BCP-47 code") for language in catalog()),
        *((f"{_subtag(language)}-{language.script}", language.code, "BCP-47 code") for language in catalog()),
        *((f"{language.iso639_3}-{language.script}", language.code, "ISO 639-3 code") for language in catalog()),
        *((language.iso639_3, language.code, "ISO 639-3 code") for language in alone),
        *((_subtag(language), language.code, "BCP-47 code") for language in alone),
        *((alias, code, because) for alias, (code, because) in _table()["other codes"].items()),
    ]
    for name, code, because in claims:
        index.setdefault(_folded(name), {code: because})
    return index


@cache
def _names() -> dict[str, Meanings]:
    """Returns the meanings of every folded name: English names, other names, names of several, then autonyms."""
    index: dict[str, Meanings] = {}
    for language in catalog():
        index.setdefault(_folded(language.name), {})[language.code] = "English name"
    for name, (code, because) in _table()["other names"].items():
        index.setdefault(_folded(name), {code: because})
    for name, codes in _table()["ambiguous"].items():
        index.setdefault(_folded(name), dict.fromkeys(codes, "one of several"))
    autonyms: dict[str, Meanings] = {}
    for language in catalog():
        autonyms.setdefault(_folded(language.autonym), {})[language.code] = "autonym"
    return autonyms | index


def _subtag(language: Language) -> str:
    return language.bcp47.split("-")[0]


def _without_region(folded: str) -> Meanings:
    """Returns what a BCP-47 tag stands for once its region is left aside; none if another script is written there."""
    tag = re.fullmatch(r"([a-z]{2,3}(?:-[a-z]{4})?)-([a-z]{2}|[0-9]{3})", folded)
    if tag is None or folded in map(_folded, _table()["other scripts"]):
        return {}
    found = _codes().get(tag[1], {})
    return {code: f"{because}, region {tag[2].upper()} left aside" for code, because in found.items()}


def _suggestions(folded: str) -> list[str]:
    """Returns the codes whose names come nearest."""
    index = _codes() | _names()
    near = difflib.get_close_matches(folded[:LONGEST_SHOWN], index, n=4 * SUGGESTIONS, cutoff=0.6)
    codes = dict.fromkeys(code for key in near for code in index[key])
    return list(codes)[:SUGGESTIONS]


def _listed(codes: Iterable[str]) -> str:
    return ", ".join(str(_language(code)) for code in codes)


def _folded(name: str) -> str:
    plain = unicodedata.normalize("NFC", name).translate(APOSTROPHES).casefold()
    plain = "".join(character for character in plain if unicodedata.category(character) != "Cf")  # marks of direction
    return re.sub(r"[\s_-]+", "-", plain).strip("-")


@cache
def _language(code: str) -> Language:
    return next(language for language in catalog() if language.code == code)


@cache
def _table() -> dict[str, dict[str, list[str]]]:
    content = files("fairbits").joinpath("assets/languages.json").read_text(encoding="utf-8")
    table: dict[str, dict[str, list[str]]] = json.loads(content)
    return table
