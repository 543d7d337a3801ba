"""The readers of quantized checkpoints: what they make of changed tensors and settings is what independent code makes.

Weights of a layout are random bits, which every layout of integers allows, or written by compressed-tensors' own code.
One byte, type, shape or name of a tensor is changed, or a setting. An accepted checkpoint must have the weights, and
round inputs, as `independent` reads it from the same files; if that cannot, as before the change.
"""

import json
import random
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import independent
import torch
import transformers
from harness import Files, Refused, Target
from mutations import mutated_json
from other_tools import FORMATS, WEIGHTS
from safetensors.torch import load, save
from torch import Tensor
from truth import rule

from fairbits.core.errors import InputError
from fairbits.models import checkpoint as models
from fairbits.models.checkpoint import Checkpoint

SIZE = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1}
SIZE |= {"intermediate_size": 128, "vocab_size": 64}
WRITTEN = [name for name in FORMATS if "MXFP6" not in name and name != "KV"]
SETTINGS = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False},
    "gptq_v2": {"quant_method": "gptq", "bits": 3, "group_size": 32, "sym": False, "checkpoint_format": "gptq_v2"},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
    "auto-round": {"quant_method": "auto-round", "bits": 2, "group_size": 64, "packing_format": "auto_round"},
}
"""Layouts of integers, and what config.json says of them."""


