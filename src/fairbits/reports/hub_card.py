"""A report as the files of a repository on the Hugging Face Hub: model card, recipe and page."""

import copy
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbits.core.errors import InputError, printable
from fairbits.core.files import check_writable, write_files
from fairbits.models.embedded import PREFIX, find_embedded
from fairbits.models.scales.scheme import named_scheme
from fairbits.reports.markdown import card, quantize_command, render_markdown
from fairbits.reports.page import page
from fairbits.reports.report_languages import CHANGED, FIRST_SCALE, LOSS_SCALE
from fairbits.text.language_codes import PRIVATE_USE, language_from_code

CARD = "README.md"
OWNER = "OWNER"  # stands for the owner of a repository that is not named
LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{1,60}")  # what every licence id of the Hub looks like
CACHED = re.compile(r"models--([^/]+?)--([^/]+)/snapshots/")  # the path of a repository in the cache of huggingface_hub
ODD = re.compile(r"[^A-Za-z0-9_.]+|\.\.+|--+")  # what the name of a repository must not have
LONGEST = 96  # characters of a repository's name, at most
LICENSE_KEYS = ("license", "license_name", "license_link")
PAGE, RECIPE = "report.html", "recipe.yaml"
WRITTEN = "<!-- written by fairbits report -->"  # a line of every card that may be replaced by a newer one
RECIPE_HEAD = "# How this model was quantized. The command repeats it, with the plan.json next to this file."
PIPELINES = {"causal": "text-generation", "masked": "fill-mask", "transcription": "automatic-speech-recognition"}
"""What the Hub calls a task; an encoder-decoder may be for many, and the Hub looks into its config.json."""
NO_DATASET = "unknown"  # the id of a dataset where the text is not one on the Hub
METRICS = {
    CHANGED: ("changed_first_choices", "changed first choices, of 100 tokens"),
    FIRST_SCALE: ("kl_divergence", "divergence, bits per byte"),
    LOSS_SCALE: ("added_loss", "added loss, bits per byte"),
}


@dataclass(frozen=True)
class Widths:
    """How weights are stored: the widths that occur, the weights that share a scale (None: not known), the format.

    `floats` says whether the codes are floating-point numbers, `inputs` how many bits activations are rounded to.
    """

    bits: tuple[int, ...]
    group: int | str | None
    method: str | None
    floats: bool = False
    inputs: int = 16

    @property
    def scheme(self) -> str | None:
        if not self.bits:
            return None
        widths = "-".join(dict.fromkeys(map(str, (self.bits[0], self.bits[-1]))))
        return f"{'FP' if self.floats else 'W'}{widths}A{self.inputs}"

    @property
    def suffix(self) -> str:
        if self.scheme is None:
            return "quantized"
        return "-".join(filter(None, (self.scheme, f"G{self.group}" if isinstance(self.group, int) else self.group)))


@dataclass(frozen=True)
class HubFacts:
    """What the front matter of a model card says that no measurement does; `notes` say what is missing, and why."""

    base_model: str | None
    license: Mapping[str, str]
    repository: str
    widths: Widths
    notes: tuple[str, ...] = ()


def collect_facts(
    content: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    base_model: str | None = None,
    license: str | None = None,
    repository: str | None = None,
) -> HubFacts:
    """Returns the facts about the model of a report; `config` is the content of its config.json, or empty."""
    notes = []
    widths = stored_widths(content, config)
    target = content["model"]
    base = check_id("the base model", base_model) if base_model else find_hub_id(target)
    if base is None:
        notes.append(f"base_model is left out: {target} is not an id on the Hub; name it with --base-model OWNER/NAME")
    if license and not LICENSE.fullmatch(license):
        raise InputError(f"the licence is {license!r:.60}; it must be an id of the Hub, such as apache-2.0 or other")
    licence = {"license": license} if license else find_license(target)
    if not licence:
        notes.append("license is left out: the base model's files name none; give its id on the Hub with --license")
    name = check_id("the repository", repository) if repository else f"{OWNER}/{suggested_name(base or target, widths)}"
    return HubFacts(base, licence, name, widths, tuple(notes))


