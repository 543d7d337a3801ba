"""A changed checkpoint is another model, or it is refused: whatever tensor is missing, whatever config.json says."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from other_tools import FORMATS, WEIGHTS
from safetensors.torch import load_file, save_file

import fairbits
from fairbits.core.errors import InputError
from fairbits.evaluation import hidden_states as features
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import Corpus, TextRequest

pytestmark = pytest.mark.filterwarnings("ignore")  # of settings that do not fit each other

CORPUS = Corpus("weather", {}, {"eng": ["On day 1 the wind came from the north."], "heb": ["ביום 2 באה הרוח"]})
ACTIVATIONS = {"num_bits": 4, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
KEYS_AND_VALUES = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
LAYOUTS = [f"{kind}-quantized" for kind in ("pack", "int", "float", "naive", "nvfp4-pack", "mxfp4-pack")]
OTHERS: dict[str, list[Any]] = {
    "activation_scheme": ["static"],
    "dynamic": [True, False, "local"],
    "format": [*LAYOUTS, "mxfp8-quantized", "dense"],
    "ignore": [[], ["re:.*up_proj"]],
    "input_activations": [ACTIVATIONS],
    "kv_cache_scheme": [KEYS_AND_VALUES],
    "observer": ["mse"],
    "output_activations": [ACTIVATIONS],
    "quant_method": ["fp8", "gptq", "modelopt", "compressed-tensors"],
    "quantization_status": ["frozen", "initialized", "decompressed"],
    "scale_dtype": ["torch.uint8", "torch.float8_e4m3fn", "torch.float32"],
    "strategy": ["channel", "group", "tensor", "token", "block", "tensor_group"],
    "targets": [[], ["re:nothing"], ["re:.*self_attn.*"]],
    "type": ["int", "float"],
    "weight_block_size": [[64, 64], [128, 64]],
}
"""What may stand instead of the value of a setting."""
SAME = {
    "version": "what wrote the file",
    "observer": "how scales were found",
}
"""Settings that may change while the model stays the same, and why."""
EQUAL = {
    ("quantization_status", "frozen"): "how older versions called packed weights",
    ("group_0", "format", "naive-quantized"): "another name of the layout of whole bytes",
    ("input_activations", "strategy", "tensor_group"): "a group without a scale of the tensor",
    ("weights", "num_bits", "5"): "whole bytes that hold codes of 4 bits",
    ("weights", "num_bits", "8"): "whole bytes that hold codes of 4 bits",
}
"""Changes that describe the same weights in other words, and why."""


def write_own(model: Path, out: Path) -> None:
    """Writes a checkpoint of fairbits: two widths, and an embedding in whole bytes."""
    plan = fairbits.plan(
        model, policy="protect", k=1, languages=["eng", "heb"], tokens=64, group=32, bits=4, embeddings=8
    )
    fairbits.quantize(model, plan, out=out)


WRITERS = {"fairbits": write_own} | {name: write for name, write in FORMATS.items() if name != "modelopt, beside"}


@pytest.fixture(scope="module")
def text(reading_model: Any) -> TokenizedText:
    return tokenize_corpus(reading_model("wide_llama"), CORPUS, request=TextRequest("evaluation"), least=1)


@torch.no_grad()
def logits_of(directory: Path, text: TokenizedText) -> torch.Tensor | None:
    """Returns the logits of a checkpoint; None if it is refused, or if they are NaN, which `evaluate` refuses."""
    try:
        model = features.evaluated_model(Checkpoint(directory), text, device="cpu")
        logits = torch.cat([model.head(batch.features) for batch in model.features("", None)])
    except InputError:
        return None
    return logits if logits.isfinite().all() else None


def write_unchanged(name: str, reading_model: Any, text: TokenizedText, out: Path) -> torch.Tensor:
    """Writes a checkpoint; returns its logits."""
    WRITERS[name](reading_model("wide_llama").directory, out)
    logits = logits_of(out, text)
    assert logits is not None
    return logits


def settings_in(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the path and the value of every setting."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from settings_in(inner, (*path, name))
    else:
        yield path, value


def others_of(name: str, value: Any) -> Iterator[Any]:
    """Yields other values of a setting."""
    if name in OTHERS:
        yield from (other for other in OTHERS[name] if other != value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value * 2, value // 2, value + 1)
    elif isinstance(value, str):
        yield f"{value}x"


def may_be_same(path: tuple[str, ...], new: Any) -> bool:
    return path[-1] in SAME or (*path[-2:], str(new)) in EQUAL


@pytest.fixture(params=[False, True], ids=["whole", "in blocks"])
def _in_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "fits_whole", lambda *_: not request.param)


@pytest.mark.usefixtures("_in_blocks")
@pytest.mark.parametrize("name", WRITERS)
def test_every_tensor_counts(reading_model: Any, text: TokenizedText, tmp_path: Path, name: str) -> None:
    before = write_unchanged(name, reading_model, text, tmp_path / "written")
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted((tmp_path / "written").glob("*.safetensors*")):
        tensors |= load_file(file) if file.suffix == ".safetensors" else {}
        file.unlink()
    for left_out in tensors:
        if ".layers.1." in left_out:
            continue  # like the first block
        kept = {name: tensor for name, tensor in tensors.items() if name != left_out}
        save_file(kept, tmp_path / "written" / WEIGHTS, {"format": "pt"})
        logits = logits_of(tmp_path / "written", text)
        assert logits is None or not torch.allclose(logits, before, atol=1e-5), left_out


@pytest.mark.usefixtures("_in_blocks")
@pytest.mark.parametrize("name", WRITERS)
def test_every_setting_counts(reading_model: Any, text: TokenizedText, tmp_path: Path, name: str) -> None:
    before = write_unchanged(name, reading_model, text, tmp_path / "written")
    file = tmp_path / "written" / "config.json"
    config = json.loads(file.read_text())
    for path, value in settings_in(config["quantization_config"]):
        if name.startswith("KV") and path[0] in ("format", "ignore", "quantization_status"):
            continue  # no weight is quantized
        for new in others_of(path[-1], value):
            changed = copy.deepcopy(config)
            inner = changed["quantization_config"]
            for step in path[:-1]:
                inner = inner[step]
            inner[path[-1]] = new
            file.write_text(json.dumps(changed))
            logits = logits_of(tmp_path / "written", text)
            same = logits is not None and logits.shape == before.shape and torch.allclose(logits, before, atol=1e-5)
            assert not same or may_be_same(path, new), (path, value, new)
