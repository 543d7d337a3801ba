"""The help of LibreOffice as Debian packages it: one package per language, HTML pages, numbered paragraphs."""

import re
import unicodedata
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from statistics import median

from sources import Source, members

VERSION = "4:7.4.7-1+deb12u14"
PACKAGES = {
    "cat_Latn": ("ca", "194dfad8a2f1bc76a442a568d3eee13add77338ff081e177f8df6eb95e336ace"),
    "ces_Latn": ("cs", "9fcbf9b3cbbc1370d827d5bc59df0227fa95bdf3b5628b907ef5fb4d8d55be6a"),
    "dan_Latn": ("da", "53313a9c7a4bb25ff3d648ab629f69144a65adc4f67ad38da6e55b05165618c8"),
    "deu_Latn": ("de", "00490b63c509ac96f7f212d6a6e40452d3e0d1f97ccf4b824dd5ec4c01e8277f"),
    "dzo_Tibt": ("dz", "1380379dab641b8a9a4740474878e245bab22f9d3c2794b5585dcf025f24b749"),
    "ell_Grek": ("el", "ed4c905d0df5761be817f59381ce7c48fa50ec9cef5737c83e66aa7d3c898f79"),
    "eng_Latn": ("en-US", "8faa840285734d6cfe1ed25537b48f07e74bd6412e3917bf8e5f8a653f7b3712"),
    "est_Latn": ("et", "e52d7115195642283a14c052e610957cbed8435f06beb35139823722c8942839"),
    "eus_Latn": ("eu", "e88eaa5da5d9254a7c9bc1a6ac89d04758380adc044f9a007f666de68ef9aa91"),
    "fin_Latn": ("fi", "47b0bf9820e7eef19de7d56400aae8139de26eca4f3d72f57d6769c751630f26"),
    "fra_Latn": ("fr", "c796530d3e95af1ea4d054076682efc8aad2b569ae9513f3d4a776b2df3fd206"),
    "gaz_Latn": ("om", "97c58a5f6b34a871594c807b034c5d5dce693d10e089a41c5faf1e50cf37bf8b"),
    "glg_Latn": ("gl", "c1cf71cc98ed2c08060bfcf55cbc03d3d72e0fe7c3f5192b034c87cbf6b6e679"),
    "hun_Latn": ("hu", "d4ae75812fdeb6f2b03fac6bc0f95d3f6824b75706930e806d41c751e68ffe27"),
    "ind_Latn": ("id", "5aa8c2894f8638fb2ec50cce72f81e9559f9baf45845c40b990b7f046e3f73d4"),
    "ita_Latn": ("it", "7fa29342a302bb495981fdabf98f3a9c3628123f3f191b2a5c95cb583c9ff212"),
    "jpn_Jpan": ("ja", "7799ace9bfe0845771ed2499913e7f7e521318cf3727c007672e3b020f8eb7b9"),
    "khm_Khmr": ("km", "58700c6513c15d78e6dbbfda82b05f45fcb5a8acf0832f3dca50918d71e27f50"),
    "kor_Hang": ("ko", "7ef2d854e9ed58e6bf861cfa9fa2579555233f9df874baf327fcb07ccd190669"),
    "nld_Latn": ("nl", "8b4b49a7d1bd0df3aa4693eeebe3f6886655427eaf736d9289c5ff6fbf489591"),
    "pol_Latn": ("pl", "27441ce6d1303524b223aa94a17356bf7195f388d9b05a9e5e346866d7983694"),
    "por_Latn": ("pt-BR", "600d4294e52a6534be923521aff7b1b9eb7e6ddb7e30b2598ad04b2fe9cf8278"),
    "rus_Cyrl": ("ru", "5a2f75d5b0dfcf660275070647af528a81be28b5d3e9c3ec2d419ef5518db7a2"),
    "slv_Latn": ("sl", "98c06e58e4cf90c5ccc98d5d7bb069edbbf64845dcdf485cce24a16598d40c90"),
    "spa_Latn": ("es", "9128a84d83d92c8b1c618d90469d16affddb7d1290b09d42a0c5109cb16f0480"),
    "swe_Latn": ("sv", "1b34145188f08aff7029fdc1ae378141494743d93cb09d9a3e782a229941ab66"),
    "tur_Latn": ("tr", "8fe832104805b66d2dc5c153564bcc55b5a084e10b3c3a3ea773c4b57659bfb8"),
    "vie_Latn": ("vi", "fcc4f84cd28d094f8663d1b68b98a7d562f3c71c8beeb71401c4859f1027aaaf"),
    "zho_Hans": ("zh-CN", "db867cdece4c2f9c7eebe65e519c6cf386fdcf49d6e061db3dffec893b3e1dee"),
    "zho_Hant": ("zh-TW", "f79cb2bee8d8d783efd825051a957b4c97a56dad5a05bde0ee90e66099331209"),
}
"""The name of each language in the packages, and the SHA-256 of its package.

Left out: Hindi (one paragraph in twenty is translated), Slovak (an empty package), British English, Valencian, and
the Portuguese of Portugal, whose code is that of Brazil's.
"""
ENGLISH = "eng_Latn"
SCRIPTS = {
    "Cyrl": "CYRILLIC",
    "Grek": "GREEK",
    "Hang": "HANGUL",
    "Hans": "CJK",
    "Hant": "CJK",
    "Jpan": ("CJK", "HIRAGANA", "KATAKANA"),
    "Khmr": "KHMER",
    "Latn": "LATIN",
    "Tibt": "TIBETAN",
}
"""How the Unicode names of the letters of each script begin."""
LEAST_IN_SCRIPT = 0.5
RUN_WORDS = 4
MOST_ENGLISH = 0.2
"""Share of the runs of four English words that may stay in a translation: names of functions and menus often do."""

