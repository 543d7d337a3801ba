"""What every policy costs the languages of a model: worst, mean, gap, best and bytes, on text it was not calibrated on.

    python benchmarks/policies.py [--model embedded:tiny] [--text TEXT] [--bits 4 3] [--group channel 64] …

`--evaluation TEXT` evaluates on other text than the evaluation split of `--text`. Calibrated policies are run once for
every seed, which draws other calibration documents: the table gives the mean over seeds, its 95 % interval over
documents, and the range over seeds. "better" and "worse" count the languages that differ from the baseline by a paired
test, Holm-corrected over languages; "weights" is −10 log₁₀ of ‖ΔW‖²/‖W‖², the mean over linear layers.
Damage is added nats per token, `--unit` says otherwise.
"""

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path

import torch

from fairbits import Checkpoint
from fairbits.api.compare import compare
from fairbits.comparison.comparison import Comparison, PolicyEntry
from fairbits.models.embedded import embedded_languages
from fairbits.text.corpus import Corpus
from fairbits.text.included_texts import udhr
from fairbits.text.reading import read_corpus

POLICIES = (
    "gptq",
    "rtn",
    "aciq",
    "aciq:law=laplace",
    "kappa",
    "mse",
    "weighted",
    "laaciq:objective=worst",
    "laaciq:objective=regret",
    "gptq:mix=english",
    "gptq:mix=minimax",
    "allocate:objective=mean",
    "allocate:objective=worst",
    "mixed",
    "gateway",
    "protect",
)
STATISTICS = ("worst", "mean", "gap", "best")


def corpus_of(text: Path | None, evaluation: Path | None, *, languages: list[str] | None, model: str) -> Corpus:
    """Returns the text to calibrate on with its own evaluation split, or with all of another text to evaluate on."""
    if text is None:
        return udhr(languages or embedded_languages(model))
    corpus = read_corpus(text, languages=languages)
    if evaluation is None:
        return corpus
    others = read_corpus(evaluation, languages=[language.code for language in corpus.languages], evaluation_share=1.0)
    name = f"{corpus.name}, evaluated on {others.name}"
    return replace(corpus, name=name, evaluation=others.evaluation, parallel=False).deduplicate()


def report(found: Comparison, group: str) -> None:
    """Prints one table per width."""
    contrasts = {(each.policy, each.bits): each for each in found.contrasts}
    for bits in dict.fromkeys(entry.bits for entry in found.entries):
        print(f"\n### W{bits}, {'one scale per channel' if group == 'channel' else f'groups of {group}'}\n")
        print("| policy | MB | worst | over seeds | mean | gap | best | better | worse | weights, dB | s |")
        print("|---|---|---|---|---|---|---|---|---|---|---|")
        for entry in (each for each in found.entries if each.bits == bits):
            contrast = contrasts.get((entry.policy, bits))
            counts = ("", "") if contrast is None else (len(contrast.better), len(contrast.worse))
            print(row(entry, counts), flush=True)


def row(entry: PolicyEntry, counts: tuple[object, object]) -> str:
    """Returns a line of the table."""
    numbers = {name: entry.statistics[name] for name in STATISTICS}
    worst = numbers["worst"]
    low, high = entry.ranges["worst"]
    errors = [each.weight_error for each in entry.plans[0].outcomes]
    cells = [
        entry.policy,
        f"{entry.size_bytes / 1e6:.2f}",
        f"{worst.value:.4f} [{worst.low:.4f}, {worst.high:.4f}] {entry.frame.worst()[0]}",
        f"{low:.4f}–{high:.4f}" if len(entry.frames) > 1 else "",
        *(f"{numbers[name].value:.4f}" for name in STATISTICS[1:]),
        *map(str, counts),
        f"{-10 * math.log10(sum(errors) / len(errors)):.1f}",
        f"{sum(entry.seconds) / len(entry.seconds):.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def arguments() -> argparse.Namespace:
    """Returns what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded:tiny")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--evaluation", type=Path)
    parser.add_argument("--languages", help="such as eng,fra; all of the text if not given")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--bits", nargs="+", type=int, default=[4, 3])
    parser.add_argument("--group", nargs="+", default=["channel", "64"])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--evaluation-tokens", type=int, default=8192)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--unit", default="nats_per_token")
    parser.add_argument("--embeddings", default="keep")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="where the comparisons are written, one JSON file per group")
    return parser.parse_args()


def main() -> None:
    """Runs the comparison of every group."""
    options = arguments()
    names = None if options.languages is None else options.languages.split(",")
    corpus = corpus_of(options.text, options.evaluation, languages=names, model=options.model)
    checkpoint = Checkpoint(options.model)
    start = time.perf_counter()
    seeds = " ".join(map(str, options.seeds))
    print(
        f"{options.model}, {corpus.name}, {len(corpus.languages)} languages: calibration on about {options.tokens:,} "
        f"tokens per language, seeds {seeds}, evaluation on about {options.evaluation_tokens:,}; windows of "
        f"{options.sequence}; baseline {options.policies[0]}; {options.unit}; torch {torch.__version__} on "
        f"{options.device}"
    )
    for name in options.group:
        found = compare(
            checkpoint,
            policies=options.policies,
            bits=options.bits,
            group=int(name) if name.isdecimal() else name,
            text=corpus,
            tokens=options.tokens,
            evaluation_tokens=options.evaluation_tokens,
            sequence=options.sequence,
            seeds=options.seeds,
            measure="loss",
            unit=options.unit,
            embeddings=options.embeddings if options.embeddings == "keep" else int(options.embeddings),
            device=options.device,
        )
        report(found, name)
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / f"policies-{name}.json").write_text(json.dumps(found.as_data(), ensure_ascii=False))
    print(f"\n{time.perf_counter() - start:,.0f} s")


if __name__ == "__main__":
    main()
