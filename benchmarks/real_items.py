"""The items of benchmarks/real.py: one policy on one model with one seed, and the run that measures them."""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import published
from bench import Bench, Setting, Store
from fairbits import Checkpoint
from fairbits.api.make_plan import plan as make_plan
from fairbits.core.units import gigabytes
from fairbits.evaluation.scores import Scores
from fairbits.models.device import is_gpu, resolve_device
from fairbits.quantization.plan import Plan
from fairbits.quantization.policies.variants import Variant, variant
from fairbits.text.corpus import TextRequest
from real_ablations import left_out, split
from real_autoround import Recipe
from real_autoround import run as run_autoround
from real_texts import Texts, digest

ALL = 10**9
"""More calibration tokens than any text has."""
Measured = tuple[Mapping[str, Scores], dict[str, Any], float]
"""The scores of an item by text, facts about them, and the seconds that opening the model took."""


@dataclass(frozen=True)
class Item:
    """One policy on one model with one seed."""

    model: str
    setting: str
    policy: str
    seed: int

    @property
    def variant(self) -> Variant:
        """The policy without the amount of text; for AutoRound the one that has its text and size."""
        return variant("gptq" if self.recipe else self.base.removesuffix("@all"))

    @property
    def base(self) -> str:
        """The policy without what is left out of it."""
        return split(self.policy)[0]

    @property
    def recipe(self) -> Recipe | None:
        """How AutoRound quantizes; None if fairbits does."""
        return Recipe.of(self.policy)

    @property
    def has_seeds(self) -> bool:
        """Whether a seed makes a difference: text is sampled, or codes are learned in an order."""
        policy_variant = self.variant
        learns = policy_variant.policy == "fair" or self.recipe is not None
        return policy_variant.reads_text and (not self.base.endswith("@all") or learns)

    def tokens(self, usual: int) -> int:
        """Returns the calibration tokens of each language."""
        return ALL if self.base.endswith("@all") else usual

    def __str__(self) -> str:
        return f"{self.model}, {Setting.of(self.setting)}, {self.policy}, seed {self.seed}"


