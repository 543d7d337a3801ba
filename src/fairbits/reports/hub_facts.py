"""What the Hub is told about a quantized model: the model it comes from, its licence, widths, languages and name."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbits.errors import InputError
from fairbits.language.lookup import language_of
from fairbits.language.tags import PRIVATE_USE
from fairbits.model.embedded import PREFIX, find_embedded

CARD = "README.md"
OWNER = "OWNER"
"""Stands for the owner of a repository that is not named."""
LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{1,60}")
"""What every licence id of the Hub looks like."""
CACHED = re.compile(r"models--([^/]+?)--([^/]+)/snapshots/")
"""The path of a repository in the cache of huggingface_hub."""
ODD = re.compile(r"[^A-Za-z0-9_.]+|\.\.+|--+")
"""What the name of a repository must not have."""
LONGEST = 96
"""Characters of a repository's name, at most."""
LICENSE_KEYS = ("license", "license_name", "license_link")


@dataclass(frozen=True)
class Widths:
    """How weights are stored: the widths that occur, how many weights share a scale, and the format.

    `group` is a number, "channel", "tensor" or None if it is not known.
    """

    bits: tuple[int, ...]
    group: int | str | None
    method: str | None

    @property
    def scheme(self) -> str | None:
        """The usual name of the scheme.

        >>> Widths((4,), 128, "gptq").scheme, Widths((4, 8), "channel", None).scheme
        ('W4A16', 'W4-8A16')
        """
        if not self.bits:
            return None
        return f"W{'-'.join(dict.fromkeys(str(each) for each in (self.bits[0], self.bits[-1])))}A16"

    @property
    def suffix(self) -> str:
        """The end of a suggested name.

        >>> Widths((4,), 128, "gptq").suffix, Widths((), None, None).suffix
        ('W4A16-G128', 'quantized')
        """
        if self.scheme is None:
            return "quantized"
        return "-".join(filter(None, (self.scheme, f"G{self.group}" if isinstance(self.group, int) else self.group)))


@dataclass(frozen=True)
class HubFacts:
    """What the front matter of a model card says that no measurement does; `notes` say what is missing, and why.

    `base_model`  the id of the model before quantization on the Hub; None if it is not known
    `license`     license, license_name and license_link, as far as they are known
    `repository`  OWNER/NAME, where the model will be
    """

    base_model: str | None
    license: Mapping[str, str]
    repository: str
    widths: Widths
    notes: tuple[str, ...] = ()


def facts_of(
    content: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    base_model: str | None = None,
    license: str | None = None,
    repository: str | None = None,
) -> HubFacts:
    """Returns the facts about the model of a report; `config` is the content of its config.json, or empty."""
    notes = []
    widths = widths_of(content, config)
    target = content["model"]
    base = check_id("the base model", base_model) if base_model else id_of(target)
    if base is None:
        notes.append(f"base_model is left out: {target} is not an id on the Hub; name it with --base-model OWNER/NAME")
    known = {"license": _check_license(license)} if license else license_of(target)
    if not known:
        notes.append("license is left out: the base model's files name none; give its id on the Hub with --license")
    name = check_id("the repository", repository) if repository else f"{OWNER}/{suggested_name(base or target, widths)}"
    return HubFacts(base, known, name, widths, tuple(notes))


