"""What can be wrong with the arguments of a command, found in less than a second: nothing here imports torch.

A command gives all its arguments (`locals()`), and each is checked by its name. What only the model or the text can
refuse is left to the functions that read them.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fairbits.cli.options import check_out, language_names, spell_flag
from fairbits.core.checks import one_of, whole
from fairbits.core.errors import InputError
from fairbits.core.files import check_directory
from fairbits.core.records import read_object
from fairbits.core.units import MEASURES, UNITS
from fairbits.evaluation.servers.address import ServerAddress, is_address, is_saved_reference
from fairbits.models.cache_types import cache_type
from fairbits.models.embedded import PREFIX, embedded_languages
from fairbits.models.io.file_names import CONFIG, MODELOPT_FILE, check_packages, check_transformers
from fairbits.models.source import check_source
from fairbits.quantization.policies import check_values
from fairbits.quantization.policies.variants import variant
from fairbits.text.corpus import TextRequest
from fairbits.text.reading import check_text

DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
MODELS = ("model", "reference", "quantized", "base", "a", "b")
PACKED = ("quantized", "base")
"""Arguments that name a model, and those whose packed weights are read, which may need another package."""
DEMO = "embedded:tiny"


def check(arguments: Mapping[str, Any], *, example: str = "", with_text: bool = True) -> list[str] | None:
    """Returns the names in --languages; raises if an argument is wrong, whatever the model and the text are.

    `example` is a name for the file of --out. A command that needs no text is checked without it (`with_text`).
    """
    _check_numbers(arguments)
    check_device(arguments.get("device"))
    check_out(arguments.get("out_file"), example)
    if arguments.get("results") is not None:
        check_directory(arguments["results"])
    named = {name: arguments[name] for name in MODELS if arguments.get(name) is not None}
    revised = next((name for name in ("model", "reference", "base") if name in named), "")
    local = {name: model for name, model in named.items() if not _is_elsewhere(name, model)}
    for name, model in local.items():
        check_model(model, revision=arguments.get("revision") if name == revised else None, packed=name in PACKED)
    if arguments.get("kv_cache") is not None:
        cache_type(arguments["kv_cache"])
    if "reference" in named:
        _check_reference(named["reference"], named.get("quantized", ""))
    for model in arguments.get("models") or ():
        check_model(model, revision=arguments.get("revision"))
    names, text = language_names(arguments.get("languages")), arguments.get("text")
    with_text = with_text and not is_saved_reference(arguments.get("reference"))
    if "text" in arguments and (with_text or names is not None or text is not None):
        for model in [named[revised]] if revised else arguments.get("models") or [DEMO]:
            check_text(text, names, trained=embedded_languages(model))
    return names


def _is_elsewhere(argument: str, model: str) -> bool:
    """Returns whether a model is a running server, or a reference whose predictions were saved."""
    if argument == "quantized" and is_address(model):
        ServerAddress.parse(model)
        return True
    return argument == "reference" and is_saved_reference(model)


def check_model(model: str, *, revision: str | None = None, packed: bool = False) -> None:
    """Raises if an argument names no model, or one whose weights (if they are read `packed`) need another package."""
    kind = check_source(model, revision=revision)
    if kind == "gguf":
        check_transformers(model)
    elif kind == "directory":
        config = read_object(Path(model).expanduser() / CONFIG, finite=False)
        if packed:
            check_packages(model, config)


def _check_reference(model: str, quantized: str) -> None:
    """Raises if the reference is quantized and the other model, which is on this machine, is not."""
    if _is_quantized(model) and _is_quantized(quantized) is False:
        raise InputError(
            f"{model}, the reference, is quantized, as its config.json says, and {quantized} is not. If the two are "
            "swapped: fairbits evaluate QUANTIZED --reference MODEL"
        )


def _is_quantized(model: str) -> bool | None:
    if model.startswith(PREFIX):
        return False
    file = Path(model).expanduser() / CONFIG
    if not file.is_file():
        return None
    stated = read_object(file, finite=False).get("quantization_config") is not None
    return stated or (file.parent / MODELOPT_FILE).is_file()


def check_device(device: str | None) -> None:
    """Raises if a device is not spelt like one; torch knows which are there."""
    if device is not None and not DEVICE.fullmatch(device):
        raise InputError(f"device is {device!r:.40}; it must be auto, cpu, cuda, or one of several GPUs such as cuda:1")


def check_policies(names: Iterable[str], *, bits: Iterable[int], common: Mapping[str, Any]) -> None:
    """Raises if a policy, written with its options after colons, cannot be had at one of the bit widths."""
    for name in dict.fromkeys(names):
        chosen = variant(name)
        for width in bits:
            try:
                check_values(chosen.policy, {**common, **chosen.at(width)})
            except InputError as problem:
                raise InputError(f"{name} at {width} bits: {problem}") from None


def _check_numbers(arguments: Mapping[str, Any]) -> None:
    """Raises if a number is out of its range, or a measure or unit has another name."""
    for name, choices in (("measure", MEASURES), ("unit", UNITS)):
        if name in arguments:
            one_of(spell_flag(name), arguments[name], choices)
    if isinstance(arguments.get("bits"), int):
        whole("bits", arguments["bits"], least=2, most=8)
    window = {name: arguments[name] for name in ("sequence", "seed") if arguments.get(name) is not None}
    for name in ("tokens", "evaluation_tokens"):
        if arguments.get(name) is not None and "sequence" in window:
            TextRequest("calibration", arguments[name], **window)
    if window.keys() == {"sequence", "seed"}:
        TextRequest(**window)
