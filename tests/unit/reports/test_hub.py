"""The files for the Hub: huggingface_hub reads the card and finds what was measured; text of others stays text."""

import copy
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from fairbits.core.errors import InputError, printable
from fairbits.quantization.plan import Plan
from fairbits.reports.content import Report
from fairbits.reports.hub_card import WRITTEN, HubFacts, Widths, collect_facts, hub_files, model_card, published, recipe

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
    with pytest.raises(InputError, match="is not a directory; give that of the quantized model"):
        Report(found).save_for_hub(tmp_path / "gone")
