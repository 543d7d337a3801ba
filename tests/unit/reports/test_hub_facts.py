"""What a model card says of a model beside its measurements: base model, licence, widths, languages, name."""

import copy
from pathlib import Path

import pytest
from huggingface_hub.utils import validate_repo_id
from hypothesis import given
from hypothesis import strategies as st

from fairbits.core.errors import InputError
from fairbits.reports.hub_card import (
    Widths,
    check_id,
    collect_facts,
    find_hub_id,
    find_license,
    hub_languages,
    stored_widths,
    suggested_name,
)
from fairbits.text.catalog import catalog

FOUR = Widths((4,), 128, "compressed-tensors")


@given(st.text(max_size=200))
def test_any_model_gets_a_name_that_the_hub_takes(model: str) -> None:
    validate_repo_id(f"me/{suggested_name(model, FOUR)}")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("org/Model-1B", "Model-1B-W4A16-G128"),
        ("/home/me/models/Model-1B/", "Model-1B-W4A16-G128"),
        ("Model.Q4_1.gguf", "Model.Q4_1-W4A16-G128"),
        ("embedded:tiny", "tiny-W4A16-G128"),
        ("|||", "model-W4A16-G128"),
    ],
)
def test_a_name_is_made_of_the_base_the_width_and_the_group(model: str, name: str) -> None:
    assert suggested_name(model, FOUR) == name


def test_the_widths_are_those_of_the_plan(found) -> None:
    assert stored_widths(found, {}) == Widths((3,), "channel", "compressed-tensors")
    own = copy.deepcopy(found)
    own["allocation"]["bits"][0][0] = 8
    assert stored_widths(own, {}).suffix == "W3-8A16-channel"


@pytest.mark.parametrize(
    ("stored", "widths"),
    [
        (None, Widths((), None, None)),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, Widths((4,), 64, "gptq")),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 128, "strategy": "group"}}},
            },
            FOUR,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "a": {"weights": {"num_bits": 8, "group_size": None, "strategy": "channel"}},
                    "b": {"weights": {"num_bits": 4, "group_size": None, "strategy": "channel"}},
                },
            },
            Widths((4, 8), "channel", "compressed-tensors"),
        ),
        ({"quant_method": 7, "bits": "four", "config_groups": [1]}, Widths((), None, None)),
        ({"config_groups": {"a": 3, "b": {"weights": 4}}}, Widths((), None, None)),
    ],
)
def test_without_a_plan_the_widths_are_those_of_the_configuration(found, stored: object, widths: Widths) -> None:
    own = copy.deepcopy(found)
    own["provenance"]["policy"] = None
    assert stored_widths(own, {"quantization_config": stored}) == widths


def test_every_language_of_the_catalog_has_a_code_of_two_or_three_letters() -> None:
    codes, unknown = hub_languages(each.code for each in catalog())
    assert not unknown
    assert {"ar", "de", "en", "fa", "he", "nb", "sw", "zh", "ace"} <= set(codes)
    assert all(2 <= len(each) <= 3 for each in codes)
    assert not {"deu", "eng", "zho"} & set(codes)


@pytest.mark.parametrize(
    "target", ["./org/model", "~/model", "/org/model", "embedded:tiny", "a/b/c", "model", "o/m.gguf"]
)
def test_a_path_is_no_id(target: str) -> None:
    assert find_hub_id(target) is None


def test_a_directory_that_looks_like_an_id_is_none(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_hub_id("org/model") == "org/model"
    Path("org/model").mkdir(parents=True)
    assert find_hub_id("org/model") is None


@pytest.mark.parametrize("odd", ["model", "a/b/c", "a b/c", "", "-a/b", "a/b.git", "<i>/x", "a/b\n"])
def test_an_id_that_the_hub_would_refuse_is_refused(odd: str) -> None:
    with pytest.raises(InputError, match="it must be an id on the Hub"):
        check_id("the base model", odd)


@pytest.mark.parametrize(
    ("card", "found"),
    [
        ("---\nlicense: MIT\n---\n", {"license": "mit"}),
        (
            "---\nlicense: other\nlicense_name: own\nlicense_link: LICENSE\n---\n",
            {"license": "other", "license_name": "own", "license_link": "LICENSE"},
        ),
        ("no front matter", {}),
        ("---\nlicense: [a, b]\n---\n", {}),
        ("---\nlicense: '<script>'\n---\n", {}),
        ("---\nlicense: {\n---\n", {}),
        ("---\n- a\n---\n", {}),
        ("---\nlicense: mit\nmodel-index: 7\n---\n", {"license": "mit"}),
    ],
)
def test_the_licence_is_that_of_the_card_next_to_the_model(tmp_path: Path, card: str, found: dict[str, str]) -> None:
    (tmp_path / "README.md").write_text(card, encoding="utf-8")
    assert find_license(str(tmp_path)) == found


def test_a_model_without_a_card_has_no_licence(tmp_path: Path) -> None:
    assert find_license(str(tmp_path)) == find_license("org/not-in-the-cache") == find_license("gone.gguf") == {}
    (tmp_path / "README.md").write_bytes(b"\xff\xfe---")
    assert find_license(str(tmp_path)) == {}
    assert find_license("embedded:tiny") == {"license": "apache-2.0"}


def test_what_is_not_known_is_noted_and_what_is_given_is_taken(found) -> None:
    facts = collect_facts(found, {})
    assert (facts.base_model, facts.license) == (None, {})
    assert [note.split(" is left out: ")[0] for note in facts.notes] == ["base_model", "license"]
    given = collect_facts(found, {}, base_model="org/model", license="mit", repository="me/mine")
    assert (given.base_model, given.license, given.repository) == ("org/model", {"license": "mit"}, "me/mine")
    assert given.notes == ()
    assert collect_facts(found, {}, base_model="org/model").repository == "OWNER/model-W3A16-channel"
    with pytest.raises(InputError, match="the licence is 'The MIT licence'"):
        collect_facts(found, {}, license="The MIT licence")
