"""The files for the Hub: huggingface_hub reads the card and finds what was measured; text of others stays text."""

import copy
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.utils import validate_repo_id
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from fairbits.core.errors import InputError, printable
from fairbits.quantization.plan import Plan
from fairbits.reports.content import Report
from fairbits.reports.hub_card import (
    WRITTEN,
    HubFacts,
    Widths,
    check_id,
    collect_facts,
    find_hub_id,
    find_license,
    hub_files,
    hub_languages,
    model_card,
    published,
    recipe,
    stored_widths,
    suggested_name,
)
from fairbits.text.catalog import catalog

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script> -->",
    "[x](javascript:alert(1)) ![y](https://e.example/y.png)",
    "a | b || c \\| d\\",
    "`code` ``` *em* $m$",
    "two\nlines\r\n---\nlicense: mit\n---\n# three\u2028",
    "{a: [b, *c, &d e], !!python/object:os.system x}",
    "yes",
    "1e3",
    "- x: # comment",
    "'\"%@`",
)


def facts(found: dict[str, Any], **given: str) -> HubFacts:
    return collect_facts(found, {}, **{"base_model": "org/Model", "license": "mit", "repository": "me/mine", **given})


def test_huggingface_hub_finds_the_metadata(found) -> None:
    data = ModelCard(model_card(found, facts(found))).data
    assert (data.base_model, data.base_model_relation, data.license) == ("org/Model", "quantized", "mit")
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-generation")
    assert data.language == ["en", "he", "ja", "sw"]
    assert data.tags == ["compressed-tensors", "fairbits", "3-bit", "W3A16"]


def test_huggingface_hub_finds_the_results_of_every_language(found) -> None:
    data = ModelCard(model_card(found, facts(found))).data
    assert data.model_name == "mine"
    results = {(each.dataset_config, each.metric_type): each for each in data.eval_results}
    assert len(results) == len(data.eval_results) == 2 * len(found["languages"])
    for row in found["languages"]:
        for scale, kind in (("divergence_bits_per_byte", "kl_divergence"), ("loss_bits_per_byte", "added_loss")):
            own, damage = results[row["code"], kind], row["methods"][0]["damage"][scale]
            assert own.metric_value == pytest.approx(damage["value"], abs=1e-6)
            assert own.metric_args["low"] == pytest.approx(damage["low"], abs=1e-6)
            assert own.metric_args["high"] == pytest.approx(damage["high"], abs=1e-6)
            assert (own.task_type, own.dataset_name, own.dataset_split) == ("text-generation", "udhr", "evaluation")
            assert own.dataset_type == "unknown"  # the Hub wants the id of a dataset of its own, or no more than a word


def test_what_is_not_known_is_left_out_of_the_metadata_and_said(found) -> None:
    text = model_card(found, collect_facts(found, {}))
    data = ModelCard(text).data.to_dict()
    assert not {"base_model", "base_model_relation", "license"} & data.keys()
    assert "Not known when this card was written:\n\n- the id of the base model on the Hub\n- the licence: see" in text
    assert "Not known" not in model_card(found, facts(found))


def test_languages_without_a_code_of_the_hub_are_left_out_and_said(found) -> None:
    own = copy.deepcopy(found)
    renamed = own["languages"][0]["code"]
    own["languages"][0] |= {"code": "my-dialect", "name": "my-dialect"}
    for worst in (own["headline"]["worst"][side] for side in ("before", "after")):
        worst["language"] = "my-dialect" if worst["language"] == renamed else worst["language"]
    text = model_card(own, facts(found))
    assert len(ModelCard(text).data.language) == 3
    assert "- codes of the Hub for the languages my-dialect" in text


@pytest.mark.parametrize(
    ("task", "tag"), [("masked", "fill-mask"), ("completion", None), ("transcription", "automatic-speech-recognition")]
)
def test_other_tasks_have_other_tags_and_no_code_for_generation(found, task: str, tag: str | None) -> None:
    own = copy.deepcopy(found)
    own["provenance"]["evaluation"]["task"] = task
    text = model_card(own, facts(found))
    assert ModelCard(text).data.pipeline_tag == tag
    assert "AutoModelForCausalLM" not in text


