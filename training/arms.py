"""Trains small models that differ in one respect each: `python training/arms.py CORPUS TOKENIZER_DIR OUT`.

The recipe is that of the embedded model (`config.toml`), shorter. OUT gets a transformers checkpoint per arm and seed,
`OUT/base-1` and so on; those that are there already are not trained again. `fairbits research training-choices
--models OUT` measures them.

| arm | what differs from `base` |
|---|---|
| `data` | every language has the same number of tokens: its documents repeated, or cut |
| `optimizer` | Muon moves the matrices of the blocks, AdamW the rest |
| `architecture` | Llama of the same width and depth, with as many weights, dropout and first scale in a block |
| `regularization` | no weight decay, no dropout |
| `initialization` | matrices begin three times as large |
| `penalty` | the loss has a term for uneven layer use, see `EvenBloom` |
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from torch.optim import Muon, Optimizer

import train
from bloom import Bloom
from text import encode

Settings = dict[str, dict[str, Any]]
Split = dict[str, tuple[list[train.Tokens], list[train.Tokens]]]
WIDER = 3.0
"""How many times as large the matrices of `initialization` begin."""
PENALTY = 1.0
"""Nats per token for layer use whose standard deviation over blocks is its mean."""
DONE = "training.json"  # written last


def levelled(split: Split) -> Split:
    """Returns the same with as many tokens to train on in every language: documents in turn, to the mean of all."""
    mean = np.mean([sum(map(len, kept)) for kept, _ in split.values()])
    level = {}
    for lang, (kept, apart) in split.items():
        ends = itertools.accumulate(map(len, itertools.cycle(kept)))
        count = sum(1 for _ in itertools.takewhile(lambda end: end < mean, ends)) + 1
        level[lang] = (list(itertools.islice(itertools.cycle(kept), count)), apart)
    return level


def muon(model: torch.nn.Module, choice: dict[str, Any]) -> list[Optimizer]:
    """Returns Muon for the matrices of the blocks, its steps as large as AdamW's, and AdamW for the rest."""
    inner = [p for name, p in model.named_parameters() if p.ndim == 2 and ".h." in name]
    inner_ids = set(map(id, inner))
    outer = [p for p in model.parameters() if id(p) not in inner_ids]
    first = Muon(inner, weight_decay=choice["weight_decay"], adjust_lr_fn="match_rms_adamw")
    return [first, train.adamw(outer, choice)]


def as_llama(settings: Settings) -> Settings:
    """Returns the settings of a Llama: attention has 3 width² weights in a block instead of 4, so its MLP gets 9."""
    shape = settings["model"]
    return {**settings, "model": {**shape, "architecture": "llama", "inner": 3 * shape["width"]}}


def llama(settings: Settings, *, vocabulary: int) -> torch.nn.Module:
    """Returns a Llama that begins and drops out as base does: what a block adds begins small, and is dropped out."""
    wrapped = train.build(settings, vocabulary=vocabulary)
    rate, shrink = settings["training"]["dropout"], math.sqrt(2 * settings["model"]["layers"])
    for block in wrapped.model.model.layers:
        for last in (block.self_attn.o_proj, block.mlp.down_proj):
            last.weight.data /= shrink
            last.register_forward_hook(lambda linear, _, output: functional.dropout(output, rate, linear.training))
    return wrapped


def unregularized(settings: Settings) -> Settings:
    """Returns the settings without weight decay and dropout."""
    return {**settings, "training": {**settings["training"], "weight_decay": 0.0, "dropout": 0.0}}


def wide(settings: Settings, *, vocabulary: int) -> torch.nn.Module:
    """Returns a model whose matrices begin WIDER times as large."""
    model = train.build(settings, vocabulary=vocabulary)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(WIDER)
    return model


