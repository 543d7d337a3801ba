"""fairbits against its peers: one model, one set of calibration tokens, the same bits and groups, one evaluation.

    python benchmarks/peers.py --environments DIR [--model embedded:tiny] [--text TEXT] [--bits 4 3] [--group 64 …]

Each method runs in a process of its own, each peer in a virtual environment of its own, made in DIR where it is
missing. All get the same token ids, as many of each language, and give back the weights that a loader would make of
what they store. These are put into the model and measured on evaluation text. Quantized are the layers of blocks.

Seconds are of quantizing alone, the least of the repetitions. Peers have loaded the model before, which does not count;
fairbits reads it as it goes, which does. Bits per weight count codes as they are stored, and 16 for every scale and
zero point. Grids: fairbits, llm-compressor and AutoRound are symmetric, AutoRound with scales of either sign; HQQ and
quanto are not, and store zero points.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from environments import python_of
from fairbits import Checkpoint
from fairbits.comparison.plan_trial import PlanTrial, corpus_for
from fairbits.evaluation.divergence import DocumentSums, compare_models
from fairbits.quantization.evidence import is_rounded
from fairbits.stats.frame import LanguageFrame
from fairbits.text.mix import Mix, build_mix
from fairbits.text.text_request import TextRequest

WORKERS = Path(__file__).parent / "peers"
OURS = "fairbits"
ENVIRONMENTS = {
    "llm_compressor": ("llmcompressor==0.14.0.1", "compressed-tensors==0.19.0", "transformers==5.17.0"),
    "hqq": ("hqq==0.2.8", "transformers==5.22.2"),
    "quanto": ("optimum-quanto==0.2.7", "transformers==5.22.2"),
    "auto_round": ("auto-round==0.16.1", "compressed-tensors==0.19.0", "transformers==5.22.2"),
    "gptqmodel": ("gptqmodel==7.6.0", "transformers==5.23.0"),
}
"""What recipes.py installs too; METHODS says which are compared here."""
METHODS = {
    "llm_compressor": ("rtn", "rtn_mse", "gptq", "gptq_mse"),
    "hqq": ("hqq",),
    "quanto": ("max",),
    "auto_round": ("auto_round",),
    OURS: ("rtn", "mse", "gptq", "fair"),
}
PER_TOKEN = "nats_per_token"
DIVERGENCE = "divergence"
UNITS = {DIVERGENCE: "divergence, nats/token", PER_TOKEN: "nats/token", "bits_per_byte": "bits/byte"}


@dataclass(frozen=True)
class Task:
    """What every method is asked; `group` None is one scale per channel."""

    bits: int
    group: int | None
    threads: int
    repeats: int

    @property
    def name(self) -> str:
        """What a reader calls it."""
        return f"{self.bits} bits, " + ("per channel" if self.group is None else f"group {self.group}")


@dataclass(frozen=True, eq=False)
class Row:
    """What came of a method: its cost, and the damage of each language by unit."""

    name: str
    cost: Mapping[str, Any]
    damage: Mapping[str, LanguageFrame]

    def worst(self, unit: str) -> float:
        """Returns the largest damage of a language."""
        return self.damage[unit].worst()[1].value

    def as_data(self) -> dict[str, Any]:
        """Returns all of it, for JSON."""
        damage = {unit: {k: asdict(v) for k, v in frame.by_language().items()} for unit, frame in self.damage.items()}
        return {"name": self.name, "cost": self.cost, "damage": damage}


class Contest:
    """A model that takes the weights of one method after the other."""

    def __init__(self, trial: PlanTrial, mix: Mix) -> None:
        """Makes ready what every method gets."""
        self.trial = trial
        tokenizer = trial.checkpoint.tokenizer()
        self.linears = [each for each in trial.checkpoint.architecture.linears.values() if is_rounded(each)]
        self.given = {
            "model": str(trial.checkpoint.directory),
            "modules": [each.module for each in self.linears],
            "samples": [tokenizer(sample.text)["input_ids"] for sample in mix.samples],
            "languages": [sample.lang for sample in mix.samples],
        }

    def row(self, python: Path, worker: str, *, method: str, task: Task) -> Row | str:
        """Returns what came of a method, or why nothing did."""
        asked = {"method": method, "bits": task.bits, "group": task.group, "threads": task.threads}
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "job.json").write_text(json.dumps(self.given | asked), encoding="utf-8")
            costs = []
            for _ in range(task.repeats):
                ended = run(python, worker, folder=folder, threads=task.threads)
                if ended.returncode:
                    return (ended.stderr.strip().splitlines() or [f"ended with {ended.returncode}"])[-1]
                costs.append(json.loads(Path(folder, "result.json").read_text(encoding="utf-8")))
            answers = self._answers(load_file(Path(folder, "weights.safetensors")))
        cost = min(costs, key=lambda each: each["seconds"])
        return Row(f"{worker} {method}", cost, {unit: self._frame(answers, unit) for unit in UNITS})

    @torch.no_grad()
    def _answers(self, weights: Mapping[str, torch.Tensor]) -> DocumentSums:
        with self.trial.swapped as swapped:
            for each in self.linears:
                W = weights[each.module]
                swapped.replace({each.name: W.T if each.transposed else W})
            return compare_models(swapped.model, self.trial.reference)

    def _frame(self, answers: DocumentSums, unit: str) -> LanguageFrame:
        text = self.trial.reference.text
        return LanguageFrame.from_nats(
            text.lang,
            text.document,
            nats=answers.kl if unit == DIVERGENCE else answers.nll_quantized - answers.nll_reference,
            tokens=answers.predicted,
            size_bytes=text.size_bytes,
            unit=PER_TOKEN if unit == DIVERGENCE else unit,
        )


def environment(directory: Path, worker: str) -> Path:
    """Returns the python of a worker; an environment that is missing or differs from its pins is made anew."""
    return Path(sys.executable) if worker == OURS else python_of(directory / worker, ENVIRONMENTS[worker])


def run(
    python: Path, worker: str, *, folder: str, threads: int, capture: bool = True
) -> subprocess.CompletedProcess[str]:
    """Returns the ended process of a worker, which has left its result in the folder."""
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), str(threads))
    command = [python, WORKERS / f"with_{worker}.py", f"{folder}/job.json", folder]
    # without progress bars the last line that a failed worker says is its error
    quiet = {"TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}
    settings = os.environ | limits | quiet | {"HF_HUB_OFFLINE": "1"}  # the model is on disk
    return subprocess.run(command, env=settings, capture_output=capture, text=True, check=False)


def print_table(rows: Iterable[Row]) -> None:
    """Prints cost and damage of every method; worst and best are corrected for having been chosen."""
    heads = [f"{unit}: worst | mean | gap | best" for unit in UNITS.values()]
    print(f"| | bits/weight | s | peak MB | {' | '.join(heads)} |\n|---|---|---|---|" + "---|" * 4 * len(heads))
    for row in rows:
        size, seconds, peak = (row.cost[key] for key in ("bits_per_weight", "seconds", "peak_bytes"))
        cells = [row.name, f"{size:.3f}", f"{seconds:.2f}", f"{peak / 1e6:.0f}"]
        for frame in row.damage.values():
            (worst, most), (best, least) = frame.worst(), frame.best()
            cells += [f"{most.value:.4f} [{most.low:.4f}, {most.high:.4f}] {worst}", f"{frame.mean().value:.4f}"]
            cells += [f"{frame.gap().value:.4f}", f"{least.value:.4f} {best}"]
        print("|", " | ".join(cells), "|")


def print_ratios(rows: Sequence[Row]) -> None:
    """Prints ours divided by theirs, and how many languages our last method damages less and more (Holm, 5 %)."""
    ours = [row for row in rows if row.name.startswith(OURS)]
    names = " | ".join(row.name.removeprefix(f"{OURS} ") for row in ours)
    columns = f"worst divergence: {names} | worst added loss: {names} | seconds: {names}"
    print(f"\n| ours / theirs | {columns} | languages better, worse with {ours[-1].name} |")
    print("|---|" + "---|" * (3 * len(ours) + 1))
    for row in rows:
        if row in ours:
            continue
        damage = [each.worst(unit) / row.worst(unit) for unit in (DIVERGENCE, PER_TOKEN) for each in ours]
        seconds = [each.cost["seconds"] / row.cost["seconds"] for each in ours]
        found = ours[-1].damage[PER_TOKEN].contrast(row.damage[PER_TOKEN])
        sure = [found.differences[code].value for code, p in found.p_holm.items() if p < 0.05]
        counts = f"{sum(each < 0 for each in sure)}, {sum(each > 0 for each in sure)} of {len(found.p)}"
        print("|", " | ".join([row.name, *(f"{each:.2f}" for each in (*damage, *seconds)), counts]), "|")


def report(
    contest: Contest, task: Task, pythons: Mapping[str, Path], wanted: Sequence[str] | None
) -> list[dict[str, Any]]:
    """Prints the tables of one task and returns what they show, for JSON."""
    rows: list[Row] = []
    notes: list[str] = []
    for worker, python in pythons.items():
        for method in METHODS[worker]:
            if wanted is not None and method not in wanted:
                continue
            print(f"{task.name}: {worker} {method}", file=sys.stderr)
            found = contest.row(python, worker, method=method, task=task)
            if isinstance(found, str):
                notes.append(f"{worker} {method}: failed: {found}")
            else:
                rows.append(found)
                notes += [f"{found.name}: {note}" for note in found.cost["notes"]]
    print(f"\n### {task.name}\n")
    print_table(rows)
    if len({row.name.startswith(OURS) for row in rows}) == 2:
        print_ratios(rows)
    print("", *(f"- {note}" for note in notes), sep="\n", flush=True)
    return [row.as_data() for row in rows]


def arguments() -> argparse.Namespace:
    """Returns the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, required=True, help="directory of the peers' environments")
    parser.add_argument("--model", default="embedded:tiny")
    parser.add_argument("--text", help="directory, JSONL file or help; else the embedded declaration")
    parser.add_argument("--languages", help="separated by commas; else those of the model or text")
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 3])
    parser.add_argument("--group", nargs="+", default=["64", "channel"])
    parser.add_argument("--tokens", type=int, help="per language, to calibrate on; else what the text allows")
    parser.add_argument("--measured-tokens", type=int, default=12288, help="per language, to measure on")
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0, help="of the calibration mix")
    parser.add_argument("--workers", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--methods", nargs="+", choices=sorted({each for some in METHODS.values() for each in some}))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path, help="file to write all results to")
    return parser.parse_args()


def main() -> None:
    """Runs the comparison."""
    options = arguments()
    torch.set_num_threads(options.threads)
    pythons = {worker: environment(options.environments, worker) for worker in options.workers}
    checkpoint = Checkpoint(options.model)
    languages = None if options.languages is None else options.languages.split(",")
    corpus = corpus_for(checkpoint, languages=languages, text=options.text)
    request = TextRequest("evaluation", options.measured_tokens, options.sequence)
    with PlanTrial.of(checkpoint, corpus, request=request) as trial:
        budget = None if options.tokens is None else options.tokens * len(trial.corpus.languages)
        tokenizer, text = checkpoint.tokenizer(), trial.reference.text
        mix = build_mix(trial.corpus, tokenizer, tokens=budget, sequence=options.sequence, seed=options.seed)
        print(
            f"{options.model}, {trial.corpus.name}: {sum(each.tokens for each in mix.samples):,} tokens in "
            f"{len(mix.samples)} samples to calibrate on (seed {options.seed}), {len(text.lang):,} documents in "
            f"{len(text.languages)} languages to measure on; windows of {options.sequence}; {options.threads} threads"
        )
        found: dict[str, Any] = {"command": sys.argv[1:], "mix": mix.manifest}
        contest = Contest(trial, mix)
        for bits in options.bits:
            for group in options.group:
                task = Task(bits, None if group == "channel" else int(group), options.threads, options.repeats)
                found[task.name] = report(contest, task, pythons, options.methods)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
