"""Words that say no, each with the word that says the opposite in the same place of a sentence.

The pairs are common knowledge of grammars and dictionaries, put together by hand for this table. A pair is in it only
if both words stand alone and ask the same of the words around them: German has no ohne and mit, which take different
cases, and Hebrew no bli and im, as the latter also means a people. A language whose negation is a part of the verb, or
which is written without spaces, is not in it.
"""

from collections.abc import Mapping
from types import MappingProxyType

_OPPOSITES = {
    "afr": "sonder=met",
    "als": "pa=me",
    "arb": "بدون=مع",
    "bos": "nema=ima nemaju=imaju",
    "bul": "без=с няма=има",
    "cat": "sense=amb",
    "dan": "uden=med aldrig=altid",
    "deu": "kein=ein keine=eine keinen=einen keinem=einem keiner=einer keines=eines nie=immer nichts=alles",
    "ell": "χωρίς=με",
    "eng": "without=with never=always nobody=everybody nothing=everything no_one=everyone",
    "epo": "sen=kun neniam=ĉiam neniu=ĉiu nenio=ĉio",
    "fra": "sans=avec",
    "glg": "sen=con nunca=sempre",
    "heb": "אין=יש אסור=מותר",
    "hin": "बिना=साथ",
    "hrv": "nema=ima nemaju=imaju",
    "hun": "nincs=van nincsenek=vannak",
    "ind": "tanpa=dengan",
    "isl": "aldrei=alltaf",
    "ita": "senza=con",
    "kor": "없다=있다 없습니다=있습니다 없는=있는 없고=있고 없으며=있으며",
    "mkd": "без=со нема=има",
    "nld": "zonder=met nooit=altijd niemand=iedereen geen=een",
    "nno": "utan=med aldri=alltid",
    "nob": "uten=med aldri=alltid",
    "pes": "بدون=با",
    "por": "sem=com nunca=sempre",
    "ron": "fără=cu",
    "rus": "нельзя=можно",
    "spa": "sin=con nunca=siempre",
    "srp": "nema=ima nemaju=imaju нема=има немају=имају",
    "swe": "utan=med aldrig=alltid",
    "tgl": "walang=may",
    "tur": "yok=var",
    "urd": "بغیر=ساتھ",
    "zsm": "tanpa=dengan",
}


def _pairs(words: str) -> dict[str, str]:
    return dict(pair.replace("_", " ").split("=") for pair in words.split())


OPPOSITES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {language: _pairs(words) for language, words in _OPPOSITES.items()}
)
"""For each language, by the part of its code before the script: the words that say no, and their opposites."""
