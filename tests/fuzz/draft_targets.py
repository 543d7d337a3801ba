"""Drafts: what an interrupted `quantize` left and `--resume` reads: state, notes on blocks, their files, learning."""

import hashlib
import json
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from harness import Files, Target
from mutations import mutated_json
from opening_targets import small_model
from safetensors.torch import load, save
from truth import rule
from untrusted_targets import mutated_weights, target

from fairbits.api.make_plan import plan
from fairbits.api.quantize import _Draft, draft_device, draft_plan
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.checkpoint_writer import PLAN, STATE, draft_directory
from fairbits.models.scales.groups import round_to_nearest, scheme_grid
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization.execute import execute_plan
from fairbits.quantization.learned.learn import LearningState, load_codes, load_state, save_codes, save_state
from fairbits.quantization.learned.learnable_codes import LearnableCodes
from fairbits.quantization.learned.optimizer import CodeOptimizer
from fairbits.quantization.plan import Plan

OUT = "quantized"
DRAFT = f".{OUT}.partial"


class Begun(NamedTuple):
    """An interrupted run: the model, the plan, the files of the draft, and the codes of its finished block."""

    checkpoint: Checkpoint
    plan: Plan
    files: Files
    codes: dict[str, torch.Tensor]


@cache
def begun() -> Begun:
    """Returns a run of two blocks that stopped after the first."""
    place = Path(tempfile.mkdtemp())
    for name, data in small_model().items():
        (place / name).write_bytes(data)
    checkpoint = Checkpoint(place)
    quantization_plan = plan(checkpoint, policy="rtn", bits=4, group=8)
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / OUT
        with _Draft.opened(checkpoint, quantization_plan, out, device="cpu", resume=False) as draft:
            block = next(iter(execute_plan(checkpoint, quantization_plan, text=None, device="cpu")))
            draft.add(block)
            codes = {name: layer.codes.clone() for name, layer in block.layers.items()}
        home = draft_directory(out)
        files = {f"{DRAFT}/{path.relative_to(home)}": path.read_bytes() for path in home.rglob("*") if path.is_file()}
    return Begun(checkpoint, quantization_plan, files, codes)


def changed_tensors(rng: random.Random, content: bytes) -> bytes:
    """Returns a file of weights that is whole, with one tensor of another kind."""
    tensors = load(content)
    name = rng.choice(sorted(tensors))
    old, kind = tensors[name], rng.randrange(7)
    if kind == 0:
        del tensors[name]
    elif kind == 1:
        tensors[name] = old.to(rng.choice((torch.float16, torch.float64, torch.int8, torch.int64, torch.bool)))
    elif kind == 2:
        tensors[name] = rng.choice((old[None], old.flatten(), old.flatten()[:1], torch.zeros(0), old[..., None]))
    elif kind == 3:
        tensors[name] = torch.full_like(old, rng.choice((0, 1, 2, 100)))
    elif kind == 4 and old.is_floating_point():
        tensors[name] = torch.full_like(old, rng.choice((float("nan"), float("inf"), -1.0, 1e30)))
    elif kind == 5:
        tensors[name] = tensors[rng.choice(sorted(tensors))].clone()
    else:
        tensors[f"{name}x"] = tensors.pop(name)
    return save({key: tensor.contiguous() for key, tensor in tensors.items()})


def changed_weights(rng: random.Random, content: bytes) -> bytes:
    """Returns a file of weights with changed bytes, or with a tensor that was changed."""
    return (mutated_weights if rng.random() < 0.4 else changed_tensors)(rng, content)


