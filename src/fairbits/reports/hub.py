"""A report as the files of a repository on the Hugging Face Hub: model card, recipe and page."""

import copy
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairbits.artifacts import check_writable, write_files
from fairbits.errors import InputError, printable
from fairbits.reports.hub_facts import CARD, HubFacts, language_codes
from fairbits.reports.languages import FIRST_SCALE, LOSS_SCALE
from fairbits.reports.markdown import card, fence, quantize_command, text
from fairbits.reports.page import page

PAGE, RECIPE = "report.html", "recipe.yaml"
WRITTEN = "<!-- written by fairbits report -->"
"""A line of every card that may be replaced by a newer one."""
RECIPE_HEAD = "# How this model was quantized. The command repeats it, with the plan.json next to this file."
PIPELINES = {"causal": "text-generation", "masked": "fill-mask", "transcription": "automatic-speech-recognition"}
"""What the Hub calls a task; an encoder-decoder may be for many, and the Hub looks into its config.json."""
NO_DATASET = "unknown"
"""What stands for the id of a dataset where text is not one on the Hub."""
METRICS = {FIRST_SCALE: ("kl_divergence", "divergence"), LOSS_SCALE: ("added_loss", "added loss")}


def hub_files(content: Mapping[str, Any], facts: HubFacts) -> dict[str, str]:
    """Returns the content of every file by its name; without a plan there is no recipe."""
    shown = published(content, facts)
    files = {CARD: model_card(shown, facts), PAGE: page(shown)}
    if content["provenance"]["policy"] is not None:
        files[RECIPE] = recipe(shown)
    return files


def write_repository(files: Mapping[str, str], directory: Path) -> None:
    """Writes the files next to a model; a card or a recipe that fairbits has not written is left alone."""
    targets = {name: check_writable(directory / name, example=name) for name in files}
    for name, mark in ((CARD, WRITTEN), (RECIPE, RECIPE_HEAD)):
        if name in files and targets[name].exists() and mark.encode() not in targets[name].read_bytes():
            raise InputError(
                f"{targets[name]} was not written by fairbits report, and would be lost; "
                "move it away, or give another directory with --out"
            )
    write_files({targets[name]: content.encode() for name, content in files.items()})


def published(content: Mapping[str, Any], facts: HubFacts) -> dict[str, Any]:
    """Returns the content as others see it: models by their names on the Hub, not by paths on this machine."""
    shown = copy.deepcopy(dict(content))
    names = {content["methods"][0]["target"]: facts.repository}
    if facts.base_model is not None:
        names[content["model"]] = facts.base_model
        shown["model"] = facts.base_model
    for entry in (*shown["methods"], *shown["provenance"]["models"]):
        for key in ("name", "target"):
            entry[key] = names.get(entry[key], entry[key])
    return shown


def model_card(content: Mapping[str, Any], facts: HubFacts) -> str:
    """Returns README.md: front matter, how to load the model, and what quantization costs every language."""
    missing = [f"- {text(note)}" for note in _missing(content, facts)]
    parts = [
        f"---\n{front_matter(content, facts)}\n---",
        WRITTEN,
        f"# {text(facts.repository.rpartition('/')[2])}",
        *_load(content, facts),
        card(content).strip(),
        f"All figures: download [{PAGE}]({PAGE}) and open it in a browser; it needs no network.",
        *_recipe_link(content),
        *(["Not known when this card was written:", "\n".join(missing)] if missing else []),
    ]
    return "\n\n".join(parts) + "\n"


def front_matter(content: Mapping[str, Any], facts: HubFacts) -> str:
    """Returns the metadata in YAML, as huggingface_hub writes it."""
    from huggingface_hub import ModelCardData

    languages, _ = language_codes(each["code"] for each in content["languages"])
    licence: dict[str, Any] = {key: printable(value) for key, value in facts.license.items()}
    data = ModelCardData(
        base_model=facts.base_model,
        base_model_relation=None if facts.base_model is None else "quantized",
        language=languages or None,
        **licence,
        library_name="transformers",
        pipeline_tag=PIPELINES.get(content["provenance"]["evaluation"]["task"]),
        tags=_tags(facts),
        model_name=facts.repository.rpartition("/")[2],
        eval_results=list(_results(content)),
    )
    return data.to_yaml()


