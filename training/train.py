"""Trains a model on one GPU: `python training/train.py CORPUS TOKENIZER_DIR OUT [--set training.epochs=3]`.

`--config llama.toml` trains the second model, for benchmarks, instead of the embedded one, and `mixtral.toml` a small
one with experts, for which a CPU is enough (`--device cpu`). Writes a transformers
checkpoint in float16 with shards of at most 15 MB, and `training.json`: the settings, the share of each language, and
the loss on held-out documents as training went on.
"""

import argparse
import json
import math
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from torch.optim import AdamW, Optimizer

from bloom import Bloom
from llama import Llama, Wrapped
from mixtral import Mixtral
from text import encode

Tokens = NDArray[np.int32]
ARCHITECTURES = {"bloom": Bloom, "llama": Llama, "mixtral": Mixtral}


def epoch(documents: list[Tokens], *, size: int, generator: np.random.Generator) -> Tensor:
    """Returns all documents in a new order as rows of `size` tokens; what does not fill a row is left out."""
    flat = np.concatenate([documents[i] for i in generator.permutation(len(documents))])
    flat = flat[generator.integers(size) :]
    return torch.from_numpy(flat[: flat.size // size * size].reshape(-1, size))


def batches(documents: list[Tokens], choice: dict[str, Any], *, device: str) -> Iterator[Tensor]:
    """Yields (batch, sequence + 1) token arrays without end."""
    generator = np.random.default_rng(choice["seed"])
    while True:
        rows = epoch(documents, size=choice["sequence"] + 1, generator=generator)
        rows = rows[torch.from_numpy(generator.permutation(len(rows)))].to(device).long()
        yield from rows[: len(rows) // choice["batch"] * choice["batch"]].split(choice["batch"])


def learning_rate(step: int, steps: int, choice: dict[str, Any]) -> float:
    """Returns the rate at a step: a linear rise, then a cosine down to 0."""
    if step < choice["warmup"]:
        return float(choice["learning_rate"] * (step + 1) / choice["warmup"])
    done = (step - choice["warmup"]) / max(1, steps - choice["warmup"])
    return float(choice["learning_rate"] * 0.5 * (1 + math.cos(math.pi * done)))


@torch.no_grad()
def held_out_loss(
    model: Any, held: dict[str, list[Tokens]], choice: dict[str, Any], *, device: str
) -> dict[str, float]:
    """Returns nats per token on the held-out documents of each language, as packed as in training."""
    model.eval()
    losses = {}
    for lang, documents in held.items():
        flat = np.concatenate(documents)
        size = choice["sequence"] + 1
        rows = torch.from_numpy(np.resize(flat, (math.ceil(flat.size / size), size))).to(device).long()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            # the same shape as in training, so that nothing is compiled twice
            parts = [
                torch.cat([part, part[-1:].expand(choice["batch"] - len(part), -1)])
                for part in rows.split(choice["batch"])
            ]
            position_losses = torch.cat([model(part[:, :-1], part[:, 1:]) for part in parts])[: len(rows)]
        losses[lang] = position_losses.double().mean().item()
    model.train()
    return losses


def build(settings: dict[str, Any], *, vocabulary: int) -> Bloom | Wrapped:
    """Returns the model before training."""
    shape = dict(settings["model"])
    kind = ARCHITECTURES[shape.pop("architecture")]
    return kind(vocabulary=vocabulary, dropout=settings["training"]["dropout"], **shape)


def adamw(parameters: Iterable[Tensor], choice: dict[str, Any]) -> AdamW:
    """Returns the optimizer of some parameters; matrices decay, gains and biases do not."""
    chosen = list(parameters)
    groups = [
        {"params": [p for p in chosen if p.ndim >= 2], "weight_decay": choice["weight_decay"]},
        {"params": [p for p in chosen if p.ndim < 2], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=1e-3, betas=tuple(choice["betas"]), fused=True)


def optimizers(model: Bloom | Wrapped, choice: dict[str, Any]) -> list[Optimizer]:
    """Returns what moves the weights."""
    return [adamw(model.parameters(), choice)]


def train(
    settings: dict[str, Any],
    split: dict[str, Any],
    *,
    vocabulary: int,
    build: Callable[..., Bloom | Wrapped] = build,
    optimizers: Callable[..., list[Optimizer]] = optimizers,
    device: str = "cuda",
) -> tuple[Bloom | Wrapped, list[dict[str, Any]]]:
    """Returns the trained model and its history on held-out documents, where there are any."""
    choice = settings["training"]
    torch.manual_seed(choice["seed"])
    torch.set_float32_matmul_precision("high")
    model = build(settings, vocabulary=vocabulary).to(device)
    movers = optimizers(model, choice)
    compiled = torch.compile(model) if device == "cuda" else model
    documents = [document for kept, _ in split.values() for document in kept]
    held = {lang: apart for lang, (_, apart) in split.items() if apart}
    per_step = choice["batch"] * choice["sequence"]
    steps = round(choice["epochs"] * sum(map(len, documents)) / per_step)
    history: list[dict[str, Any]] = []
    began, running = time.perf_counter(), 0.0
    for step, rows in zip(range(steps), batches(documents, choice, device=device), strict=False):
        for group in (group for mover in movers for group in mover.param_groups):
            group["lr"] = learning_rate(step, steps, choice)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = compiled(rows[:, :-1], rows[:, 1:]).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), choice["clip"])
        for mover in movers:
            mover.step()
            mover.zero_grad(set_to_none=True)
        running = 0.98 * running + 0.02 * loss.detach() if step else loss.detach()
        if step % (steps // 20 or 1) == 0 or step == steps - 1:
            per_language = held_out_loss(compiled, held, choice, device=device)
            mean = sum(per_language.values()) / len(per_language) if per_language else math.nan
            worst = max(per_language.items(), key=lambda item: item[1], default=None)
            seconds = time.perf_counter() - began
            history.append({"step": step, "train": float(running), "held_out": per_language, "seconds": seconds})
            rate = (step + 1) * per_step / seconds / 1e6
            print(
                f"step {step}/{steps} train {float(running):.3f} held out {mean:.3f} "
                f"worst {worst} {seconds:.0f} s {rate:.2f} M tokens/s",
                flush=True,
            )
    return model, history


def save(model: Bloom | Wrapped, tokenizer_dir: Path, out: Path, settings: dict[str, Any]) -> None:
    """Writes the model as a transformers checkpoint."""
    from transformers import GenerationConfig, PreTrainedTokenizerFast

    model.as_transformers(settings).half().save_pretrained(out, max_shard_size="15MB")
    GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=3).save_pretrained(out)
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    file = str(tokenizer_dir / "tokenizer.json")
    PreTrainedTokenizerFast(tokenizer_file=file, **special, clean_up_tokenization_spaces=False).save_pretrained(out)


def settings_of(config: str, changes: list[str]) -> dict[str, Any]:
    """Returns the settings of a file beside this one, changed by SECTION.KEY=VALUE."""
    settings = tomllib.loads(Path(__file__).with_name(config).read_text(encoding="utf-8"))
    for change in changes:
        name, value = change.split("=", 1)
        section, key = name.split(".", 1)
        settings[section][key] = json.loads(value)
    return settings


def main() -> None:
    """Runs the training."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("corpus", "tokenizer", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--config", default="config.toml", help="the settings, a file beside this one")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    options = parser.parse_args()
    settings = settings_of(options.config, options.set)
    tokenizer = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
    split = encode(options.corpus, tokenizer, settings["text"])
    tokens = {lang: sum(map(len, kept)) for lang, (kept, _) in split.items()}
    print(f"{sum(tokens.values()) / 1e6:.1f} M tokens: {tokens}", flush=True)
    model, history = train(settings, split, vocabulary=tokenizer.get_vocab_size(), device=options.device)
    options.out.mkdir(parents=True, exist_ok=True)
    save(model, options.tokenizer, options.out, settings)
    record = {"settings": settings, "tokens": tokens, "history": history, "torch": torch.__version__}
    (options.out / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
