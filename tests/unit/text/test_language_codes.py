import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbits.core.errors import InputError
from fairbits.text.catalog import catalog
from fairbits.text.language_codes import (
    LONGEST,
    find_language,
    find_languages,
    language_from_code,
    parse_tag,
    requested_languages,
    resolve_language,
    short_name,
    unlisted_notes,
    user_code,
    user_codes,
    user_language,
)


@pytest.mark.parametrize("name", ["de", "deu", "ger", "de-Latn", "deu_Latn", "German", "de-u-co-phonebk"])
def test_all_names_of_a_language_mean_it(name) -> None:
    assert find_language(name).code == "deu_Latn"
    assert find_language(name).listed


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        # code, ISO 639-3, BCP-47, name, script, family
        ("frr", ("frr_Latn", "frr", "frr", "Northern Frisian", "Latn", "")),
        ("frr_Latn", ("frr_Latn", "frr", "frr", "Northern Frisian", "Latn", "")),
        ("bar-AT", ("bar_Latn", "bar", "bar", "Bavarian", "Latn", "")),
        ("deu_Cyrl", ("deu_Cyrl", "deu", "de-Cyrl", "German (Cyrillic script)", "Cyrl", "Indo-European")),
        ("ca-valencia", ("cat_Latn-valencia", "cat", "ca-valencia", "Catalan (valencia)", "Latn", "Indo-European")),
        (
            "cmn-x-net",
            ("zho_Hans-x-net", "cmn", "zh-Hans-x-net", "Chinese (Simplified) (x-net)", "Hans", "Sino-Tibetan"),
        ),
        ("tlh", ("tlh", "tlh", "tlh", "Klingon", "", "")),
        ("qaa", ("qaa", "qaa", "qaa", "qaa", "", "")),
        ("QAA-latn", ("qaa_Latn", "qaa", "qaa-Latn", "qaa_Latn", "Latn", "")),
        ("x-My-Dialect", ("x-my-dialect", "", "x-my-dialect", "x-my-dialect", "", "")),
    ],
)
def test_languages_outside_the_catalog(name, facts) -> None:
    language = find_language(name)
    assert (language.code, language.iso639_3, language.bcp47, language.name, language.script, language.family) == facts
    assert not language.listed
    assert language.autonym == ""
    assert language == find_language(language.code) == language_from_code(language.code) == user_language(name)


def test_it_is_said_why_a_tag_was_read_as_a_language() -> None:
    assert resolve_language("frr").because == "BCP-47 code"
    assert resolve_language("frr-DE").because == "BCP-47 code, region DE ignored"
    assert resolve_language("x-mine").because == "private-use tag"
    assert resolve_language("mine", user_codes=["mine"]).because == "a name from your text"


def test_scripts_outside_the_catalog_run_from_right_to_left_too() -> None:
    assert find_language("rhg-Rohg").right_to_left
    assert not find_language("frr").right_to_left
    assert not find_language("qaa").right_to_left


def test_a_name_that_the_user_invented_is_known_where_text_has_it() -> None:
    assert find_language("My-Dialect", user_codes={"my-dialect": ()}).code == "my-dialect"
    assert [language.code for language in find_languages(["fr", "mine"], user_codes=["mine"])] == ["fra_Latn", "mine"]
    with pytest.raises(InputError, match="'my-dialect' is unknown"):
        find_language("my-dialect")
    with pytest.raises(InputError, match="'my-dialect' is unknown"):
        find_language("my-dialect", user_codes=["another"])


def test_text_that_is_yet_to_be_read_may_have_any_safe_name() -> None:
    assert [language.code for language in requested_languages(["fr", "frech", "qaa"])] == ["fra_Latn", "frech", "qaa"]
    assert user_codes(["Mine", "a/b"]) == {"mine"}
    with pytest.raises(InputError, match="'a/b' is unknown"):
        requested_languages(["a/b"])
    with pytest.raises(InputError, match="mine twice"):
        requested_languages(["mine", "MINE"])
    with pytest.raises(InputError, match="must be a str"):
        requested_languages([3])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("frech", r"did you mean French \(fra_Latn\)\? If it is your own name, call it x-frech"),
        ("englsh", r"English \(eng_Latn\)"),
        ("heb_Hebrew", r"Hebrew \(heb_Hebr\)"),
        ("jp", "call it x-jp"),  # a region
        ("zzz", "no such code is registered"),
        ("qqq_Qqqq", "no such code is registered"),
        ("base", "not be base"),
        ("../fra", "at most 64 letters"),
        ("", "at most 64 letters"),
        ("Chinese", "is ambiguous"),
    ],
)
def test_what_may_be_a_misspelling_or_is_not_safe_is_refused_as_a_name_of_text(name, message) -> None:
    with pytest.raises(InputError, match=message):
        user_language(name)


@pytest.mark.parametrize(
    "name", ["x-frech", "x-jp", "my-dialect", "klingon-dialect", "legal-en", "news", "mine", "方言"]
)
def test_other_names_of_text_are_accepted_as_they_are(name) -> None:
    assert user_language(name).code == user_language(name).name == str(user_language(name)) == name


@given(st.text(max_size=80))
def test_any_name_gives_a_safe_code_or_an_input_error(name) -> None:
    for find in (find_language, user_language):
        try:
            code = find(name).code
        except InputError:
            continue
        assert 0 < len(code) <= 64
        assert all(character.isalnum() or character in "-_" for character in code)
        assert find(code).code == code == language_from_code(code).code


