"""Writes src/fairbits/assets/languages.json: the languages of FLORES-200, of the embedded declarations, and of `ADDED`.

python data/build_languages.py [--cache FOLDER]
"""

import argparse
import json
import re
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corrections import ADDED, ALIASES, AMBIGUOUS, AUTONYMS, FAMILIES, FAMILY_OF, INDIVIDUAL, NAMES, TAGS
from declarations import chosen_declarations, script_of
from sources import CLDR_CORE, CLDR_NAMES, FACTS, GLOTTOLOG, ISO, MACRO, member, members

HERE = Path(__file__).parent
TARGET = HERE.parent / "src/fairbits/assets/languages.json"
FLORES = frozenset((HERE / "flores200.txt").read_text().split())
CODE = re.compile(r"[a-z]{2,3}([-_][A-Za-z]{2,4})?")
HAN = {"Hans", "Hant", "Jpan"}


@dataclass(frozen=True)
class Facts:
    """The tables of the sources."""

    iso: dict[str, dict[str, str]]
    macro: dict[str, list[str]]
    english: dict[str, str]
    scripts: dict[str, str]
    autonyms: dict[str, str]
    aliases: dict[str, dict[str, str]]
    likely: dict[str, str]
    languoids: dict[str, Any]
    by_iso: dict[str, str]

    def usual_script(self, tag: str) -> str:
        """Returns the script a language is usually written in, in FLORES-200 notation."""
        parts = self.likely.get(tag, "").split("-")
        return {"Kore": "Hang"}.get(parts[1], parts[1]) if len(parts) > 1 else ""

    def family(self, iso: str) -> str:
        """Returns the top-level family in Glottolog; a language without relatives is its own."""
        languoid = self.languoids[self.by_iso[f"iso_639_3:{FAMILY_OF.get(iso, iso)}"]]
        while parents := languoid["relations"].get("parent"):
            languoid = self.languoids[parents[0]["target_id"]]
        return FAMILIES.get(languoid["name"], languoid["name"])

    def endonym(self, iso: str) -> str:
        """Returns the autonym that Glottolog's companions give, or ""."""
        return self.languoids.get(self.by_iso.get(f"iso_639_3:{iso}", ""), {}).get("endonym") or ""


def read_facts(folder: Path) -> Facts:
    """Returns the tables of all sources."""
    ((_, module),) = members(ISO, folder, r"package/iso6393\.js").items()
    rows = [dict(re.findall(r"""(\w+): (?:'|")(.*?)(?:'|"),?\n""", row)) for row in module.decode().split("  {\n")[1:]]
    autonyms = {}
    for path, content in members(CLDR_NAMES, folder, r"package/main/[^/]+/languages\.json").items():
        locale = path.split("/")[-2]
        table = json.loads(content)["main"][locale]["localeDisplayNames"]["languages"]
        if name := table.get(locale) or table.get(locale.split("-")[0]):
            autonyms[locale] = name
    english = member(CLDR_NAMES, folder, "package/main/en/languages.json")
    scripts = member(CLDR_NAMES, folder, "package/main/en/scripts.json")
    aliases = member(CLDR_CORE, folder, "package/supplemental/aliases.json")
    glottolog = member(GLOTTOLOG, folder, "qq/data/db.json.gz")
    return Facts(
        iso={row["iso6393"]: row for row in rows},
        macro=member(MACRO, folder, "iso639/data/iso-639_macro.json")["macro"],
        english=english["main"]["en"]["localeDisplayNames"]["languages"],
        scripts=scripts["main"]["en"]["localeDisplayNames"]["scripts"],
        autonyms=autonyms,
        aliases=aliases["supplemental"]["metadata"]["alias"]["languageAlias"],
        likely=member(CLDR_CORE, folder, "package/supplemental/likelySubtags.json")["supplemental"]["likelySubtags"],
        languoids=glottolog["entities"],
        by_iso=glottolog["resolver"]["id_to_canonical"],
    )