class Run:
    """The models that are open, and the settings that all items share."""

    def __init__(self, options: argparse.Namespace, texts: Texts | None = None) -> None:
        self.options = options
        self.device = resolve_device(options.device)
        self.texts = Texts.of(options) if texts is None else texts
        self.store = Store(options.out)
        self._benches: dict[str, Bench] = {}

    def settings(self, item: Item) -> dict[str, Any]:
        """Returns everything that decides the scores of an item; scores with other settings are measured again."""
        options = self.options
        published_model = published.MODELS.get(item.model)
        hashes = {name: digest(text.hashes["evaluation"]) for name, text in self.texts.evaluation.items()}
        return {
            "model": item.model if published_model is None else published_model.sha256,
            "setting": item.setting,
            "policy": item.policy,
            "seed": item.seed,
            "text": options.text,
            "calibration": digest(self.texts.calibration.hashes["calibration"]),
            "languages": list(self.texts.calibration.calibration),
            "evaluation": hashes,
            "tokens": item.tokens(options.tokens),
            "evaluation_tokens": options.evaluation_tokens,
            "sequence": options.sequence,
        }

    def is_done(self, item: Item) -> bool:
        """Returns whether there are complete scores of an item with these settings."""
        facts = self.store.facts(self.place(item))
        return facts is not None and facts["settings"] == self.settings(item)

    def place(self, item: Item) -> Path:
        """Returns where the scores of an item are."""
        return self.store.place(item.model, item.setting, item.policy, item.seed)

    def measure(self, item: Item) -> Measured:
        """Quantizes and evaluates."""
        start = time.perf_counter()
        bench = self.bench(item.model)
        opened = time.perf_counter() - start
        if is_gpu(self.device):
            torch.cuda.reset_peak_memory_stats()
        scores, facts = self.quantize(bench, item)
        total = time.perf_counter() - start - opened
        facts |= {"settings": self.settings(item), "total_seconds": total, "environment": environment(self.device)}
        if is_gpu(self.device):
            facts.setdefault("peak_gpu_bytes", torch.cuda.max_memory_allocated())
        return scores, facts, opened

    def quantize(self, bench: Bench, item: Item) -> tuple[dict[str, Scores], dict[str, Any]]:
        """Returns the scores of an item and facts about it."""
        plan = self.plan(bench.checkpoint, item)
        if item.recipe is None:
            with left_out(split(item.policy)[1]):
                return bench.run(plan, f"{item.policy}, seed {item.seed}")
        return run_autoround(
            bench,
            plan,
            item.recipe,
            setting=Setting.of(item.setting),
            length=min(self.options.sequence, bench.checkpoint.longest_input),
            seed=item.seed,
            python=self.options.autoround_python,
            compiles=not self.options.autoround_eager,
        )

    def keep(self, item: Item, measured: Measured) -> None:
        """Writes the scores of an item and prints a line about it."""
        scores, facts, opened = measured
        self.store.save(self.place(item), scores, facts)
        peak = f", {gigabytes(facts['peak_gpu_bytes'])} of GPU memory" if "peak_gpu_bytes" in facts else ""
        report(
            f"{item}: quantized in {facts['seconds']:.0f} s, evaluated in {facts['evaluation_seconds']:.0f} s{peak}"
            + (f" (opening the model took {opened:.0f} s)" if opened > 1 else "")
        )

    def bench(self, model: str) -> Bench:
        """Returns a model with its answers before quantization; every model is opened once."""
        if model not in self._benches:
            request = TextRequest("evaluation", self.options.evaluation_tokens, self.options.sequence)
            self._benches[model] = Bench(
                path_of(model),
                self.texts.calibration,
                self.texts.evaluation,
                request=request,
                device=self.device,
            )
        return self._benches[model]

    def plan(self, checkpoint: Checkpoint, item: Item) -> Plan:
        """Returns the plan of an item."""
        policy_variant, setting, options = item.variant, Setting.of(item.setting), self.options
        return make_plan(
            checkpoint,
            policy=policy_variant.policy,
            text=self.texts.calibration if policy_variant.reads_text else None,
            tokens=item.tokens(options.tokens),
            sequence=options.sequence,
            seed=item.seed,
            device=self.device,
            **{"group": setting.group, **policy_variant.at(setting.bits)},
        )

    def close(self) -> None:
        """Removes temporary files."""
        for bench in self._benches.values():
            bench.close()


@dataclass(frozen=True, eq=False)
class RealWork:
    """What items share: options and texts, and the time at which the budget begins."""

    options: argparse.Namespace
    texts: Texts
    begun: float

    @contextmanager
    def open(self, progress: object = None) -> Iterator[Callable[[Item, object], Measured | None]]:
        """Yields the function that measures an item; it returns None where the budget does not allow it."""
        del progress  # a line is printed for each item
        work = Run(self.options, self.texts)
        took: dict[tuple[str, str], float] = {}

        def measure(item: Item, _: object) -> Measured | None:
            start = time.time()
            if start - self.begun + took.get((item.model, item.policy), 0.0) > self.options.budget:
                return None
            measured = work.measure(item)
            took[item.model, item.policy] = time.time() - start
            return measured

        try:
            yield measure
        finally:
            work.close()


def path_of(model: str) -> str | Path:
    """Returns the file of a published model, or whatever else names a model."""
    published_model = published.MODELS.get(model)
    return model if published_model is None else published_model.path


def environment(device: str) -> str:
    """Returns what the numbers were computed with."""
    from fairbits.core.version import __version__

    machine = torch.cuda.get_device_name(device) if is_gpu(device) else f"CPU, {torch.get_num_threads()} threads"
    return f"fairbits {__version__}, torch {torch.__version__}, {machine}"


def report(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)
