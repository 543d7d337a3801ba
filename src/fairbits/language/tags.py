"""Language tags that the catalog does not hold: BCP-47 and ISO 639, read with the IANA registry of langcodes.

Importing langcodes and reading its registry takes a few tenths of a second. Both wait until a tag needs them.
"""

import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

LONGEST = 64
"""Characters of the longest tag or name that is accepted."""
LONGEST_VARIETY = LONGEST - len("deu_Latn-")
OWN_NAME = re.compile(rf"[^\W\d_]([\w-]{{0,{LONGEST - 2}}}\w)?")
"""Letters, digits, hyphens and underscores; a letter first, no hyphen last. Safe in a path, a list and a terminal."""
PRIVATE_USE = re.compile("q[a-t][a-z]")
"""The codes that ISO 639 leaves to private use."""
NO_USUAL_SCRIPT = frozenset({"mis", "mul", "und", "zxx"})
"""Codes for text of several languages, of an unknown one or of none."""
CATALOG_SCRIPTS = {"Kore": "Hang"}
"""What FLORES-200, and so the catalog, calls a script that CLDR calls otherwise."""


@dataclass(frozen=True)
class Tag:
    """The parts of a valid tag, and what the registry says of them.

    `subtag`   the shortest code of the language ("de"), `iso639_3` the one of three letters ("deu")
    `script`   the script that the tag names, or the usual one; "" if neither is known
    `usual`    whether that is the usual script of the language, or none is known
    `region`   the region that the tag names, or ""
    `variety`  variants and private subtags ("1996", "x-mine"), or ""
    `name`     the English name, with script and variety where they are not the usual ones
    """

    subtag: str
    iso639_3: str
    script: str
    usual: bool
    region: str
    variety: str
    name: str

    @property
    def code(self) -> str:
        """The code in the notation of the catalog: frr_Latn, cat_Latn-valencia, qaa."""
        return "-".join(filter(None, ("_".join(filter(None, (self.iso639_3, self.script))), self.variety)))

    @property
    def bcp47(self) -> str:
        """The tag without its region, and without a script that is the usual one."""
        return "-".join(filter(None, (self.subtag, "" if self.usual else self.script, self.variety)))


def parse_tag(text: str) -> Tag | None:
    """Returns the parts of a BCP-47 tag or an ISO 639 code; None for text that is not a valid one.

    >>> parse_tag("frr").code, parse_tag("uz-AF").code, parse_tag("ca-valencia").name
    ('frr_Latn', 'uzb_Arab', 'Catalan (valencia)')
    """
    if len(text) > LONGEST:
        return None
    from langcodes import Language
    from langcodes.tag_parser import LanguageTagError

    try:
        given = Language.get(text, normalize=False)
        if given.extlangs or "-" in (given.language or ""):  # zh-yue and i-klingon: forms that have been replaced
            given = Language.get(text)
    except LanguageTagError:
        return None
    subtag = _current_subtag(given.language or "und")
    private = PRIVATE_USE.fullmatch(subtag) is not None
    valid = given.update_dict({"language": subtag}).is_valid()
    registered = private or subtag in _registry().languages
    variety = "-".join(filter(None, (*sorted(given.variants or ()), given.private)))
    if given.extlangs or not valid or not registered or len(variety) > LONGEST_VARIETY:
        return None
    region = given.territory or ""
    usual = _likely_script(subtag)
    script = given.script or _likely_script(f"{subtag}-{region}") or usual
    details = [] if script == usual else [f"{_registry().scripts.get(script, script)} script"]
    name = subtag if private else _registry().languages[subtag]
    return Tag(
        subtag,
        Language.make(language=subtag).to_alpha3(),
        script,
        usual=script == usual,
        region=region,
        variety=variety,
        name=" ".join((name, *(f"({detail})" for detail in (*details, variety) if detail))),
    )


def own_name(text: str) -> str | None:
    """Returns a name of the user's own as a code, in lower case; None if it is not safe as one.

    >>> own_name("My-Dialect"), own_name("../passwd")
    ('my-dialect', None)
    """
    lowered = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text.strip()).lower())
    return lowered if OWN_NAME.fullmatch(lowered) else None


class _Registry(NamedTuple):
    """What the IANA registry says: names by subtag, and the subtags that replace others."""

    languages: dict[str, str]
    scripts: dict[str, str]
    replacements: dict[str, str]


@cache
def _registry() -> _Registry:
    from langcodes.data_dicts import LANGUAGE_ALPHA3, LANGUAGE_ALPHA3_BIBLIOGRAPHIC
    from langcodes.registry_parser import parse_registry

    entries = list(parse_registry())  # type: ignore[no-untyped-call]
    names = {
        kind: {entry["Subtag"]: entry["Description"][0] for entry in entries if entry["Type"] == kind}
        for kind in ("language", "script")
    }
    replacements = {
        long: short
        for table in (LANGUAGE_ALPHA3, LANGUAGE_ALPHA3_BIBLIOGRAPHIC)
        for short, long in table.items()
        if len(short) == 2
    }
    replacements |= {
        entry["Subtag"]: entry["Preferred-Value"]
        for entry in entries
        if entry["Type"] == "language" and "Preferred-Value" in entry
    }
    return _Registry(names["language"], names["script"], replacements)


def _current_subtag(subtag: str) -> str:
    """Returns what the registry has for a code: "de" for "deu" and "ger", "he" for "iw"."""
    seen = {subtag}
    while (following := _registry().replacements.get(subtag, subtag)) not in seen:
        subtag = following
        seen.add(subtag)
    return subtag


def _likely_script(tag: str) -> str:
    """Returns the script that CLDR expects for a language, or for one in a region; "" if it expects none."""
    from langcodes.data_dicts import LIKELY_SUBTAGS

    if tag.partition("-")[0] in NO_USUAL_SCRIPT or tag not in LIKELY_SUBTAGS:
        return ""
    script: str = LIKELY_SUBTAGS[tag].split("-")[1]
    return CATALOG_SCRIPTS.get(script, script)
