import json
import unicodedata
from dataclasses import astuple
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbits.core.errors import InputError
from fairbits.text.catalog import Language, catalog
from fairbits.text.language_codes import find_language, find_languages, resolve_language

ROOT = Path(__file__).parents[3]

# Written from general knowledge, not from the sources of the catalog.
MAJOR = """
afr_Latn af Indo-European|amh_Ethi am Afro-Asiatic|arb_Arab ar Afro-Asiatic|azj_Latn az Turkic|bel_Cyrl be Indo-European
ben_Beng bn Indo-European|bod_Tibt bo Sino-Tibetan|bul_Cyrl bg Indo-European|cat_Latn ca Indo-European
ces_Latn cs Indo-European|cym_Latn cy Indo-European|dan_Latn da Indo-European|deu_Latn de Indo-European
ell_Grek el Indo-European|eng_Latn en Indo-European|epo_Latn eo Constructed|est_Latn et Uralic|eus_Latn eu Basque
fin_Latn fi Uralic|fra_Latn fr Indo-European|grn_Latn gn Tupian|hau_Latn ha Afro-Asiatic|heb_Hebr he Afro-Asiatic
hin_Deva hi Indo-European|hun_Latn hu Uralic|hye_Armn hy Indo-European|ibo_Latn ig Atlantic-Congo
ind_Latn id Austronesian|isl_Latn is Indo-European|ita_Latn it Indo-European|jpn_Jpan ja Japonic|kan_Knda kn Dravidian
kat_Geor ka Kartvelian|kaz_Cyrl kk Turkic|khk_Cyrl mn Mongolic-Khitan|khm_Khmr km Austroasiatic|kor_Hang ko Koreanic
lao_Laoo lo Tai-Kadai|lvs_Latn lv Indo-European|mal_Mlym ml Dravidian|mlt_Latn mt Afro-Asiatic|mri_Latn mi Austronesian
mya_Mymr my Sino-Tibetan|npi_Deva ne Indo-European|nld_Latn nl Indo-European|pes_Arab fa Indo-European
plt_Latn mg Austronesian|pol_Latn pl Indo-European|por_Latn pt Indo-European|quy_Latn quy Quechuan
rus_Cyrl ru Indo-European|sin_Sinh si Indo-European|som_Latn so Afro-Asiatic|spa_Latn es Indo-European
swh_Latn sw Atlantic-Congo|tam_Taml ta Dravidian|tel_Telu te Dravidian|tgl_Latn tl Austronesian|tha_Thai th Tai-Kadai
tur_Latn tr Turkic|ukr_Cyrl uk Indo-European|urd_Arab ur Indo-European|vie_Latn vi Austroasiatic
wol_Latn wo Atlantic-Congo|yor_Latn yo Atlantic-Congo|zho_Hans zh-Hans Sino-Tibetan|zul_Latn zu Atlantic-Congo
""".replace("\n", "|").strip("|")


@pytest.mark.parametrize("row", MAJOR.split("|"))
def test_major_languages_have_the_facts_everyone_knows(row: str) -> None:
    code, bcp47, family = row.split()
    language = find_language(code)
    assert (language.bcp47, language.family) == (bcp47, family)


def test_holds_all_of_flores_in_stable_order() -> None:
    flores = (ROOT / "data/flores200.txt").read_text().split()
    codes = [language.code for language in catalog()]
    assert len(set(flores)) == 204
    assert set(flores) <= set(codes)
    assert codes == sorted(set(codes))


def test_every_fact_is_there_and_the_file_is_small() -> None:
    for language in catalog():
        assert all(astuple(language))
        assert language.code.endswith(f"_{language.script}")
        assert len(language.iso639_3) == 3
        assert unicodedata.is_normalized("NFC", language.name + language.autonym)
    assert len(files("fairbits").joinpath("assets/languages.json").read_bytes()) < 150_000


def test_codes_tags_and_names_are_unique() -> None:
    for field in ("code", "bcp47", "name"):
        values = [getattr(language, field).casefold() for language in catalog()]
        assert len(set(values)) == len(values)


@pytest.mark.parametrize("code", ["arb_Arab", "heb_Hebr", "urd_Arab", "div_Thaa", "aii_Syrc", "fuf_Adlm", "ydd_Hebr"])
def test_right_to_left(code: str) -> None:
    assert find_language(code).right_to_left
    assert not find_language("eng").right_to_left