def languages(facts: Facts, codes: list[str]) -> list[dict[str, str]]:
    """Returns a row for each code; those outside FLORES-200 are left out if they have no sure autonym."""
    tags = _tags(facts, codes)
    isos = [INDIVIDUAL.get(code[:3], code[:3]) for code in codes]
    rows = []
    for code, iso in zip(codes, isos, strict=True):
        script = code[4:]
        autonym = AUTONYMS.get(code) or _autonym(facts, iso, tags[code], script)
        if not autonym and code not in FLORES:
            continue
        rows.append(
            {
                "code": code,
                "iso639_3": iso,
                "bcp47": tags[code],
                "name": NAMES.get(code) or _name(facts, iso, tags[code], alone=isos.count(iso) == 1),
                "autonym": autonym,
                "script": script,
                "family": facts.family(iso),
            }
        )
    _check(rows)
    return sorted(rows, key=lambda row: row["code"])


def aliases(facts: Facts, rows: list[dict[str, str]]) -> dict[str, tuple[str, str]]:
    """Returns other codes and names, each with the code it stands for and why."""
    result = dict(ALIASES)
    by_iso = defaultdict(list)
    for row in rows:
        by_iso[row["iso639_3"]].append(row)
    for macro in facts.macro:
        _add_macrolanguage(facts, result, macro=macro, by_iso=by_iso)
    for iso, group in by_iso.items():
        usual = _usual(facts, group)
        if len(group) > 1:
            result.setdefault(iso, (usual["code"], "ISO 639-3 code, in its usual script"))
        bibliographic = facts.iso.get(iso, {}).get("iso6392B", iso)
        if bibliographic != iso:
            result.setdefault(bibliographic, (usual["code"], "ISO 639-2/B code"))
        for name in (facts.iso.get(iso, {}).get("name"), facts.english.get(usual["bcp47"])):
            if name and name != usual["name"]:
                result.setdefault(_plain(name).split(" (")[0], (usual["code"], "another English name"))
    _add_withdrawn(facts, result, rows)
    for tag, code in regional(facts, rows).items():
        if code:
            result.setdefault(tag, (code, "BCP-47 code, in the script of the region"))
    taken = {row[field] for row in rows for field in ("code", "bcp47", "name")} | set(AMBIGUOUS)
    return {alias: target for alias, target in sorted(result.items()) if alias not in taken}


def regional(facts: Facts, rows: list[dict[str, str]]) -> dict[str, str]:
    """Returns the tags whose region means an unusual script, each with its code; "" if there is no such language."""
    here = {(row["bcp47"].split("-")[0], row["script"]): row["code"] for row in rows}
    result = {}
    for tag, full in facts.likely.items():
        subtag, script, *_ = full.split("-")
        if re.fullmatch(f"{subtag}-[A-Z]{{2}}", tag) and any(language == subtag for language, _ in here):
            result[tag] = here.get((subtag, script), "")
    return result


def _add_macrolanguage(
    facts: Facts, result: dict[str, tuple[str, str]], *, macro: str, by_iso: dict[str, list[dict[str, str]]]
) -> None:
    """Adds the codes and the name of a macrolanguage: CLDR says which member is meant, else FLORES-200 does."""
    here = [_usual(facts, by_iso[iso]) for iso in facts.macro[macro] if iso in by_iso]
    short = facts.iso[macro].get("iso6391", macro)
    standard = [row for row in here if _replacement(facts, row["iso639_3"]) == short]
    flores = [row for row in here if row["code"] in FLORES]
    chosen = [row for row in standard if row in flores] or flores
    if macro in by_iso or len(chosen) != 1:
        return
    name = facts.iso[macro]["name"].split(" (")[0]
    because = f"macrolanguage {name}: its {'standard form' if chosen[0] in standard else 'form in FLORES-200'}"
    for alias in {short, macro, facts.iso[macro].get("iso6392B", macro), name}:
        result.setdefault(alias, (chosen[0]["code"], because))


def _add_withdrawn(facts: Facts, result: dict[str, tuple[str, str]], rows: list[dict[str, str]]) -> None:
    tags = {row["bcp47"]: row["code"] for row in rows}
    codes = {key for row in rows for key in (row["code"], row["iso639_3"], row["bcp47"])}
    for old, entry in facts.aliases.items():
        withdrawn = entry["_reason"] == "deprecated" or (len(old) == 2 and entry["_reason"] == "legacy")
        if withdrawn and "-" not in old and old not in codes and entry["_replacement"] in tags:
            result.setdefault(old, (tags[entry["_replacement"]], "withdrawn code"))


