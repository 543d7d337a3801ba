"""The language that a name or code stands for: in the catalog, in the IANA registry, or in text of the user."""

import difflib
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from functools import cache

from fairbits.checks import instance, sequence
from fairbits.errors import InputError
from fairbits.language.catalog import Language, by_code, codes, fold, meanings_of, names, other_scripts
from fairbits.language.tags import LONGEST, PRIVATE_USE, own_name, parse_tag

SUGGESTIONS = 5
LONGEST_SHOWN = 60
MISSPELT = 0.85
"""An unknown name with at least this similarity to a known one is treated as a misspelling."""
CODE_SHAPED = re.compile("[A-Za-z]{2,3}([-_][A-Z][a-z]{3})?")
"""Names that look like a code but are none: jp and cz, for instance, are regions."""
RESERVED = frozenset({"base"})
"""What overlays call the shared base."""


@dataclass(frozen=True)
class Resolution:
    """The language that a name was read as: the name as given, the language, and why."""

    given: str
    language: Language
    because: str


def find_language(name: str, *, own: Container[str] = ()) -> Language:
    """Returns the language that a code, an English name or an autonym stands for.

    >>> find_language("he").code, find_language("Hebrew").code, find_language("עברית").code
    ('heb_Hebr', 'heb_Hebr', 'heb_Hebr')
    """
    return resolve(name, own=own).language


def find_languages(names: Iterable[str], *, own: Container[str] = ()) -> tuple[Language, ...]:
    """Returns the languages that the names stand for, in their order; none may come twice."""
    found: dict[str, Resolution] = {}
    for name in sequence("languages", names):
        resolution = resolve(name, own=own)
        earlier = found.setdefault(resolution.language.code, resolution)
        if earlier is not resolution:
            raise InputError(
                f"languages name {resolution.language} twice, as {earlier.given!r} and as {name!r}; "
                "name every language once"
            )
    return tuple(resolution.language for resolution in found.values())


def resolve(name: str, *, own: Container[str] = ()) -> Resolution:
    """Returns the language that a name stands for, and why; case, hyphens and underscores do not matter.

    The catalog comes first, then BCP-47 tags and ISO 639 codes of the IANA registry, then codes for private use.
    `own` are the codes of text at hand: a name that the user invented is understood if it is one of them.

    >>> resolve("ara").language.code, resolve("ara").because
    ('arb_Arab', 'macrolanguage Arabic: its standard form')
    >>> resolve("frr").language.code, resolve("frr").language.name
    ('frr_Latn', 'Northern Frisian')
    """
    found = _known(name)
    if found is not None:
        return found
    code = own_name(name)
    if code is not None and code in own:
        return Resolution(name, _named_by_user(code), "a name of your own")
    hint = (
        suggestion(name) or "`fairbits languages` lists the catalog; a name of your own needs text of yours that has it"
    )
    raise InputError(f"{_unknown(name)}; {hint}")


def own_language(name: str) -> Language:
    """Returns the language of text that the user has: one that `find_language` knows, or a name of the user's own.

    A name that is not a language tag is accepted if it is safe as a code and is not close to a known one, which it
    may be a misspelling of. A name that begins with x- is never treated as a misspelling.

    >>> own_language("fr").code, own_language("my-dialect").code
    ('fra_Latn', 'my-dialect')
    """
    found = _known(name)
    if found is not None:
        return found.language
    code = own_name(name)
    if code is None or code in RESERVED:
        raise InputError(
            f"{_unknown(name)}; a name of your own must have at most {LONGEST} letters, digits, - and _, begin with a "
            f"letter and not be {' or '.join(sorted(RESERVED))}"
        )
    near = suggestion(code, cutoff=MISSPELT, shortest=4)  # "mine" is not a misspelt "min"
    if near or CODE_SHAPED.fullmatch(name.strip()):
        said = near or "no such code is registered."
        raise InputError(f"{_unknown(name)}; {said} If it is a name of your own, call it x-{code}")
    return _named_by_user(code)


def code_of_name(name: str, where: str) -> str:
    """Returns the code of the language that a file or a line names; `where` says which, in an error."""
    try:
        return own_language(name).code
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def wanted_languages(names: Iterable[str]) -> tuple[Language, ...]:
    """Returns the languages that names stand for in text yet to be read, which may have names of its own."""
    given = sequence("languages", names)
    return find_languages(given, own=own_names(given))