ALIASES = {
    "heb_Hebr": [
        "he",
        "heb",
        "heb_Hebr",
        "heb-hebr",
        "he-Hebr",
        "he_IL",
        "Hebrew",
        "hebrew",
        " HEBREW ",
        "עברית",
        "iw",
    ],
    "arb_Arab": ["ar", "ara", "arb", "ar-EG", "Arabic", "Standard Arabic", "العربية"],
    "zho_Hans": ["zh", "zho", "chi", "cmn", "zh-CN", "zh-Hans", "zh_hans_cn", "Chinese (Simplified)", "简体中文"],
    "zho_Hant": ["zh-Hant", "zh-TW", "zh-HK", "cmn-Hant", "Traditional Chinese"],
    "swh_Latn": ["sw", "swa", "swh", "Swahili", "Kiswahili"],
    "pes_Arab": ["fa", "fas", "per", "pes", "Farsi", "Persian", "Iranian Persian"],
    "prs_Arab": ["prs", "fa-AF", "Dari"],
    "zsm_Latn": ["ms", "msa", "may", "zsm", "Malay"],
    "nob_Latn": ["no", "nor", "nb", "nob", "Norwegian", "Norwegian Bokmål"],
    "por_Latn": ["pt", "por", "pt-BR", "pt_PT", "Portuguese", "português"],
    "srp_Cyrl": ["sr", "srp", "sr-RS", "Serbian", "српски"],
    "srp_Latn": ["sr-Latn", "srp_Latn", "sr-Latn-RS", "srpski"],
    "uzn_Latn": ["uz", "uzb", "uzn", "Uzbek"],
    "azj_Latn": ["az", "aze", "azj", "Azerbaijani"],
    "est_Latn": ["et", "est", "ekk", "Estonian", "eesti"],
    "lvs_Latn": ["lv", "lav", "lvs", "Latvian"],
    "als_Latn": ["sq", "sqi", "alb", "Albanian"],
    "khk_Cyrl": ["mn", "mon", "Mongolian"],
    "deu_Latn": ["de", "ger", "deu", "de-AT", "German", "deutsch"],
    "ind_Latn": ["id", "in", "Indonesian"],
    "tgl_Latn": ["tl", "fil", "Filipino"],
    "gle_Latn": ["ga", "GA", "Irish"],
    "quc_Latn": ["K'iche'", "k’iche’"],
}


@pytest.mark.parametrize(("code", "alias"), [(code, alias) for code, names in ALIASES.items() for alias in names])
def test_aliases(code: str, alias: str) -> None:
    assert find_language(alias).code == code


@pytest.mark.parametrize(
    ("name", "because"),
    [
        ("heb_Hebr", "code"),
        ("he", "BCP-47 code"),
        ("heb", "ISO 639-3 code"),
        ("Hebrew", "English name"),
        ("עברית", "autonym"),
        ("iw", "withdrawn code"),
        ("ger", "ISO 639-2/B code"),
        ("ara", "macrolanguage Arabic: its standard form"),
        ("Pashto", "macrolanguage Pashto: its form in FLORES-200"),
        ("pt-BR", "BCP-47 code, region BR ignored"),
        ("kas", "ISO 639-3 code, in its usual script"),
        ("Farsi", "another English name"),
    ],
)
def test_says_what_it_took_a_name_for(name: str, because: str) -> None:
    resolution = resolve_language(name)
    assert (resolution.name, resolution.because) == (name, because)


@given(st.sampled_from(catalog()), st.sampled_from([str, str.lower, str.upper, lambda s: s.replace("_", "-")]))
def test_every_code_comes_back_however_it_is_written(language: Language, written) -> None:
    for name in (language.code, language.bcp47, f"{language.iso639_3}_{language.script}"):
        assert find_language(written(name)) is language


def test_every_name_comes_back_or_is_called_ambiguous() -> None:
    refused = {}
    for language in catalog():
        for name in (language.name, language.autonym, language.iso639_3):
            try:
                matched = find_language(name)
            except InputError as error:
                refused[name, language.code] = str(error)
            else:
                # another language only where the name is a code of that other one, or its usual script is another
                assert matched is language or name.casefold() in {
                    matched.iso639_3,
                    matched.autonym.casefold(),
                    matched.bcp47,
                }
    assert all(code in message for (_, code), message in refused.items())
    assert {"Ga", "Fur", "Mon", "Tem"} <= {name for name, _ in refused}
    assert len(refused) < 15


