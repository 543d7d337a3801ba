import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbits.text.language_codes import LONGEST, parse_tag, user_code

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
    found = parse_tag(tag)
    assert (found.code, found.bcp47, found.name) == TAGS[tag]


@pytest.mark.parametrize("text", ["", "-", "xx", "zzz", "frech", "jp", "de-1996-x", "qqq-Qqqq", "de-Latx", "de-XX1"])
def test_what_is_not_registered_is_not_a_tag(text) -> None:
    assert parse_tag(text) is None


def test_a_tag_that_is_too_long_is_not_one() -> None:
    assert parse_tag("de-x-" + "-".join(["private"] * 6)) is not None
    assert parse_tag("de-x-" + "-".join(["private"] * 7)) is None
    assert parse_tag("de-" + "x" * 100_000) is None


@given(st.from_regex("[a-z]{2,3}(-[A-Z][a-z]{3})?(-[A-Z]{2})?(-x-[a-z]{1,8})?", fullmatch=True))
def test_the_code_and_the_tag_of_a_language_mean_that_language(text) -> None:
    found = parse_tag(text)
    if found is not None:
        assert parse_tag(found.code).code == parse_tag(found.bcp47).code == found.code


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