def _tags(facts: Facts, codes: list[str]) -> dict[str, str]:
    """Returns the BCP-47 tag of each code: two letters go to the first that claims them."""
    owners: dict[str, str] = {}
    tags = {}
    for code in codes:
        base, script = code.split("_")
        iso = INDIVIDUAL.get(base, base)
        short = facts.iso.get(iso, {}).get("iso6391") or _replacement(facts, iso)
        subtag = short if len(short) == 2 and owners.setdefault(short, iso) == iso else iso
        usual = facts.usual_script(subtag) or facts.usual_script(iso) or script
        tags[code] = TAGS.get(code) or (subtag if script == usual else f"{subtag}-{script}")
    return tags


def _replacement(facts: Facts, iso: str) -> str:
    return facts.aliases.get(iso, {}).get("_replacement", "")


def _autonym(facts: Facts, iso: str, tag: str, script: str) -> str:
    subtag = tag.split("-")[0]
    for autonym in (facts.autonyms.get(f"{subtag}-{script}"), facts.autonyms.get(subtag), facts.endonym(iso)):
        if autonym and script_of(autonym) in ({"Hani", "Jpan"} if script in HAN else {script}):
            return autonym
    return ""


def _name(facts: Facts, iso: str, tag: str, *, alone: bool) -> str:
    subtag, *script = tag.split("-")
    name = facts.english.get(subtag) or facts.iso[iso]["name"]
    name = _plain(name).removesuffix(" (individual language)")
    return f"{name} ({facts.scripts[script[0]]} script)" if script and not alone else name


def _plain(name: str) -> str:
    return name.replace("ʼ", "'").replace("’", "'")


def _usual(facts: Facts, group: list[dict[str, str]]) -> dict[str, str]:
    """Returns the row of a language in its usual script, of FLORES-200 if there is one."""
    best = [row for row in group if row["code"] in FLORES] or group
    return next((row for row in best if row["script"] == facts.usual_script(row["bcp47"].split("-")[0])), best[0])


def _check(rows: list[dict[str, str]]) -> None:
    for field in ("code", "bcp47", "name"):
        values = [row[field] for row in rows]
        if len(set(values)) < len(values):
            raise SystemExit(f"not unique: {field} {sorted(v for v in set(values) if values.count(v) > 1)}")
    if gaps := [(row["code"], field) for row in rows for field in row if not row[field]]:
        raise SystemExit(f"facts are missing; fill them in corrections.py: {gaps}")


def main() -> None:
    """Builds the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, help="where the fetched packages are kept")
    folder = parser.parse_args().cache or Path(tempfile.mkdtemp())
    facts = read_facts(folder)
    declared = chosen_declarations(folder)[0]
    rows = languages(facts, sorted(FLORES) + sorted({*declared, *ADDED} - FLORES))
    others = aliases(facts, rows)
    codes = {alias: target for alias, target in others.items() if CODE.fullmatch(alias)}
    table = {
        "sources": [f"{s.index} {s.name} {s.version} ({s.licence})" for s in FACTS],
        "columns": list(rows[0]),
        "languages": [list(row.values()) for row in rows],
        "other codes": codes,
        "other names": {alias: target for alias, target in others.items() if alias not in codes},
        "ambiguous": dict(sorted(AMBIGUOUS.items())),
        "other scripts": sorted(tag for tag, code in regional(facts, rows).items() if not code and tag not in codes),
    }
    parts = ",\n".join(f"{json.dumps(key)}: {_lines(value)}" for key, value in table.items())
    TARGET.write_text(f"{{\n{parts}\n}}\n", encoding="utf-8")
    print(f"{len(rows)} languages, {len(others)} aliases, {TARGET.stat().st_size:,} bytes: {TARGET.name}")
    print("no sure autonym:", ", ".join(sorted({*declared, *ADDED} - {row["code"] for row in rows})))


def _lines(value: Any) -> str:
    """Returns JSON with one element of the outer list or object per line."""
    if isinstance(value, dict):
        inner = [f"{json.dumps(k, ensure_ascii=False)}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items()]
        return "{\n" + ",\n".join(inner) + "\n}"
    return "[\n" + ",\n".join(json.dumps(v, ensure_ascii=False) for v in value) + "\n]"


if __name__ == "__main__":
    main()
