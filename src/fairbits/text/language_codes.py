"""The language that a name or code stands for: in the catalog, in the IANA registry, or in text of the user.

langcodes and its registry take a few tenths of a second to load, so both wait until a tag needs them.
"""

import difflib
import re
import unicodedata
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from functools import cache

from fairbits.core.checks import instance, sequence
from fairbits.core.errors import InputError
from fairbits.text.catalog import Language, by_code, catalog_meanings, codes, fold, names, other_scripts

LONGEST = 64  # characters of the longest tag or name that is accepted
LONGEST_VARIETY = LONGEST - len("deu_Latn-")
USER_CODE = re.compile(rf"[^\W\d_]([\w-]{{0,{LONGEST - 2}}}\w)?")
"""Letters, digits, hyphens and underscores; a letter first, no hyphen last. Safe in a path, a list and a terminal."""
PRIVATE_USE = re.compile("q[a-t][a-z]")  # the codes that ISO 639 leaves to private use
NO_USUAL_SCRIPT = frozenset({"mis", "mul", "und", "zxx"})
"""Codes for text of several languages, of an unknown one or of none."""
CATALOG_SCRIPTS = {"Kore": "Hang"}  # names of scripts in FLORES-200, and so in the catalog, that differ from CLDR's
SUGGESTIONS = 5
LONGEST_SHOWN = 60
MISSPELT = 0.85  # an unknown name with at least this similarity to a known one is treated as a misspelling
CODE_SHAPED = re.compile("[A-Za-z]{2,3}([-_][A-Z][a-z]{3})?")
"""Names that look like a code; those that are not registered, such as the regions jp and cz, are refused."""
RESERVED = frozenset({"base"})  # what overlays call the shared base


@dataclass(frozen=True)
class Tag:
    """The parts of a valid tag; `usual` is about the script; `variety` has variants and private subtags."""

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
    """Returns the parts of a BCP-47 tag or an ISO 639 code; None for text that is not a valid one."""
    if len(text) > LONGEST:
        return None
    from langcodes import Language as LanguageTag
    from langcodes.tag_parser import LanguageTagError

    try:
        tag = LanguageTag.get(text, normalize=False)
        if tag.extlangs or "-" in (tag.language or ""):  # zh-yue and i-klingon: forms that have been replaced
            tag = LanguageTag.get(text)
    except LanguageTagError:
        return None
    subtag = _current_subtag(tag.language or "und")
    private = PRIVATE_USE.fullmatch(subtag) is not None
    valid = tag.update_dict({"language": subtag}).is_valid()
    registered = private or subtag in _registry()["language"]
    variety = "-".join(filter(None, (*sorted(tag.variants or ()), tag.private)))
    if tag.extlangs or not valid or not registered or len(variety) > LONGEST_VARIETY:
        return None
    region = tag.territory or ""
    usual = _likely_script(subtag)
    script = tag.script or _likely_script(f"{subtag}-{region}") or usual
    details = [] if script == usual else [f"{_registry()['script'].get(script, script)} script"]
    name = subtag if private else _registry()["language"][subtag]
    return Tag(
        subtag,
        LanguageTag.make(language=subtag).to_alpha3(),
        script,
        usual=script == usual,
        region=region,
        variety=variety,
        name=" ".join((name, *(f"({detail})" for detail in (*details, variety) if detail))),
    )


@cache
def _registry() -> dict[str, dict[str, str]]:
    """Returns the names of languages and scripts by subtag, and the replacements of subtags, by the IANA registry."""
    from langcodes.data_dicts import LANGUAGE_ALPHA3, LANGUAGE_ALPHA3_BIBLIOGRAPHIC
    from langcodes.registry_parser import parse_registry

    entries = list(parse_registry())  # type: ignore[no-untyped-call]
    tables = {
        kind: {entry["Subtag"]: entry["Description"][0] for entry in entries if entry["Type"] == kind}
        for kind in ("language", "script")
    }
    pairs = (*LANGUAGE_ALPHA3.items(), *LANGUAGE_ALPHA3_BIBLIOGRAPHIC.items())
    replacements = {long: short for short, long in pairs if len(short) == 2}
    preferred = (entry for entry in entries if entry["Type"] == "language" and "Preferred-Value" in entry)
    replacements |= {entry["Subtag"]: entry["Preferred-Value"] for entry in preferred}
    return {**tables, "replacements": replacements}