def check_id(what: str, given: str) -> str:
    """Returns the id of a repository on the Hub, OWNER/NAME; raises if the Hub would refuse it."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(given)
    except HFValidationError:
        valid = False
    else:
        valid = given.count("/") == 1
    if not valid:
        raise InputError(f"{what} is {given!r:.80}; it must be an id on the Hub, such as OWNER/NAME")
    return given


def id_of(target: str) -> str | None:
    """Returns the id on the Hub of a model as it was given; None if it is a file or a directory.

    >>> id_of("org/model"), id_of("/c/models--org--model/snapshots/1f/"), id_of("embedded:tiny")
    ('org/model', 'org/model', None)
    """
    cached = CACHED.search(f"{Path(target).as_posix()}/")
    named = "/".join(cached.groups()) if cached else target
    if cached is None and (target.startswith((PREFIX, ".", "~", "/")) or _exists(target) or _is_gguf(target)):
        return None
    try:
        return check_id("the model", named)
    except InputError:
        return None


def license_of(target: str) -> dict[str, str]:
    """Returns the licence of a model by its own files: the front matter of README.md, or the metadata of a GGUF file.

    Nothing is downloaded: of a model on the Hub, its card in the cache is read.
    """
    if _is_gguf(target):
        from fairbits.model.files.gguf import read_gguf_metadata  # torch: other reports need not wait for it

        found = read_gguf_metadata(Path(target)) if _exists(target) else {}
        said = {key: found.get("general." + key.replace("_", ".")) for key in LICENSE_KEYS}
    else:
        said = _front_matter(_card_file(target))
    valid = {key: value.strip() for key, value in said.items() if isinstance(value, str) and value.strip()}
    identity = valid.pop("license", "").lower()
    return {"license": identity, **valid} if LICENSE.fullmatch(identity) else {}


def widths_of(content: Mapping[str, Any], config: Mapping[str, Any]) -> Widths:
    """Returns how weights are stored, by the plan of the report, else by the config.json of the model."""
    policy, allocation = content["provenance"]["policy"], content["allocation"]
    if policy is not None and allocation is not None:
        bits = {each for line in allocation["bits"] for each in line if each is not None}
        return Widths(tuple(sorted(bits)), policy["settings"].get("group"), "compressed-tensors")
    stored = config.get("quantization_config")
    if not isinstance(stored, Mapping):
        return Widths((), None, None)
    method = stored.get("quant_method")
    groups = stored.get("config_groups")
    parts = [_mapping(_mapping(each).get("weights")) for each in _mapping(groups).values()] or [stored]
    bits = {_whole(each.get("num_bits", each.get("bits"))) for each in parts}
    group = {_whole(each.get("group_size")) or _shared(each.get("strategy")) for each in parts}
    return Widths(
        tuple(sorted(each for each in bits if each is not None)),
        group.pop() if len(group) == 1 else None,
        method if isinstance(method, str) else None,
    )


def suggested_name(model: str, widths: Widths) -> str:
    """Returns a name of a repository for a quantized model.

    >>> suggested_name("org/Model-1B", Widths((4,), 128, None)), suggested_name("a|b <i>.gguf", Widths((), None, None))
    ('Model-1B-W4A16-G128', 'a-b-i-quantized')
    """
    base = model.removeprefix(PREFIX).rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    plain = ODD.sub("-", base)[: LONGEST - len(widths.suffix) - 1].strip("-._") or "model"
    return f"{plain}-{widths.suffix}"


def language_codes(codes: Iterable[str]) -> tuple[list[str], list[str]]:
    """Returns languages as the Hub names them, and those that it has no name for.

    The Hub takes ISO 639-1 where there is such a code, else ISO 639-3; scripts and varieties are left out.

    >>> language_codes(["zho_Hans", "zho_Hant", "ace_Latn", "my-dialect", "qaa"])
    (['ace', 'zh'], ['my-dialect', 'qaa'])
    """
    tags = {code: language_of(code).bcp47.split("-")[0].lower() for code in codes}
    unknown = [code for code, tag in tags.items() if not re.fullmatch("[a-z]{2,3}", tag) or PRIVATE_USE.fullmatch(tag)]
    return sorted({tag for code, tag in tags.items() if code not in unknown}), unknown


def _check_license(given: str) -> str:
    if not LICENSE.fullmatch(given):
        raise InputError(f"the licence is {given!r:.60}; it must be an id of the Hub, such as apache-2.0 or other")
    return given


def _card_file(target: str) -> Path | None:
    """Returns the model card next to a model, if there is one on this machine."""
    if target.startswith(PREFIX):
        return find_embedded(target)[0] / CARD
    if _exists(target):
        return Path(target).expanduser() / CARD
    from huggingface_hub import try_to_load_from_cache

    base = id_of(target)
    found = try_to_load_from_cache(base, CARD) if base else None
    return Path(found) if isinstance(found, str) else None


def _front_matter(card: Path | None) -> dict[str, Any]:
    """Returns the licence that a card names; a card may come from anyone, and be anything."""
    from huggingface_hub import ModelCard

    try:
        if card is None or not card.is_file():
            return {}
        said = ModelCard(card.read_text(encoding="utf-8"), ignore_metadata_errors=True).data
    except Exception:  # no YAML, no text, no mapping: each with its own class
        return {}
    return {key: said.get(key) for key in LICENSE_KEYS}  # a card without metadata has none


def _exists(target: str) -> bool:
    try:
        return os.path.exists(os.path.expanduser(target))
    except (OSError, ValueError):  # a name that is too long, or has a null character
        return False


def _is_gguf(target: str) -> bool:
    return target.endswith(".gguf")


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _shared(strategy: object) -> str | None:
    return strategy if isinstance(strategy, str) and strategy in ("channel", "tensor") else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