def draft_target() -> Target:
    """Returns the target of a draft: one of its files is changed, in half of the cases with the hash in the note."""
    files = begun().files
    note = next(name for name in files if "/done/" in name)

    def make(rng: random.Random) -> Files:
        name = rng.choice(sorted(files))
        if not name.endswith(".safetensors"):
            return files | {name: mutated_json(rng, files[name])}
        changed = changed_weights(rng, files[name])
        if rng.random() < 0.5:
            return files | {name: changed}
        record = json.loads(files[note])
        record["sha256"][Path(name).name] = hashlib.sha256(changed).hexdigest()
        return files | {name: changed, note: json.dumps(record).encode()}

    def read(place: Path) -> None:
        out = place / OUT
        draft_device(out)
        draft_plan(out)
        with _Draft.opened(begun().checkpoint, begun().plan, out, device="cpu", resume=True) as draft:
            block = draft.finished(0)
            rule(draft.finished(1) is None, "a block is finished that never was")
        if block is None:
            return
        rule(block.layers.keys() == begun().codes.keys(), "layers are missing")
        for name, layer in block.layers.items():
            rule(layer.codes.shape == begun().codes[name].shape and layer.codes.dtype == torch.int8, "other codes")
            rule(bool(layer.scales.isfinite().all()), "a scale is none")
        rule({result.name for result in block.results} == block.layers.keys(), "a layer has no result")

    (state, its_plan) = (f"{DRAFT}/{file}" for file in (STATE, PLAN))
    return target("draft", make, read, files=(DRAFT, state, its_plan))


class Learned(NamedTuple):
    """What is learned of one map, and the file of its state."""

    codes: LearnableCodes
    scheme: Scheme
    state: bytes
    rounded: bytes


def learnable() -> LearnableCodes:
    """Returns what is learned of one small map."""
    W, scheme = torch.linspace(-1, 1, 48).reshape(6, 8), Scheme(3, 4, grid="twos")
    codes = round_to_nearest(W, torch.full((6, 2), 0.25), grid=scheme_grid(scheme))
    return LearnableCodes(W, codes, scheme=scheme, transposed=False)


@cache
def learned() -> Learned:
    """Returns the state after an evaluation that was the best."""
    codes = learnable()
    state = LearningState.initial(torch.tensor([1.0, 2.0], dtype=torch.float64).numpy(), "worst")
    state.step = 3
    state.evaluate(torch.tensor([0.5, 0.9], dtype=torch.float64).numpy(), {"map": codes}, "worst")
    with tempfile.TemporaryDirectory() as place:
        one, other = Path(place) / "state.safetensors", Path(place) / "rounded.safetensors"
        save_state(one, state, CodeOptimizer({"map": codes}, rate=0.1))
        save_codes(other, state.best_codes)
        return Learned(codes, Scheme(3, 4), one.read_bytes(), other.read_bytes())


def learning_target() -> Target:
    """Returns the target of the state of learning, and of the codes that it starts with."""

    def make(rng: random.Random) -> Files:
        files = {"state.safetensors": learned().state, "rounded.safetensors": learned().rounded}
        name = rng.choice(("state.safetensors", "state.safetensors", "rounded.safetensors"))
        return files | {name: changed_weights(rng, files[name])}

    def read(place: Path) -> None:
        codes = learnable()
        optimizer = CodeOptimizer({"map": codes}, rate=0.1)
        state = load_state(place / "state.safetensors", {"map": codes}, optimizer, languages=2)
        if state is not None:
            rule(state.history[0].step == 0 and state.step == state.history[-1].step >= 0, "steps are none")
            rule(all(entry.damage.shape == (2,) for entry in state.history), "a language is missing")
            rule(bool((state.weights >= 0).all()) and state.weights.shape == (2,), "weights are none")
            for best in state.best_codes.values():
                rule(bool((best.codes.abs() <= 4).all()) and best.codes.shape == (6, 8), "codes are none")
            rule(bool(codes.offsets.isfinite().all()), "an offset is none")
            state.result(("eng_Latn", "heb_Hebr"))
        shapes = {"map": (6, 8)}
        layers = load_codes(place / "rounded.safetensors", {"map": learned().scheme}, shapes, dtype=torch.float32)
        rule(layers["map"].codes.shape == (6, 8) and layers["map"].scales.shape == (6, 2), "other codes")

    return target("state of learning", make, read, files=("state.safetensors", "rounded.safetensors"))


def draft_targets() -> list[Target]:
    """Returns the targets of what an interrupted run leaves."""
    return [draft_target(), learning_target()]