def _current_subtag(subtag: str) -> str:
    seen = {subtag}
    while (following := _registry()["replacements"].get(subtag, subtag)) not in seen:
        subtag = following
        seen.add(subtag)
    return subtag


def _likely_script(tag: str) -> str:
    from langcodes.data_dicts import LIKELY_SUBTAGS

    if tag.partition("-")[0] in NO_USUAL_SCRIPT or tag not in LIKELY_SUBTAGS:
        return ""
    script: str = LIKELY_SUBTAGS[tag].split("-")[1]
    return CATALOG_SCRIPTS.get(script, script)


@dataclass(frozen=True)
class Resolution:
    """The language that a name was read as, and why."""

    name: str
    language: Language
    because: str


def find_language(name: str, *, user_codes: Container[str] = ()) -> Language:
    """Returns the language that a code, an English name or an autonym stands for."""
    return resolve_language(name, user_codes=user_codes).language


def find_languages(names: Iterable[str], *, user_codes: Container[str] = ()) -> tuple[Language, ...]:
    """Returns the languages that the names stand for, in their order; none may come twice."""
    resolutions: dict[str, Resolution] = {}
    for name in sequence("languages", names):
        resolution = resolve_language(name, user_codes=user_codes)
        earlier = resolutions.setdefault(resolution.language.code, resolution)
        if earlier is not resolution:
            raise InputError(
                f"languages name {resolution.language} twice, as {earlier.name!r} and as {name!r}; "
                "name every language once"
            )
    return tuple(resolution.language for resolution in resolutions.values())


def resolve_language(name: str, *, user_codes: Container[str] = ()) -> Resolution:
    """Returns the language that a name stands for, and why; case, hyphens and underscores do not matter.

    The catalog comes first, then tags of the IANA registry, then private use, then `user_codes`, those of the text.
    """
    resolution = _known_language(name)
    if resolution is not None:
        return resolution
    code = user_code(name)
    if code is not None and code in user_codes:
        return Resolution(name, _user_defined(code), "a name from your text")
    hint = "`fairbits languages` lists the catalog; your own names work only with text that has them"
    raise InputError(f"{_unknown(name)}; {suggest_languages(name) or hint}")


def user_language(name: str) -> Language:
    """Returns the language of the user's text: one that `find_language` knows, or one that the user defines.

    The user's own name must be safe as a code and not close to a known one, unless it begins with x-.
    """
    resolution = _known_language(name)
    if resolution is not None:
        return resolution.language
    code = user_code(name)
    if code is None or code in RESERVED:
        raise InputError(
            f"{_unknown(name)}; your own name for a language must have at most {LONGEST} letters, digits, - and _, "
            f"begin with a letter and not be {' or '.join(sorted(RESERVED))}"
        )
    near = suggest_languages(code, cutoff=MISSPELT, shortest=4)  # "mine" is not a misspelt "min"
    if near or CODE_SHAPED.fullmatch(name.strip()):
        raise InputError(
            f"{_unknown(name)}; {near or 'no such code is registered.'} If it is your own name, call it x-{code}"
        )
    return _user_defined(code)


def code_from_name(name: str, where: str) -> str:
    """Returns the code of the language that a file or a line names; `where` says which, in an error."""
    try:
        return user_language(name).code
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def user_code(text: str) -> str | None:
    """Returns the code of a language that the user names, in lower case; None if it is not safe as one."""
    lowered = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text.strip()).lower())
    return lowered if USER_CODE.fullmatch(lowered) else None


def user_codes(names: Iterable[str]) -> frozenset[str]:
    """Returns the codes that names would have if the user had invented all of them; none for an unsafe name."""
    return frozenset(filter(None, (user_code(instance("language", name, str)) for name in names)))


