"""AutoRound among the policies of `real.py`: the same calibration text, the same size, the same evaluation.

Its policies are called `autoround`, followed by what differs from its defaults: `autoround@all`, or
`autoround:iterations=1000:alg_ext@all`, which is its best recipe. On a GPU it learns in bfloat16, as it does by itself;
`:float32` keeps the precision of the model. It uses torch.compile, as it does by itself, unless `--autoround-eager`.

It gets the tokens that `fair` gets. AutoRound takes rows of one length and drops shorter ones, so the documents of a
language follow each other in rows of `--sequence` tokens, each of which begins with the tokenizer's start token. The
last row of a language is filled up with its text from the beginning.

It rounds all layers of the blocks, symmetric, with one 16-bit scale for a group. Its scales may be negative, which
fairbits' are not; they take the same bytes. Seconds are of quantizing alone: AutoRound has loaded the model before,
which does not count; fairbits reads it as it goes, which does. It runs in a process of its own, under
`--autoround-python`.
"""

import hashlib
import json
import math
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, zip_longest
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from bench import Bench, Setting
from fairbits.api.quantize import calibration_text
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.setting import Identity
from fairbits.forward.tokenize import count_tokens
from fairbits.forward.windows import TokenizedText
from fairbits.quantization.plan import Plan

NAME = "autoround"
WORKER = Path(__file__).with_name("autoround_worker.py")
ITERATIONS = 200
SEED = 42
"""AutoRound's own seed, which the seed of an item is added to."""


@dataclass(frozen=True)
class Recipe:
    """What differs from AutoRound's defaults."""

    iterations: int = ITERATIONS
    alg_ext: bool = False
    float32: bool = False

    @classmethod
    def of(cls, policy: str) -> "Recipe | None":
        """Returns the recipe that the name of a policy stands for; None if it is not AutoRound.

        >>> Recipe.of("autoround:iterations=1000:alg_ext@all"), Recipe.of("gptq@all")
        (Recipe(iterations=1000, alg_ext=True, float32=False), None)
        """
        name, *words = policy.removesuffix("@all").split(":")
        if name != NAME:
            return None
        flags = {"alg_ext", "float32"}
        counts = [word.removeprefix("iterations=") for word in words if word.startswith("iterations=")]
        others = {word for word in words if not word.startswith("iterations=")}
        if len(words) != len(counts) + len(others) or len(counts) > 1 or not others <= flags:
            raise ValueError(f"{policy!r} must be {NAME}, with :iterations=N, :alg_ext or :float32, each at most once")
        return cls(int(counts[0]) if counts else ITERATIONS, "alg_ext" in others, "float32" in others)

    @property
    def title(self) -> str:
        """What tables call it.

        >>> Recipe(1000, alg_ext=True).title
        'AutoRound, 1,000 iterations, extended'
        """
        parts = ["AutoRound", f"{self.iterations:,} iterations"]
        parts += ["extended"] * self.alg_ext + ["float32"] * self.float32
        return ", ".join(parts)


def title_of(policy: str) -> str | None:
    """Returns what tables call a policy of AutoRound; None for others.

    >>> title_of("autoround@all")
    'AutoRound, 200 iterations, all text'
    """
    recipe = Recipe.of(policy)
    return None if recipe is None else recipe.title + ", all text" * policy.endswith("@all")


def rows_of(text: TokenizedText, length: int) -> list[list[int]]:
    """Returns the text in rows of this many tokens of one language each, the languages in turn.

    Every token is in a row; what fills up the last row of a language is in two.
    """
    start, streams = start_token(text), dict[str, list[int]]()
    for window in text.windows:
        stream = streams.setdefault(str(text.lang[window.document]), [])
        stream += [token for token, is_text in zip(window.main.ids, window.main.text, strict=True) if is_text]
    by_language = [list(full_rows(ids, length - len(start))) for ids in streams.values()]
    return [start + row for turn in zip_longest(*by_language) for row in turn if row is not None]


def start_token(text: TokenizedText) -> list[int]:
    """Returns what windows begin with before their text: one token, or none."""
    first = text.windows[0].main
    return [] if first.text[0] else first.ids[:1]


def full_rows(ids: Sequence[int], length: int) -> Iterator[list[int]]:
    """Yields rows of a length that hold all ids; the last continues with the first ids.

    >>> list(full_rows([1, 2, 3, 4, 5], 3))
    [[1, 2, 3], [4, 5, 1]]
    """
    endless = cycle(ids)
    for _ in range(math.ceil(len(ids) / length)):
        yield list(islice(endless, length))


def run(
    bench: Bench,
    plan: Plan,
    recipe: Recipe,
    *,
    setting: Setting,
    length: int,
    seed: int,
    python: Path,
    compiles: bool,
) -> tuple[dict[str, Scores], dict[str, Any]]:
    """Returns the scores of AutoRound on every text, and facts about it.

    `plan` is that of GPTQ: it has the calibration text, which AutoRound gets in rows of `length` tokens, and the size
    of the result.
    """
    checkpoint = bench.checkpoint
    text = calibration_text(checkpoint, plan, bench.corpus)
    assert text is not None
    linears = [checkpoint.architecture.linears[name] for name in plan.schemes]
    rows = rows_of(text, length)
    job = {
        "model": str(checkpoint.directory),
        "modules": [layer.module for layer in linears],
        "samples": rows,
        "bits": setting.bits,
        "group": setting.group if isinstance(setting.group, int) else None,
        "threads": torch.get_num_threads(),
        "device": bench.device,
        "options": {
            "iterations": recipe.iterations,
            "alg_ext": recipe.alg_ext,
            "bfloat16": not recipe.float32,
            "compile": compiles,
            "seed": SEED + seed,
        },
    }
    result, weights = carry_out(job, python)
    layers = {layer.name: weights[layer.module].T if layer.transposed else weights[layer.module] for layer in linears}
    digest = hashlib.sha256(f"{plan.digest} {recipe} {seed}".encode()).hexdigest()
    identity = Identity(f"{checkpoint.target}, {recipe.title}, seed {seed}", digest, plan.size_bytes)
    scores, seconds = bench.evaluate(layers, identity)
    facts = {
        "seconds": result["seconds"],
        "evaluation_seconds": seconds,
        "device": bench.device,
        "threads": torch.get_num_threads(),
        "learned": None,
        "calibration_tokens": count_tokens(text),
        "notes": [*plan.notes, *result["notes"]],
        "rows": len(rows),
        "compiles": compiles,
        "versions": result["versions"],
    }
    return scores, facts | ({"peak_gpu_bytes": result["peak_gpu_bytes"]} if result["peak_gpu_bytes"] else {})


def carry_out(job: dict[str, Any], python: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Returns the result of a job and the weights of every module, while the worker prints its progress."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.json").write_text(json.dumps(job), encoding="utf-8")
        limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), str(job["threads"]))
        quiet = {"TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
        command = [python, WORKER, f"{folder}/job.json", folder]
        ended = subprocess.run(command, env=os.environ | limits | quiet, check=False)
        if ended.returncode:
            raise RuntimeError(f"AutoRound under {python} ended with {ended.returncode}; what it printed says why")
        result = json.loads(Path(folder, "result.json").read_text(encoding="utf-8"))
        return result, load_file(Path(folder, "weights.safetensors"))