Paragraphs = dict[str, str]
"""By page and paragraph, such as `scalc/01/02120000.html#par_id3153662`, in the order of the pages."""


def read_help(code: str, folder: Path, pages: Iterable[str] | None = None) -> Paragraphs:
    """Returns the paragraphs of one language, of all pages or of the given ones."""
    tag, sha256 = PACKAGES[code]
    name = f"libreoffice-help-{tag.lower()}"
    file = f"{name}_{VERSION.replace(':', '%3a')}_all.deb"
    root = f"./usr/share/libreoffice/help/{tag}/text/"
    wanted = ".+[.]html" if pages is None else "|".join(map(re.escape, pages))
    package = Source("Debian", name, VERSION, file, sha256, "MPL-2.0")
    paragraphs: Paragraphs = {}
    for path, content in sorted(members(package, folder, f"{re.escape(root)}({wanted})").items()):
        page = _Page()
        page.feed(content.decode())
        paragraphs |= {f"{path.removeprefix(root)}#{number}": text for number, text in page.paragraphs.items()}
    return paragraphs


def translated(numbers: Iterable[str], texts: Paragraphs, english: Paragraphs, *, code: str, ratio: float) -> list[str]:
    """Returns the numbers of the paragraphs that are translated, without repetitions and translations of older text.

    Older text is suspected where a translation has more than `ratio` times the usual length, or less than the inverse.
    """
    numbers_by_text = {
        texts[number].casefold(): number
        for number in reversed(list(numbers))  # so that the first of several equal ones stays
        if number in texts and is_translation(texts[number], english[number], code)
    }
    lengths = {number: len(texts[number]) / len(english[number]) for number in reversed(numbers_by_text.values())}
    usual = median(lengths.values())
    return [number for number, length in lengths.items() if 1 / ratio < length / usual < ratio]


def is_translation(text: str, english: str, code: str) -> bool:
    """Returns whether a paragraph is in the language of the code; the help has English where nobody translated it."""
    letters = [unicodedata.name(c, "") for c in text if c.isalpha()]
    in_script = sum(name.startswith(SCRIPTS[code.partition("_")[2]]) for name in letters)
    damaged = any(unicodedata.category(c) in ("Cc", "Cn", "Co", "Cs") for c in text)
    if damaged or not letters or in_script < LEAST_IN_SCRIPT * len(letters):
        return False
    if code == ENGLISH:
        return True
    runs = _runs(english)
    return text != english and len(runs & _runs(text)) <= MOST_ENGLISH * len(runs)


def _runs(text: str) -> set[tuple[str, ...]]:
    words = re.findall("[a-z]+", text.lower())
    return set(zip(*(words[start:] for start in range(RUN_WORDS)), strict=False))


class _Page(HTMLParser):
    """Collects paragraphs; not code, and none whose words depend on the system or the application."""

    def __init__(self) -> None:
        super().__init__()
        self.paragraphs: Paragraphs = {}
        self._number = ""
        self._text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "p":
            number = attributes.get("id") or ""
            usable = number.startswith("par_") and "code" not in (attributes.get("class") or "")
            self._number, self._text = number if usable else "", []
        elif "hidden" in attributes:  # one of several wordings, of which a script shows one
            self._number = ""
        elif tag in ("br", "img"):
            self._text.append(" ")

    def handle_data(self, data: str) -> None:
        self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "p" and self._number:
            text = " ".join(unicodedata.normalize("NFC", "".join(self._text)).split())
            self.paragraphs.setdefault(self._number, text)
            self._number = ""