def requested_languages(names: Iterable[str]) -> tuple[Language, ...]:
    """Returns the languages that names stand for in text that is still to be read, which may define some."""
    requested = sequence("languages", names)
    return find_languages(requested, user_codes=user_codes(requested))


@cache
def language_from_code(code: str) -> Language:
    """Returns the language of a code in saved results; the name of an unknown code is the code."""
    try:
        resolution = _known_language(code)
    except InputError:  # a name that several languages have: not a code
        resolution = None
    return _user_defined(code) if resolution is None else resolution.language


def short_name(code: str) -> str:
    """Returns the name of a language without its script and variety, which the code next to it shows."""
    return language_from_code(code).name.partition(" (")[0].removeprefix("Standard ")


def unlisted_notes(languages: Iterable[Language]) -> tuple[str, ...]:
    """Returns up to two notes on the languages that are not in the catalog."""
    unlisted = [language for language in languages if not language.listed]
    registered = ", ".join(str(language) for language in unlisted if language.name != language.code)
    private = ", ".join(str(language) for language in unlisted if language.name == language.code)
    notes = {"not in the catalog, named as in the IANA registry": registered, "private codes, kept as given": private}
    return tuple(f"{note}: {listed}" for note, listed in notes.items() if listed)


def suggest_languages(name: str, *, cutoff: float = 0.6, shortest: int = 1) -> str:
    """Returns a question that names the known languages closest to a name, or "" where none is close."""
    index = {key: meanings for key, meanings in (codes() | names()).items() if len(key) >= shortest}
    close = difflib.get_close_matches(fold(name)[:LONGEST_SHOWN], index, n=4 * SUGGESTIONS, cutoff=cutoff)
    suggested = list(dict.fromkeys(code for key in close for code in index[key]))[:SUGGESTIONS]
    return f"did you mean {_listed(suggested)}?" if suggested else ""


def _known_language(name: str) -> Resolution | None:
    meanings = catalog_meanings(instance("language", name, str))
    if len(meanings) == 1:
        ((code, because),) = meanings.items()
        return Resolution(name, by_code()[code], because)
    if meanings:
        raise InputError(f"language {_shown(name)} is ambiguous: {_listed(meanings)}; give the code of one of them")
    return _unlisted(name)


def _unlisted(name: str) -> Resolution | None:
    folded = fold(name)
    code = user_code(name)
    if code is not None and code.startswith("x-") and len(code) > 2:
        return Resolution(name, replace(_user_defined(code), bcp47=code), "private-use tag")
    tag = parse_tag(folded)
    if tag is None or (tag.usual and folded in other_scripts()):
        return None
    relatives = codes().get(tag.subtag, {})
    same_script = codes().get(fold(f"{tag.subtag}-{tag.script}")) or (relatives if tag.usual else {})
    because = "BCP-47 code" + (f", region {tag.region} ignored" if tag.region else "")
    if same_script:
        language = by_code()[next(iter(same_script))]
        if tag.variety:
            code, bcp47 = f"{language.code}-{tag.variety}", f"{language.bcp47}-{tag.variety}"
            language = replace(language, code=code, bcp47=bcp47, name=f"{language.name} ({tag.variety})", autonym="")
        return Resolution(name, language, because)
    english = tag.code if PRIVATE_USE.fullmatch(tag.subtag) else tag.name
    family = by_code()[next(iter(relatives))].family if relatives else ""
    language = Language(tag.code, tag.iso639_3, tag.bcp47, english, autonym="", script=tag.script, family=family)
    return Resolution(name, language, because)


def _user_defined(code: str) -> Language:
    return Language(code, "", "", name=code, autonym="", script="", family="")


def _unknown(name: str) -> str:
    return f"language {_shown(name)} is unknown; give a code such as heb_Hebr or he, or an English name"


def _shown(name: str) -> str:
    return repr(name if len(name) <= LONGEST_SHOWN else f"{name[:LONGEST_SHOWN]}…")


def _listed(codes: Iterable[str]) -> str:
    return ", ".join(str(by_code()[code]) for code in codes)