def test_vllm_is_named_only_for_checkpoints_that_it_loads(found) -> None:
    def named(bits: tuple[int, ...], method: str = "compressed-tensors", outside: int | None = None) -> bool:
        own = copy.deepcopy(found)
        own["allocation"]["outside"][0]["bits"] = outside
        return "vllm serve me/mine" in model_card(own, HubFacts(None, {}, "me/mine", Widths(bits, 128, method)))

    assert named((4,))
    assert not named((3,))
    assert not named((4, 8))
    assert not named((4,), "other")
    assert not named((4,), outside=8)


def test_models_have_their_names_on_the_hub_not_paths(found) -> None:
    files = hub_files(found, facts(found))
    for path in (found["model"], found["methods"][0]["target"]):
        assert path not in files["README.md"]
        assert path not in files["recipe.yaml"]
    shown = published(found, facts(found))
    assert [each["target"] for each in shown["provenance"]["models"]][:2] == ["org/Model", "me/mine"]
    assert found["provenance"]["models"][0]["target"] == found["model"]  # nothing was changed in place


def test_the_recipe_says_what_was_done(found, finished_run: Path) -> None:
    said = yaml.safe_load(recipe(published(found, facts(found))))
    plan = Plan.load(finished_run / "model" / "plan.json")
    assert (said["policy"], said["settings"], said["fingerprint"]) == (plan.policy, plan.settings, plan.fingerprint)
    assert said["languages"] == plan.languages
    assert said["calibration"]["hashes"] == plan.calibration.hashes
    assert shlex.split(said["command"])[:5] == ["fairbits", "quantize", "org/Model", "--plan", "plan.json"]


def test_without_a_plan_there_is_no_recipe(found) -> None:
    own = copy.deepcopy(found)
    own["provenance"]["policy"] = None
    files = hub_files(own, facts(found))
    assert set(files) == {"README.md", "report.html"}
    assert "recipe.yaml" not in files["README.md"]


@pytest.mark.parametrize("odd", HOSTILE)
def test_text_of_others_stays_text(found, odd: str) -> None:
    own = copy.deepcopy(found)
    own["model"] = own["fairbits"] = own["provenance"]["evaluation"]["text"] = odd
    own["provenance"]["policy"] = {"name": odd, "settings": {"mix": odd, "group": odd}}
    own["provenance"]["run"] = None
    own["provenance"]["calibration"]["text"] = odd
    own["headline"]["sentences"][0] = own["methods"][0]["name"] = own["languages"][0]["name"] = odd
    own["notes"] = [{"from": odd, "text": odd}]
    told = HubFacts(None, {"license": "other", "license_name": odd}, "me/mine", Widths((4,), 128, odd))
    text = model_card(own, told)
    data = ModelCard(text).data
    assert (data.license, data.license_name) == ("other", printable(odd))
    assert data.tags[0] == odd
    assert data.eval_results[0].dataset_name == printable(odd)
    assert data.eval_results[0].metric_name.endswith(printable(odd))
    body = PARSER.parse(text.split(f"\n{WRITTEN}\n", 1)[1])
    assert not [token for token in body if token.type == "html_block"]
    inside = {child.type for token in body for child in token.children or []}
    assert inside <= {"text", "text_special", "link_open", "link_close"}
    links = [child.attrs["href"] for token in body for child in token.children or [] if child.type == "link_open"]
    assert links == ["report.html", "recipe.yaml", "plan.json"]
    said = yaml.safe_load(recipe(own))
    assert (said["model"], said["policy"], said["settings"]["group"]) == (odd, odd, odd)


def test_files_are_written_next_to_the_model_and_again(found, tmp_path: Path) -> None:
    report = Report(found)
    assert report.save_for_hub(tmp_path, repository="me/mine").repository == "me/mine"
    assert {each.name for each in tmp_path.iterdir()} == {"README.md", "recipe.yaml", "report.html"}
    report.save_for_hub(tmp_path, repository="me/other")
    assert "# other\n" in (tmp_path / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["README.md", "recipe.yaml"])
def test_the_card_or_recipe_of_another_is_not_replaced(found, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match="was not written by fairbits report"):
        Report(found).save_for_hub(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_a_directory_must_be_there(found, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a directory; give the directory of the quantized model"):
        Report(found).save_for_hub(tmp_path / "gone")


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