def test_stored_aliases_point_into_the_catalog() -> None:
    table = json.loads(files("fairbits").joinpath("assets/languages.json").read_text(encoding="utf-8"))
    for group in ("other codes", "other names"):
        for alias, (code, because) in table[group].items():
            assert (find_language(alias).code, resolve_language(alias).because) == (code, because)
    for codes in table["ambiguous"].values():
        assert all(find_language(code).code == code for code in codes)


@pytest.mark.parametrize(
    ("name", "suggested"),
    [("Hebrw", "heb_Hebr"), ("Swahilli", "swh_Latn"), ("heb_Hebrew", "heb_Hebr"), ("Germn", "deu_Latn")],
)
def test_an_unknown_name_gets_suggestions(name: str, suggested: str) -> None:
    with pytest.raises(InputError, match="is unknown") as error:
        find_language(name)
    assert suggested in str(error.value)
    assert str(error.value).count("_") <= 1 + 5  # heb_Hebr as an example, and at most five suggestions


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("Chinese", ["zho_Hans", "zho_Hant"]),
        ("中文", ["zho_Hans", "zho_Hant"]),
        ("Kurdish", ["kmr_Latn", "ckb_Arab"]),
        ("Ga", ["gle_Latn", "gaa_Latn"]),
        ("hbs", ["hrv_Latn", "srp_Cyrl"]),
    ],
)
def test_an_ambiguous_name_lists_what_it_may_be(name: str, codes: list[str]) -> None:
    with pytest.raises(InputError, match="is ambiguous") as error:
        find_language(name)
    assert all(code in str(error.value) for code in codes)


@pytest.mark.parametrize("bad", ["", " ", "-", "xx", "qqq_Qqqq", "x" * 1000, "\N{NULL}"])
def test_nonsense_is_refused(bad: str) -> None:
    with pytest.raises(InputError, match="is unknown"):
        find_language(bad)


@pytest.mark.parametrize("bad", [None, 3, b"he", ["he"]])
def test_only_strings_name_a_language(bad: object) -> None:
    with pytest.raises(InputError, match="must be a str"):
        find_language(bad)  # type: ignore[arg-type]


def test_find_languages_keeps_order_and_refuses_doubles() -> None:
    assert [language.code for language in find_languages(["sw", "Hebrew"])] == ["swh_Latn", "heb_Hebr"]
    with pytest.raises(InputError, match=r"Hebrew \(heb_Hebr\) twice, as 'he' and as 'iw'"):
        find_languages(["he", "en", "iw"])
    with pytest.raises(InputError, match="must be a list"):
        find_languages("he")


def test_the_page_lists_this_catalog() -> None:
    page = (ROOT / "docs/languages.md").read_text(encoding="utf-8")
    assert f"fairbits knows {len(catalog())} languages" in page
    for language in catalog():
        facts = (language.code, language.bcp47, language.name, language.autonym, language.family)
        assert f"| {' | '.join(facts)} |" in page, "run `python benchmarks/detection.py --write`"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("zh-yue", "yue_Hant"),
        ("zh-US", "zho_Hant"),
        ("zh-MY", "zho_Hans"),
        ("yue-CN", "yue_Hans"),
        ("sr-RO", "srp_Latn"),
        ("az-IR", "azb_Arab"),
        ("Flemish", "nld_Latn"),
        ("Moldavian", "ron_Latn"),
        ("TÜRKÇE", "tur_Latn"),
        ("\u200fעברית", "heb_Hebr"),
        ("he\u200e", "heb_Hebr"),
    ],
)
def test_names_as_users_write_them(name, code) -> None:
    assert find_language(name).code == code


@pytest.mark.parametrize(("tag", "code"), [("pa-PK", "pan_Arab"), ("uz-AF", "uzb_Arab"), ("mn-CN", "mon_Mong")])
def test_a_region_with_another_script_means_the_language_in_that_script(tag, code) -> None:
    assert find_language(tag).code == code


def test_a_region_whose_script_is_not_known_is_not_left_aside() -> None:
    with pytest.raises(InputError, match="is unknown"):
        find_language("ku-IQ")  # not in Latin script, as Kurdish usually is


def test_a_long_name_is_not_repeated_whole() -> None:
    with pytest.raises(InputError) as caught:
        find_language("x" * 100_000)
    assert len(str(caught.value)) < 300
