"""The catalog: every language that fairbits has facts about, with its codes and names.

It uses the codes of FLORES-200 (`heb_Hebr`), and understands BCP-47, ISO 639-3, ISO 639-2/B and withdrawn codes,
English names and autonyms. Facts and sources: `assets/languages.json`, written by `data/build_languages.py`.
"""

import json
import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

RIGHT_TO_LEFT = frozenset(
    {"Adlm", "Arab", "Aran", "Hebr", "Mand", "Mend", "Nkoo", "Rohg", "Samr", "Syrc", "Thaa", "Yezi"}
)
"""The scripts in use that run from right to left."""
APOSTROPHES = str.maketrans(dict.fromkeys("’ʼ‘ʻ`", "'"))


@dataclass(frozen=True)
class Language:
    """A language in one script; `family` is its family in Glottolog. What is not known of it is ""."""

    code: str
    iso639_3: str
    bcp47: str
    name: str
    autonym: str
    script: str
    family: str

    @property
    def right_to_left(self) -> bool:
        return self.script in RIGHT_TO_LEFT

    @property
    def subtag(self) -> str:
        return self.bcp47.split("-")[0]

    @property
    def listed(self) -> bool:
        return self.code in by_code()

    def __str__(self) -> str:
        return self.code if self.name == self.code else f"{self.name} ({self.code})"


@cache
def catalog() -> tuple[Language, ...]:
    """Returns every language of the catalog, in the order of their codes."""
    return tuple(Language(*row) for row in _table()["languages"])


Meanings = dict[str, str]  # the codes of the languages that a name may stand for, each with the reason


def catalog_meanings(name: str) -> Meanings:
    """Returns the languages of the catalog that a name may stand for: none, one or several."""
    name = unicodedata.normalize("NFC", name).strip()
    folded = fold(name)
    meanings = codes().get(folded) or _without_region(folded)
    if meanings:  # "ga" is Irish; "Ga" may be the language of that name
        return meanings | {code: why for code, why in names().get(folded, {}).items() if by_code()[code].name == name}
    return names().get(folded, {})


@cache
def codes() -> dict[str, Meanings]:
    """Returns the meaning of every folded code; where two claim one, the first does: ours, BCP-47, ISO 639-3."""
    index: dict[str, Meanings] = {}
    isos = [language.iso639_3 for language in catalog()]
    alone = [language for language in catalog() if isos.count(language.iso639_3) == 1]
    claims = [
        *((language.code, language.code, "code") for language in catalog()),
        *((language.bcp47, language.code, "BCP-47 code") for language in catalog()),
        *((f"{language.subtag}-{language.script}", language.code, "BCP-47 code") for language in catalog()),
        *((f"{language.iso639_3}-{language.script}", language.code, "ISO 639-3 code") for language in catalog()),
        *((language.iso639_3, language.code, "ISO 639-3 code") for language in alone),
        *((language.subtag, language.code, "BCP-47 code") for language in alone),
        *((alias, code, because) for alias, (code, because) in _table()["other codes"].items()),
    ]
    for name, code, because in claims:
        index.setdefault(fold(name), {code: because})
    return index


@cache
def names() -> dict[str, Meanings]:
    """Returns the meanings of every folded name: English names, other names, names of several, then autonyms."""
    index: dict[str, Meanings] = {}
    for language in catalog():
        index.setdefault(fold(language.name), {})[language.code] = "English name"
    for name, (code, because) in _table()["other names"].items():
        index.setdefault(fold(name), {code: because})
    for name, several in _table()["ambiguous"].items():
        index.setdefault(fold(name), dict.fromkeys(several, "one of several"))
    autonyms: dict[str, Meanings] = {}
    for language in catalog():
        autonyms.setdefault(fold(language.autonym), {})[language.code] = "autonym"
    return autonyms | index


def _without_region(folded: str) -> Meanings:
    tag = re.fullmatch(r"([a-z]{2,3}(?:-[a-z]{4})?)-([a-z]{2}|[0-9]{3})", folded)
    if tag is None or folded in other_scripts():
        return {}
    return {code: f"{why}, region {tag[2].upper()} ignored" for code, why in codes().get(tag[1], {}).items()}


def fold(name: str) -> str:
    """Returns a name without case, kinds of apostrophe, separators and direction marks."""
    plain = unicodedata.normalize("NFC", name).translate(APOSTROPHES).casefold()
    plain = "".join(character for character in plain if unicodedata.category(character) != "Cf")
    return re.sub(r"[\s_-]+", "-", plain).strip("-")


@cache
def other_scripts() -> frozenset[str]:
    """Returns the folded tags whose region means a script that the catalog does not have for the language."""
    return frozenset(map(fold, _table()["other scripts"]))


@cache
def by_code() -> dict[str, Language]:
    """Returns the catalog by code."""
    return {language.code: language for language in catalog()}


@cache
def _table() -> dict[str, dict[str, list[str]]]:
    content = files("fairbits").joinpath("assets/languages.json").read_text(encoding="utf-8")
    table: dict[str, dict[str, list[str]]] = json.loads(content)
    return table