def check_id(what: str, name: str) -> str:
    """Returns the id of a repository on the Hub, OWNER/NAME; raises if the Hub would refuse it."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id  # type: ignore[attr-defined]

    valid = name.count("/") == 1
    try:
        validate_repo_id(name)
    except HFValidationError:
        valid = False
    if not valid:
        raise InputError(f"{what} is {name!r:.80}; it must be an id on the Hub, such as OWNER/NAME")
    return name


def find_hub_id(target: str) -> str | None:
    """Returns the id on the Hub of a model as it was given; None if it is a file or a directory."""
    cached = CACHED.search(f"{Path(target).as_posix()}/")
    named = "/".join(cached.groups()) if cached else target
    if cached is None and (target.startswith((PREFIX, ".", "~", "/")) or _exists(target) or target.endswith(".gguf")):
        return None
    try:
        return check_id("the model", named)
    except InputError:
        return None


def find_license(target: str) -> dict[str, str]:
    """Returns the licence of a model by its own files: the front matter of README.md, or the metadata of a GGUF file.

    Nothing is downloaded: of a model on the Hub, its card in the cache is read.
    """
    if target.endswith(".gguf"):
        from fairbits.models.io.gguf_file import read_gguf_header

        metadata = dict(read_gguf_header(Path(target)).metadata) if _exists(target) else {}
        stated = {key: metadata.get("general." + key.replace("_", ".")) for key in LICENSE_KEYS}
    else:
        stated = _front_matter(_card_file(target))
    valid = {key: value.strip() for key, value in stated.items() if isinstance(value, str) and value.strip()}
    identity = valid.pop("license", "").lower()
    return {"license": identity, **valid} if LICENSE.fullmatch(identity) else {}


def stored_widths(content: Mapping[str, Any], config: Mapping[str, Any]) -> Widths:
    """Returns how weights are stored, by the plan of the report, else by the config.json of the model."""
    policy, allocation = content["provenance"]["policy"], content["allocation"]
    if policy is not None and policy["settings"].get("scheme") is not None:
        names = (part.rpartition("=")[2].strip() for part in policy["settings"]["scheme"].split(","))
        schemes = [named_scheme(name) for name in names]
        groups, inputs = {scheme.group for scheme in schemes}, [scheme.input_bits for scheme in schemes]
        floats = any(scheme.numbers != "int" for scheme in schemes)
        group = groups.pop() if len(groups) == 1 else None
        widths = tuple(sorted({scheme.bits for scheme in schemes}))
        return Widths(widths, group, "compressed-tensors", floats=floats, inputs=min(inputs))
    if policy is not None and allocation is not None:
        bits = {number for line in allocation["bits"] for number in line if number is not None}
        return Widths(tuple(sorted(bits)), policy["settings"].get("group"), "compressed-tensors")
    return config_widths(config)


SCHEMES: Mapping[tuple[object, str], tuple[int, int | str, int]] = {  # bits, group, bits of inputs
    ("fp8", ""): (8, "block", 8),
    ("mxfp4", ""): (4, 32, 16),
    ("modelopt", "FP8"): (8, "tensor", 8),
    ("modelopt", "FP8_PER_CHANNEL_PER_TOKEN"): (8, "channel", 8),
    ("modelopt", "NVFP4"): (4, 16, 4),
}
"""Formats in floating point whose config.json gives no bits."""


def config_widths(config: Mapping[str, Any]) -> Widths:
    """Returns how weights are stored by the config.json of a model."""
    stored = config.get("quantization_config")
    if not isinstance(stored, Mapping):
        return Widths((), None, None)
    method = stored.get("quant_method")
    schemes = _mapping(stored.get("config_groups")).values()
    stated = SCHEMES.get((method, str(stored.get("quant_algo", "")).upper()))
    if stated is not None and isinstance(method, str):
        return Widths((stated[0],), stated[1], method, floats=True, inputs=stated[2])
    parts = [_mapping(_mapping(scheme).get("weights")) for scheme in schemes] or [stored]
    inputs = (_whole(_mapping(_mapping(scheme).get("input_activations")).get("num_bits")) for scheme in schemes)
    bits = {_whole(part.get("num_bits", part.get("bits"))) for part in parts}
    shared = ("channel", "tensor")
    group = {
        _whole(part.get("group_size")) or next((s for s in shared if s == part.get("strategy")), None) for part in parts
    }
    return Widths(
        tuple(sorted(number for number in bits if number is not None)),
        group.pop() if len(group) == 1 else None,
        method if isinstance(method, str) else None,
        floats=any(part.get("type") == "float" for part in parts),
        inputs=min((number for number in inputs if number is not None), default=16),
    )


def suggested_name(model: str, widths: Widths) -> str:
    """Returns a name of a repository for a quantized model."""
    base = model.removeprefix(PREFIX).rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    plain = ODD.sub("-", base)[: LONGEST - len(widths.suffix) - 1].strip("-._") or "model"
    return f"{plain}-{widths.suffix}"


def hub_languages(codes: Iterable[str]) -> tuple[list[str], list[str]]:
    """Returns languages as the Hub names them, and those that it has no name for.

    The Hub takes ISO 639-1 where there is such a code, else ISO 639-3; scripts and varieties are left out.
    """
    tags = {code: language_from_code(code).subtag.lower() for code in codes}
    unknown = [code for code, tag in tags.items() if not re.fullmatch("[a-z]{2,3}", tag) or PRIVATE_USE.fullmatch(tag)]
    return sorted({tag for code, tag in tags.items() if code not in unknown}), unknown


def _card_file(target: str) -> Path | None:
    if target.startswith(PREFIX):
        return find_embedded(target)[0] / CARD
    if _exists(target):
        return Path(target).expanduser() / CARD
    from huggingface_hub import try_to_load_from_cache

    base = find_hub_id(target)
    cached = try_to_load_from_cache(base, CARD) if base else None
    return Path(cached) if isinstance(cached, str) else None


def _front_matter(card: Path | None) -> dict[str, Any]:
    from huggingface_hub import ModelCard

    try:
        if card is None or not card.is_file():
            return {}
        metadata = ModelCard(card.read_text(encoding="utf-8"), ignore_metadata_errors=True).data
    except Exception:  # not YAML, not text, not a mapping: each with a different class
        return {}
    return {key: metadata.get(key) for key in LICENSE_KEYS}


def _exists(target: str) -> bool:
    try:
        return os.path.exists(os.path.expanduser(target))
    except (OSError, ValueError):  # a name that is too long, or has a null character
        return False


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


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
    first = content["methods"][0]
    names = {first["target"]: facts.repository}
    names[f"{first['target']}, KV cache {first['kv_cache']}"] = f"{facts.repository}, KV cache {first['kv_cache']}"
    if facts.base_model is not None:
        names[content["model"]] = facts.base_model
        shown["model"] = facts.base_model
    for entry in (*shown["methods"], *shown["provenance"]["models"]):
        for key in ("name", "target"):
            entry[key] = names.get(entry[key], entry[key])
    return shown


def model_card(content: Mapping[str, Any], facts: HubFacts) -> str:
    """Returns README.md: front matter, how to load the model, and what quantization costs every language."""
    _, unnamed = hub_languages(language["code"] for language in content["languages"])
    missing = {
        "the id of the base model on the Hub": facts.base_model is None,
        "the licence: see the base model's": not facts.license,
        f"codes of the Hub for the languages {', '.join(unnamed)}": bool(unnamed),
    }
    return render_markdown(
        "hub_card.md",
        front_matter=front_matter(content, facts),
        name=facts.repository.rpartition("/")[2],
        repository=facts.repository,
        pipeline=PIPELINES.get(content["provenance"]["evaluation"]["task"]),
        served=_is_served(content, facts),
        card=card(content).strip(),
        recipe=content["provenance"]["policy"] is not None,
        missing=[what for what, lacks in missing.items() if lacks],
    )


def front_matter(content: Mapping[str, Any], facts: HubFacts) -> str:
    """Returns the metadata in YAML, as huggingface_hub writes it."""
    from huggingface_hub import ModelCardData

    languages, _ = hub_languages(language["code"] for language in content["languages"])
    licence: dict[str, Any] = {key: printable(value) for key, value in facts.license.items()}
    bits = facts.widths.bits
    precision = [f"{bits[0]}-bit"] if len(bits) == 1 else ["mixed-precision"] if bits else []
    data = ModelCardData(
        base_model=facts.base_model,
        base_model_relation=None if facts.base_model is None else "quantized",
        language=languages or None,
        **licence,
        library_name="transformers",
        pipeline_tag=PIPELINES.get(content["provenance"]["evaluation"]["task"]),
        tags=list(filter(None, (facts.widths.method, "fairbits", *precision, facts.widths.scheme))),
        model_name=facts.repository.rpartition("/")[2],
        eval_results=list(_results(content)),
    )
    return data.to_yaml()


def recipe(content: Mapping[str, Any]) -> str:
    """Returns what was done to make the model, in YAML; the decision for every layer is in plan.json."""
    from huggingface_hub.utils import yaml_dump  # type: ignore[attr-defined]

    provenance = content["provenance"]
    data = {
        "fairbits": content["fairbits"],
        "model": content["model"],
        "fingerprint": provenance["models"][0]["fingerprint"],
        "policy": provenance["policy"]["name"],
        "settings": provenance["policy"]["settings"],
        "languages": provenance["weights"],
        "calibration": provenance["calibration"],
        "command": shlex.join(map(str, quantize_command(content))),
    }
    return f"{RECIPE_HEAD}\n{yaml_dump(data, sort_keys=False)}"


def _results(content: Mapping[str, Any]) -> Iterator[Any]:
    from huggingface_hub import EvalResult

    setting = content["provenance"]["evaluation"]
    for row in content["languages"]:
        for scale, (kind, title) in METRICS.items():
            damage = row["methods"][0]["damage"][scale]
            limits = {} if damage["low"] is None else {key: round(damage[key], 6) for key in ("low", "high")}
            yield EvalResult(
                task_type=PIPELINES.get(setting["task"], "text-generation"),
                dataset_type=NO_DATASET,
                dataset_name=printable(setting["text"]),
                dataset_config=printable(row["code"]),
                dataset_split=setting["split"],
                metric_type=kind,
                metric_name=f"{title}, {printable(row['name'])}",
                metric_value=round(damage["value"], 6),
                metric_args=limits and {**limits, "confidence": damage["confidence"]},
            )


def _is_served(content: Mapping[str, Any], facts: HubFacts) -> bool:
    outside = (content["allocation"] or {"outside": ()})["outside"]
    plain = all(layer["bits"] is None for layer in outside)
    return plain and facts.widths.method == "compressed-tensors" and facts.widths.bits in ((4,), (8,))