@cache
def plain_model() -> Path:
    """Returns the directory of a small Llama of random weights."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    place = Path(tempfile.mkdtemp()) / "plain"
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZE)).bfloat16().save_pretrained(place)
    return place


@cache
def written(name: str) -> Files:
    """Returns the files of the model in a format."""
    place = Path(tempfile.mkdtemp()) / "written"
    if name in SETTINGS:
        return random_integers(SETTINGS[name])
    FORMATS[name](plain_model(), place)
    return {path.name: path.read_bytes() for path in place.iterdir() if path.name in (WEIGHTS, "config.json")}


def random_integers(settings: dict[str, Any]) -> Files:
    """Returns the files of the model with random bits in a layout of integers."""
    tensors = load((plain_model() / WEIGHTS).read_bytes())
    bits, group, made = settings["bits"], settings["group_size"], {}
    for name, W in tensors.items():
        if not name.endswith("proj.weight"):
            made[name] = W
            continue
        (out, columns), path = W.shape, name.removesuffix(".weight")
        down = (columns, out * bits // 32) if settings["quant_method"] == "awq" else (columns * bits // 32, out)
        for part, shape in (("qweight", down), ("qzeros", (columns // group, out * bits // 32))):
            made[f"{path}.{part}"] = torch.randint(-(2**31), 2**31, shape, dtype=torch.int32)
        if settings["quant_method"] == "gptq" and bits == 4:
            made[f"{path}.qzeros"] &= 0x77777777  # none that programs read differently
        made[f"{path}.scales"] = torch.rand(columns // group, out).half() / 100
    config = json.loads((plain_model() / "config.json").read_text()) | {"quantization_config": settings}
    return {WEIGHTS: save(made, {"format": "pt"}), "config.json": json.dumps(config).encode()}


def changed_tensors(rng: random.Random, content: bytes) -> bytes:
    """Returns a file in which one of the tensors that quantization has written is another."""
    tensors = load(content)
    name = rng.choice([name for name in tensors if "proj" in name or name.endswith("_scale")])
    tensor, kind = tensors[name], rng.randrange(8)
    if kind < 4 and tensor.numel():
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).clone()
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        tensors[name] = raw.view(tensor.dtype).reshape(tensor.shape)
    elif kind == 4:
        tensors[rng.choice((f"{name}_scale", f"{name}x", name.replace("q_proj", "o_proj")))] = tensors.pop(name)
    elif kind == 5:
        types = (torch.float16, torch.bfloat16, torch.float32, torch.uint8, torch.int8, torch.int32)
        tensors[name] = tensor.float().to(rng.choice(types))
    elif kind == 6:
        tensors[name] = rng.choice((tensor[:1], tensor[..., :1], tensor[None])) if tensor.ndim else tensor[None]
    else:
        del tensors[name]
    return save({name: tensor.contiguous() for name, tensor in tensors.items()}, {"format": "pt"})


def changed_settings(rng: random.Random, content: bytes) -> bytes:
    """Returns a config.json that says something else of the quantization."""
    config = json.loads(content)
    entry = mutated_json(rng, json.dumps(config.pop("quantization_config")).encode())
    return json.dumps(config).encode()[:-1] + b', "quantization_config": ' + entry + b"}"


def quantized_target(name: str) -> Target:
    """Returns the target of one format."""

    def make(rng: random.Random) -> Files:
        files = dict(written(name))
        if rng.random() < 0.7 or "quantization_config" not in json.loads(files["config.json"]):
            return files | {WEIGHTS: changed_tensors(rng, files[WEIGHTS])}
        return files | {"config.json": changed_settings(rng, files["config.json"])}

    def read(place: Path) -> str:
        try:
            with warnings.catch_warnings(), patch.object(models, "map_architecture", MAPPED):
                warnings.simplefilter("ignore")
                check(place, name)
        except InputError as problem:
            rule(str(place) in str(problem), f"its refusal does not name the place: {problem!s:.200}")
            raise Refused(str(problem)) from None
        return "accepted"

    return Target(f"quantized, {name}", make, read, share=0.2)


def check(place: Path, name: str) -> None:
    """Checks that an accepted checkpoint is read as independent code reads it."""
    opened = Checkpoint(place)
    checkpoint = opened.plain
    if checkpoint is None:
        raise InputError(f"{place} is for another package")
    if checkpoint is opened:
        opened.architecture  # noqa: B018  # a plain model, of tensors that it cannot have
        return
    packed = checkpoint.packed
    paths = {weight.module: key for key, weight in checkpoint.architecture.weights.items() if key in packed.packed}
    mine = {path: checkpoint.read(key) for path, key in paths.items()}
    believed = True
    try:
        true = layers(place)
    except TimeoutError:
        raise
    except Exception:  # whatever a setting sets off in code that believes it
        true, believed = layers_before(name), False
    rule(mine.keys() == true.keys(), f"{mine.keys() ^ true.keys()} are read by one only")
    x = torch.linspace(-3, 3, SIZE["hidden_size"])[None].sin()
    for path, W in mine.items():
        layer = true[path]
        rule(W.shape == layer.weight.shape and equal(W, layer.weight), f"{path} has other weights")
        rounding = packed._roundings.get(path, {}).get(None)
        got = x if rounding is None else rounding.rounded(x, "input")
        rule(
            not believed or equal(got, x if layer.rounding is None else layer.rounding(x)),
            f"{path} rounds its inputs otherwise",
        )


def equal(one: Tensor, other: Tensor) -> bool:
    """Returns whether tensors are equal but for the last bits of float32."""
    return torch.allclose(one.float(), other.float(), rtol=1e-5, atol=0)


def layers(place: Path) -> dict[str, independent.Layer]:
    """Returns the quantized layers as independent code reads them."""
    config, tensors = independent.read(place)
    entry = config["quantization_config"]
    found = dict(independent.READERS[entry["quant_method"]](entry, tensors))
    for layer in found.values():
        if layer.rounding is not None:
            layer.rounding(torch.ones(1, SIZE["hidden_size"]))  # which fails if settings do not fit
    return found


@cache
def layers_before(name: str) -> dict[str, independent.Layer]:
    """Returns the layers of the unchanged files."""
    with tempfile.TemporaryDirectory() as place:
        for file, content in written(name).items():
            (Path(place) / file).write_bytes(content)
        return layers(Path(place))


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that maps the plain model, once for all cases that have the same tensors."""
    known: dict[Any, Any] = {}

    def mapped(config: Any, shapes: Any, **options: Any) -> Any:
        key = (json.dumps(config.to_dict(), sort_keys=True, default=str), tuple(shapes.items()))
        if key not in known:
            known[key] = function(config, shapes, **options)
        return known[key]

    return mapped


MAPPED = once(models.map_architecture)  # which takes a third of a second


def quantized_targets() -> list[Target]:
    """Returns a target for every format."""
    return [quantized_target(name) for name in (*WRITTEN, *SETTINGS)]