def own_names(names: Iterable[str]) -> frozenset[str]:
    """Returns the codes that names would have if all were invented by the user; none for a name that is not safe."""
    return frozenset(filter(None, (own_name(instance("language", name, str)) for name in names)))


@cache
def language_of(code: str) -> Language:
    """Returns the language of a code that results hold; one that means nothing here has the code as its name.

    >>> language_of("heb_Hebr").name, language_of("my-dialect").name
    ('Hebrew', 'my-dialect')
    """
    try:
        found = _known(code)
    except InputError:  # a name that several languages have: not a code
        found = None
    return _named_by_user(code) if found is None else found.language


def unlisted_notes(languages: Iterable[Language]) -> tuple[str, ...]:
    """Returns up to two notes that name the languages which the catalog does not hold.

    >>> unlisted_notes([find_language("frr"), find_language("de"), find_language("qaa")])
    ('not in the catalog, named as in the IANA registry: Northern Frisian (frr_Latn)', 'private codes, kept as given:
    qaa')
    """
    unlisted = [language for language in languages if not language.listed]
    parts = {
        "not in the catalog, named as in the IANA registry": [each for each in unlisted if each.name != each.code],
        "private codes, kept as given": [each for each in unlisted if each.name == each.code],
    }
    return tuple(f"{said}: {', '.join(map(str, group))}" for said, group in parts.items() if group)


def suggestion(name: str, *, cutoff: float = 0.6, shortest: int = 1) -> str:
    """Returns a question that names the known languages closest to a name, or "" where none is close."""
    index = {key: meant for key, meant in (codes() | names()).items() if len(key) >= shortest}
    close = difflib.get_close_matches(fold(name)[:LONGEST_SHOWN], index, n=4 * SUGGESTIONS, cutoff=cutoff)
    meant = list(dict.fromkeys(code for key in close for code in index[key]))[:SUGGESTIONS]
    return f"did you mean {_listed(meant)}?" if meant else ""


def _known(name: str) -> Resolution | None:
    """Returns the language that the catalog, the registry or private use give a name; raises if several have it."""
    meant = meanings_of(instance("language", name, str))
    if len(meant) == 1:
        ((code, because),) = meant.items()
        return Resolution(name, by_code()[code], because)
    if meant:
        raise InputError(f"language {_shown(name)} may be {_listed(meant)}; give the code of the one that is meant")
    return _unlisted(name)


def _unlisted(name: str) -> Resolution | None:
    """Returns the language of a tag that the catalog does not hold as it is; None if it is not a valid tag."""
    folded = fold(name)
    code = own_name(name)
    if code is not None and code.startswith("x-") and len(code) > 2:
        return Resolution(name, replace(_named_by_user(code), bcp47=code), "private-use tag")
    tag = parse_tag(folded)
    if tag is None or (tag.usual and folded in other_scripts()):
        return None
    relatives = codes().get(tag.subtag, {})
    same_script = codes().get(fold(f"{tag.subtag}-{tag.script}")) or (relatives if tag.usual else {})
    because = "BCP-47 code" + (f", region {tag.region} left aside" if tag.region else "")
    if same_script:
        language = by_code()[next(iter(same_script))]
        if tag.variety:
            code, bcp47 = (f"{each}-{tag.variety}" for each in (language.code, language.bcp47))
            language = replace(language, code=code, bcp47=bcp47, name=f"{language.name} ({tag.variety})", autonym="")
        return Resolution(name, language, because)
    language = Language(
        tag.code,
        tag.iso639_3,
        tag.bcp47,
        name=tag.code if PRIVATE_USE.fullmatch(tag.subtag) else tag.name,
        autonym="",
        script=tag.script,
        family=by_code()[next(iter(relatives))].family if relatives else "",
    )
    return Resolution(name, language, because)


def _named_by_user(code: str) -> Language:
    return Language(code, "", "", name=code, autonym="", script="", family="")


def _unknown(name: str) -> str:
    return f"language {_shown(name)} is unknown; give a code such as heb_Hebr or he, or an English name"


def _shown(name: str) -> str:
    return repr(name if len(name) <= LONGEST_SHOWN else f"{name[:LONGEST_SHOWN]}…")


def _listed(codes: Iterable[str]) -> str:
    return ", ".join(str(by_code()[code]) for code in codes)