@given(st.from_regex("[a-z]{2,3}([_-][A-Z][a-z]{3})?([_-][A-Z]{2})?(-(1996|x-[a-z]{1,8}))?", fullmatch=True))
def test_what_looks_like_a_tag_gives_a_safe_code_or_an_input_error(name) -> None:
    try:
        language = user_language(name)
    except InputError:
        return
    assert user_language(language.code) == user_language(language.bcp47 or language.code) == language


@given(st.text())
def test_every_code_in_a_result_has_a_language(code) -> None:
    assert language_from_code(code).name or not code


def test_the_languages_of_the_catalog_are_those_of_their_codes() -> None:
    assert all(language_from_code(language.code) is language and language.listed for language in catalog())


def test_notes_name_what_the_catalog_does_not_hold() -> None:
    languages = [user_language(name) for name in ("fra", "frr", "bar", "qaa", "mine")]
    assert unlisted_notes(languages) == (
        "not in the catalog, named as in the IANA registry: Northern Frisian (frr_Latn), Bavarian (bar_Latn)",
        "private codes, kept as given: qaa, mine",
    )
    assert unlisted_notes(languages[:1]) == ()


def test_the_registry_is_read_only_for_a_tag_that_needs_it() -> None:
    code = "import sys; from fairbits.text.included_texts import find_languages as find, udhr; find(['he']); "
    code += "udhr(['en', 'fr']); "
    code += "print('langcodes' in sys.modules); find(['frr']); print('langcodes' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


# tag: code, BCP-47 tag, name; written by hand
TAGS = {
    "frr": ("frr_Latn", "frr", "Northern Frisian"),
    "bar": ("bar_Latn", "bar", "Bavarian"),
    "bar-AT": ("bar_Latn", "bar", "Bavarian"),
    "FRR_latn": ("frr_Latn", "frr", "Northern Frisian"),
    "frr-Cyrl": ("frr_Cyrl", "frr-Cyrl", "Northern Frisian (Cyrillic script)"),
    "tlh": ("tlh", "tlh", "Klingon"),  # CLDR has no script for it
    "i-klingon": ("tlh", "tlh", "Klingon"),
    "deu": ("deu_Latn", "de", "German"),
    "ger": ("deu_Latn", "de", "German"),
    "iw": ("heb_Hebr", "he", "Hebrew"),
    "ko": ("kor_Hang", "ko", "Korean"),
    "zh-yue": ("yue_Hant", "yue", "Yue Chinese"),
    "swc": ("swc_Latn", "swc", "Congo Swahili"),  # not Swahili of Tanzania, as CLDR would have it
    "de-1996": ("deu_Latn-1996", "de-1996", "German (1996)"),
    "de-AT-1996": ("deu_Latn-1996", "de-1996", "German (1996)"),
    "de-x-mine": ("deu_Latn-x-mine", "de-x-mine", "German (x-mine)"),
    "qaa": ("qaa", "qaa", "qaa"),
    "qaa-Latn": ("qaa_Latn", "qaa-Latn", "qaa (Latin script)"),
    "und": ("und", "und", "Undetermined"),  # not English, as CLDR would guess
    "mul": ("mul", "mul", "Multiple languages"),
}


@pytest.mark.parametrize("tag", TAGS)
def test_tags_by_hand(tag) -> None:
    parsed = parse_tag(tag)
    assert (parsed.code, parsed.bcp47, parsed.name) == TAGS[tag]


@pytest.mark.parametrize("text", ["", "-", "xx", "zzz", "frech", "jp", "de-1996-x", "qqq-Qqqq", "de-Latx", "de-XX1"])
def test_what_is_not_registered_is_not_a_tag(text) -> None:
    assert parse_tag(text) is None


def test_a_tag_that_is_too_long_is_not_one() -> None:
    assert parse_tag("de-x-" + "-".join(["private"] * 6)) is not None
    assert parse_tag("de-x-" + "-".join(["private"] * 7)) is None
    assert parse_tag("de-" + "x" * 100_000) is None


@given(st.from_regex("[a-z]{2,3}(-[A-Z][a-z]{3})?(-[A-Z]{2})?(-x-[a-z]{1,8})?", fullmatch=True))
def test_the_code_and_the_tag_of_a_language_mean_that_language(text) -> None:
    parsed = parse_tag(text)
    if parsed is not None:
        assert parse_tag(parsed.code).code == parse_tag(parsed.bcp47).code == parsed.code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("my-dialect", "my-dialect"),
        (" My_Dialect2 ", "my_dialect2"),
        ("方言", "方言"),
        ("E\u0301lan", "élan"),
        ("x" * LONGEST, "x" * LONGEST),
    ],
)
def test_names_of_the_user(text, code) -> None:
    assert user_code(text) == code


UNSAFE = ["", "-a", "_a", "1a", "a-", "a b", "a.b", "a/b", "..", "a\\b", "a,b", "a=b", "a:b", "a+b", "a\0", "a\u202eb"]


@pytest.mark.parametrize("text", [*UNSAFE, "x" * (LONGEST + 1)])
def test_unsafe_names(text) -> None:
    assert user_code(text) is None


@given(st.text())
def test_any_text_is_a_safe_name_or_none(text) -> None:
    code = user_code(text)
    if code is not None:
        assert user_code(code) == code
        assert 0 < len(code) <= LONGEST
        assert code.isprintable()
        assert not set(code) & set(" ./\\,;:=+\"'%")


def test_short_names_have_no_script():
    assert [short_name(code) for code in ("zho_Hans", "arb_Arab")] == ["Chinese", "Arabic"]
