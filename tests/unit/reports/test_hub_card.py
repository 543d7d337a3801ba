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


def facts(report_content: dict[str, Any], **overrides: str) -> HubFacts:
    return collect_facts(
        report_content, {}, **{"base_model": "org/Model", "license": "mit", "repository": "me/mine", **overrides}
    )


def test_huggingface_hub_finds_the_metadata(report_content) -> None:
    data = ModelCard(model_card(report_content, facts(report_content))).data
    assert (data.base_model, data.base_model_relation, data.license) == ("org/Model", "quantized", "mit")
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-generation")
    assert data.language == ["en", "he", "ja", "sw"]
    assert report_content["headline"]["meaning"]["level"] in model_card(report_content, facts(report_content))
    assert data.tags == ["compressed-tensors", "fairbits", "3-bit", "W3A16"]


def test_huggingface_hub_finds_the_results_of_every_language(report_content) -> None:
    data = ModelCard(model_card(report_content, facts(report_content))).data
    assert data.model_name == "mine"
    results = {(result.dataset_config, result.metric_type): result for result in data.eval_results}
    assert len(results) == len(data.eval_results) == 3 * len(report_content["languages"])
    for row in report_content["languages"]:
        for scale, kind in (
            ("changed_of_100", "changed_first_choices"),
            ("divergence_bits_per_byte", "kl_divergence"),
            ("loss_bits_per_byte", "added_loss"),
        ):
            result, damage = results[row["code"], kind], row["methods"][0]["damage"][scale]
            assert result.metric_value == pytest.approx(damage["value"], abs=1e-6)
            assert result.metric_args["low"] == pytest.approx(damage["low"], abs=1e-6)
            assert result.metric_args["high"] == pytest.approx(damage["high"], abs=1e-6)
            assert (result.task_type, result.dataset_name, result.dataset_split) == (
                "text-generation",
                "udhr",
                "evaluation",
            )
            assert (
                result.dataset_type == "unknown"
            )  # the Hub wants the id of a dataset of its own, or no more than a word


def test_what_is_not_known_is_left_out_of_the_metadata_and_said(report_content) -> None:
    text = model_card(report_content, collect_facts(report_content, {}))
    data = ModelCard(text).data.to_dict()
    assert not {"base_model", "base_model_relation", "license"} & data.keys()
    assert "Not known when this card was written:\n\n- the id of the base model on the Hub\n- the licence: see" in text
    assert "Not known" not in model_card(report_content, facts(report_content))


def test_languages_without_a_code_of_the_hub_are_left_out_and_said(report_content) -> None:
    modified = copy.deepcopy(report_content)
    renamed = modified["languages"][0]["code"]
    modified["languages"][0] |= {"code": "my-dialect", "name": "my-dialect"}
    for scale in (modified["headline"], modified["headline"]["changed"]):
        for worst in (scale["worst"][side] for side in ("baseline", "quantized")):
            worst["language"] = "my-dialect" if worst["language"] == renamed else worst["language"]
    text = model_card(modified, facts(report_content))
    assert len(ModelCard(text).data.language) == 3
    assert "- codes of the Hub for the languages my-dialect" in text


@pytest.mark.parametrize(
    ("task", "tag"), [("masked", "fill-mask"), ("completion", None), ("transcription", "automatic-speech-recognition")]
)
def test_other_tasks_have_other_tags_and_no_code_for_generation(report_content, task: str, tag: str | None) -> None:
    modified = copy.deepcopy(report_content)
    modified["provenance"]["evaluation"]["task"] = task
    text = model_card(modified, facts(report_content))
    assert ModelCard(text).data.pipeline_tag == tag
    assert "AutoTokenizer" not in text


def test_vllm_is_named_only_for_checkpoints_that_it_loads(report_content) -> None:
    def named(bits: tuple[int, ...], method: str = "compressed-tensors", outside: int | None = None) -> bool:
        modified = copy.deepcopy(report_content)
        modified["allocation"]["outside"][0]["bits"] = outside
        return "vllm serve me/mine" in model_card(modified, HubFacts(None, {}, "me/mine", Widths(bits, 128, method)))

    assert named((4,))
    assert not named((3,))
    assert not named((4, 8))
    assert not named((4,), "other")
    assert not named((4,), outside=8)


def test_models_have_their_names_on_the_hub_not_paths(report_content) -> None:
    files = hub_files(report_content, facts(report_content))
    for path in (report_content["model"], report_content["methods"][0]["target"]):
        assert path not in files["README.md"]
        assert path not in files["recipe.yaml"]
    shown = published(report_content, facts(report_content))
    assert [model["target"] for model in shown["provenance"]["models"]][:2] == ["org/Model", "me/mine"]
    assert (
        report_content["provenance"]["models"][0]["target"] == report_content["model"]
    )  # nothing was changed in place


def test_the_recipe_says_what_was_done(report_content, finished_run: Path) -> None:
    parsed = yaml.safe_load(recipe(published(report_content, facts(report_content))))
    plan = Plan.load(finished_run / "model" / "plan.json")
    assert (parsed["policy"], parsed["settings"], parsed["fingerprint"]) == (
        plan.policy,
        plan.settings,
        plan.fingerprint,
    )
    assert parsed["languages"] == plan.languages
    assert parsed["calibration"]["hashes"] == plan.calibration.hashes
    assert shlex.split(parsed["command"])[:5] == ["fairbits", "quantize", "org/Model", "--plan", "plan.json"]


def test_without_a_plan_there_is_no_recipe(report_content) -> None:
    modified = copy.deepcopy(report_content)
    modified["provenance"]["policy"] = None
    files = hub_files(modified, facts(report_content))
    assert set(files) == {"README.md", "report.html"}
    assert "recipe.yaml" not in files["README.md"]