class EvenBloom(Bloom):
    """BLOOM that pays for uneven layer use: PENALTY · Var_l(a_l) / mean_l(a_l)², a_l the mean norm after block l."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        states = self.states(tokens)
        used = torch.stack([state.float().norm(dim=-1).mean() for state in states])
        return self.losses(states[-1], targets) + PENALTY * used.var(correction=0) / used.mean().square()


def even(settings: Settings, *, vocabulary: int) -> torch.nn.Module:
    """Returns a BLOOM that pays for uneven layer use."""
    shape = {key: value for key, value in settings["model"].items() if key != "architecture"}
    return EvenBloom(vocabulary=vocabulary, dropout=settings["training"]["dropout"], **shape)


@dataclass(frozen=True)
class Arm:
    """What differs from the recipe."""

    settings: Callable[[Settings], Settings] = lambda settings: settings
    split: Callable[[Split], Split] = lambda split: split
    build: Callable[..., torch.nn.Module] = train.build
    optimizers: Callable[..., list[Optimizer]] = train.optimizers


ARMS = {
    "base": Arm(),
    "penalty": Arm(build=even),
    "optimizer": Arm(optimizers=muon),
    "initialization": Arm(build=wide),
    "data": Arm(split=levelled),
    "regularization": Arm(settings=unregularized),
    "architecture": Arm(settings=as_llama, build=llama),
}
"""In the order of training: arms that compute the same function need no new compilation."""


def without(split: Split, texts: set[str], tokenizer: Tokenizer) -> Split:
    """Returns the documents to train on less those with one of these texts; nothing is held out besides."""
    coded = tokenizer.encode_batch_fast(sorted(texts), add_special_tokens=False)
    apart = {np.array(encoding.ids, dtype=np.int32).tobytes() for encoding in coded}
    return {lang: ([d for d in kept if d[1:-1].tobytes() not in apart], []) for lang, (kept, _) in split.items()}


def trained_already(out: Path, recipe: dict[str, Any]) -> bool:
    """Returns whether a model is there; raises if it was trained by another recipe: such models cannot be compared."""
    if not (out / DONE).exists():
        return False
    if json.loads((out / DONE).read_text(encoding="utf-8"))["recipe"] != recipe:
        raise SystemExit(f"{out} was trained with other settings or text: remove it, or write elsewhere")
    return True


def train_arm(
    arm: Arm, split: Split, out: Path, *, recipe: dict[str, Any], vocabulary: int, options: argparse.Namespace
) -> float:
    """Trains one model and writes its checkpoint unless it diverged; returns the loss on the last batches."""
    settings = arm.settings(recipe["settings"])
    model, history = train.train(
        settings,
        arm.split(split),
        vocabulary=vocabulary,
        build=arm.build,
        optimizers=arm.optimizers,
        device=options.device,
    )
    loss = history[-1]["train"]
    if math.isfinite(loss):
        train.save(model.cpu(), options.tokenizer, out, settings)
        record = {"recipe": recipe, "train": loss, "seconds": history[-1]["seconds"], "torch": torch.__version__}
        (out / DONE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return loss


def main() -> None:
    """Trains the arms one after another, all seeds of one before the next."""
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("corpus", "tokenizer", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--epochs", type=float, default=1.5)
    parser.add_argument("--apart", type=Path, help="JSON lines of apart.py: texts that are not trained on")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds; nothing is begun that may end later")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    options = parser.parse_args()
    settings = train.settings_of("config.toml", [f"training.epochs={options.epochs}", *options.set])
    tokenizer = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
    lines = options.apart.read_text(encoding="utf-8").splitlines() if options.apart else []
    texts = {json.loads(line)["text"] for line in lines}
    split = without(encode(options.corpus, tokenizer, settings["text"]), texts, tokenizer)
    torch._dynamo.config.recompile_limit = 64  # as many models, some compiled anew
    tokens = {lang: sum(map(len, kept)) for lang, (kept, _) in split.items()}
    print(f"{sum(tokens.values())} tokens", flush=True)
    longest, size = 0.0, tokenizer.get_vocab_size()
    for arm, seed in itertools.product(options.arms, options.seeds):
        out, start = options.out / f"{arm}-{seed}", time.perf_counter()
        seeded_settings = {**settings, "training": {**settings["training"], "seed": seed}}
        recipe = {"settings": seeded_settings, "tokens": tokens}
        if trained_already(out, recipe):
            continue
        if start - began + longest > options.limit:
            print(f"{out.name}: no time left", flush=True)
            continue
        loss = train_arm(ARMS[arm], split, out, recipe=recipe, vocabulary=size, options=options)
        longest = max(longest, time.perf_counter() - start)
        print(f"{out.name}: loss {loss:.3f}, {time.perf_counter() - began:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