def recipe(content: Mapping[str, Any]) -> str:
    """Returns what was done to make the model, in YAML; the decision for every layer is in plan.json."""
    from huggingface_hub.utils import yaml_dump  # type: ignore[attr-defined]

    found = content["provenance"]
    reference = found["models"][0]
    data = {
        "fairbits": content["fairbits"],
        "model": content["model"],
        "fingerprint": reference["fingerprint"],
        "policy": found["policy"]["name"],
        "settings": found["policy"]["settings"],
        "languages": found["weights"],
        "calibration": found["calibration"],
        "command": shlex.join(map(str, quantize_command(content))),
    }
    return f"{RECIPE_HEAD}\n{yaml_dump(data, sort_keys=False)}"


def _tags(facts: HubFacts) -> list[str]:
    own = facts.widths
    widths = [f"{own.bits[0]}-bit"] if len(own.bits) == 1 else ["mixed-precision"] if own.bits else []
    return list(filter(None, (own.method, "fairbits", *widths, own.scheme)))


def _results(content: Mapping[str, Any]) -> Iterator[Any]:
    """Yields what the Hub shows as evaluation results: both kinds of damage of every language."""
    from huggingface_hub import EvalResult

    asked = content["provenance"]["evaluation"]
    for row in content["languages"]:
        for scale, (kind, title) in METRICS.items():
            damage = row["methods"][0]["damage"][scale]
            yield EvalResult(
                task_type=PIPELINES.get(asked["task"], "text-generation"),
                dataset_type=NO_DATASET,
                dataset_name=printable(asked["text"]),
                dataset_config=printable(row["code"]),
                dataset_split=asked["split"],
                metric_type=kind,
                metric_name=f"{title}, bits per byte, {printable(row['name'])}",
                metric_value=round(damage["value"], 6),
                metric_args=_limits(damage),
            )


def _limits(damage: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the interval of an estimate; empty if it has none."""
    if damage["low"] is None:
        return {}
    return {key: round(damage[key], 6) for key in ("low", "high")} | {"confidence": damage["confidence"]}


def _load(content: Mapping[str, Any], facts: HubFacts) -> list[str]:
    """Returns how to load a model that predicts text from left to right; other models have other classes."""
    if PIPELINES.get(content["provenance"]["evaluation"]["task"]) != "text-generation":
        return []
    code = (
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f'model = AutoModelForCausalLM.from_pretrained("{facts.repository}")\n'
        f'tokenizer = AutoTokenizer.from_pretrained("{facts.repository}")'
    )
    served = ["Or with vLLM:", fence(["vllm", "serve", facts.repository])] if _is_served(content, facts) else []
    return [f"```python\n{code}\n```", *served]


def _is_served(content: Mapping[str, Any], facts: HubFacts) -> bool:
    """Returns whether vLLM is known to load such a checkpoint: one width of 4 or 8 bits, in blocks alone."""
    outside = (content["allocation"] or {"outside": ()})["outside"]
    plain = all(each["bits"] is None for each in outside)
    return plain and facts.widths.method == "compressed-tensors" and facts.widths.bits in ((4,), (8,))


def _recipe_link(content: Mapping[str, Any]) -> list[str]:
    if content["provenance"]["policy"] is None:
        return []
    return [f"How it was made: [{RECIPE}]({RECIPE}), and the decision for every layer: [plan.json](plan.json)."]


def _missing(content: Mapping[str, Any], facts: HubFacts) -> Iterator[str]:
    """Yields what the card leaves out."""
    if facts.base_model is None:
        yield "the id of the base model on the Hub"
    if not facts.license:
        yield "the licence: see the base model's"
    _, unnamed = language_codes(each["code"] for each in content["languages"])
    if unnamed:
        yield f"codes of the Hub for the languages {', '.join(unnamed)}"