@pytest.mark.parametrize("odd", HOSTILE)
def test_text_of_others_stays_text(report_content, odd: str) -> None:
    modified = copy.deepcopy(report_content)
    modified["model"] = modified["fairbits"] = modified["provenance"]["evaluation"]["text"] = odd
    modified["provenance"]["policy"] = {"name": odd, "settings": {"mix": odd, "group": odd}}
    modified["provenance"]["run"] = None
    modified["provenance"]["calibration"]["text"] = odd
    modified["headline"]["sentences"][0] = modified["methods"][0]["name"] = modified["languages"][0]["name"] = odd
    modified["notes"] = [{"from": odd, "text": odd}]
    hub_facts = HubFacts(None, {"license": "other", "license_name": odd}, "me/mine", Widths((4,), 128, odd))
    text = model_card(modified, hub_facts)
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
    parsed = yaml.safe_load(recipe(modified))
    assert (parsed["model"], parsed["policy"], parsed["settings"]["group"]) == (odd, odd, odd)


def test_files_are_written_next_to_the_model_and_again(report_content, tmp_path: Path) -> None:
    report = Report(report_content)
    assert report.save_for_hub(tmp_path, repository="me/mine").repository == "me/mine"
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "recipe.yaml", "report.html"}
    report.save_for_hub(tmp_path, repository="me/other")
    assert "# other\n" in (tmp_path / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["README.md", "recipe.yaml"])
def test_the_card_or_recipe_of_another_is_not_replaced(report_content, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match="was not written by fairbits report"):
        Report(report_content).save_for_hub(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_directory_must_be_there(report_content, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a directory; give the directory of the quantized model"):
        Report(report_content).save_for_hub(tmp_path / "gone")


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


def test_the_widths_are_those_of_the_plan(report_content) -> None:
    assert stored_widths(report_content, {}) == Widths((3,), "channel", "compressed-tensors")
    modified = copy.deepcopy(report_content)
    modified["allocation"]["bits"][0][0] = 8
    assert stored_widths(modified, {}).suffix == "W3-8A16-channel"


def packed_as(*weights: dict[str, object]) -> dict[str, object]:
    """Returns what config.json says of a checkpoint with a group for each scheme of weights."""
    groups = {f"group_{i}": {"targets": ["Linear"], "weights": how} for i, how in enumerate(weights)}
    status = {"quantization_status": "compressed", "format": "pack-quantized"}
    return {"quant_method": "compressed-tensors", "config_groups": groups, **status}


@pytest.mark.parametrize(
    ("stored", "widths"),
    [
        (None, Widths((), None, None)),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, Widths((4,), 64, "gptq")),
        (packed_as({"num_bits": 4, "group_size": 128, "strategy": "group"}), FOUR),
        (
            packed_as({"num_bits": 8, "strategy": "channel"}, {"num_bits": 4, "strategy": "channel"}),
            Widths((4, 8), "channel", "compressed-tensors"),
        ),
        (
            {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
            Widths((8,), "block", "fp8", floats=True, inputs=8),
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16},
            Widths((4,), 16, "modelopt", floats=True, inputs=4),
        ),
        ({"quant_method": 7, "bits": "four", "config_groups": [1]}, Widths((), None, None)),
        ({"config_groups": {"a": 3, "b": {"weights": 4}}}, Widths((), None, None)),
    ],
)
def test_without_a_plan_the_widths_are_those_of_the_configuration(
    report_content, stored: object, widths: Widths
) -> None:
    modified = copy.deepcopy(report_content)
    modified["provenance"]["policy"] = None
    assert stored_widths(modified, {"quantization_config": stored}) == widths


def test_every_language_of_the_catalog_has_a_code_of_two_or_three_letters() -> None:
    codes, unknown = hub_languages(language.code for language in catalog())
    assert not unknown
    assert {"ar", "de", "en", "fa", "he", "nb", "sw", "zh", "ace"} <= set(codes)
    assert all(2 <= len(code) <= 3 for code in codes)
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
    ("card", "license_data"),
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
def test_the_licence_is_that_of_the_card_next_to_the_model(
    tmp_path: Path, card: str, license_data: dict[str, str]
) -> None:
    (tmp_path / "README.md").write_text(card, encoding="utf-8")
    assert find_license(str(tmp_path)) == license_data


def test_a_model_without_a_card_has_no_licence(tmp_path: Path) -> None:
    assert find_license(str(tmp_path)) == find_license("org/not-in-the-cache") == find_license("gone.gguf") == {}
    (tmp_path / "README.md").write_bytes(b"\xff\xfe---")
    assert find_license(str(tmp_path)) == {}
    assert find_license("embedded:tiny") == {"license": "apache-2.0"}


def test_what_is_not_known_is_noted_and_what_is_given_is_taken(report_content) -> None:
    facts = collect_facts(report_content, {})
    assert (facts.base_model, facts.license) == (None, {})
    assert [note.split(" is left out: ")[0] for note in facts.notes] == ["base_model", "license"]
    complete = collect_facts(report_content, {}, base_model="org/model", license="mit", repository="me/mine")
    assert (complete.base_model, complete.license, complete.repository) == ("org/model", {"license": "mit"}, "me/mine")
    assert complete.notes == ()
    assert collect_facts(report_content, {}, base_model="org/model").repository == "OWNER/model-W3A16-channel"
    with pytest.raises(InputError, match="the licence is 'The MIT licence'"):
        collect_facts(report_content, {}, license="The MIT licence")
