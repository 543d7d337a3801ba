"""What learning adds to GPTQ: worst and mean damage of languages at the same bytes, on several texts, step by step.

    python benchmarks/fair.py --text TEXT [--model embedded:tiny …] [--evaluation OTHER …] [--settings 4:channel 3:64]

Every policy is calibrated on the calibration split of TEXT, anew for every seed, and evaluated on its evaluation split,
on the declaration of human rights and on all of every OTHER: none of it was seen in calibration. Tables give the mean
over seeds with its 95 % interval over documents, the ratio to the first policy, and how many languages differ from it
by a paired test, Holm-corrected. Damage is added nats per token; KL is that to the full-precision model, per token.
The last table holds the worst language of `fair` with weights that follow it to that with equal weights.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fairbits import Checkpoint
from fairbits.evaluation.in_place import put, restore
from fairbits.evaluation.scores import Identity, Scores
from fairbits.language import Corpus, read_corpus, udhr
from fairbits.learning import carry_out
from fairbits.plans import Plan
from fairbits.stats import Estimate, LanguageFrame
from fairbits.steps.comparison import Entry, contrast_of
from fairbits.steps.plan import plan as planned
from fairbits.steps.quantize import calibration_text
from fairbits.steps.variants import variant
from fairbits.steps.yardstick import Yardstick

POLICIES = (
    "gptq",
    "mse",
    "weighted",
    "fair:objective=mean:model_steps=0",
    "fair:objective=mean",
    "fair",
    "fair:avg_bits",
)
WORST, EQUAL = "fair", "fair:objective=mean"
UNIT = "nats_per_token"


@dataclass(frozen=True)
class Setting:
    """Bits and group, as in 3:64 or 4:channel."""

    bits: int
    group: int | str

    @classmethod
    def of(cls, text: str) -> "Setting":
        """Returns the setting that a word stands for."""
        bits, group = text.split(":")
        return cls(int(bits), int(group) if group.isdecimal() else group)

    def __str__(self) -> str:
        return f"W{self.bits}, " + (f"groups of {self.group}" if isinstance(self.group, int) else f"per {self.group}")


@dataclass(frozen=True, eq=False)
class Outcome:
    """One policy, once for every seed: its plans, its seconds, and its scores by text."""

    policy: str
    plans: tuple[Plan, ...]
    seconds: tuple[float, ...]
    scores: dict[str, tuple[Scores, ...]]

    def entry(self, text: str, setting: Setting) -> Entry:
        """Returns what it costs the languages of a text."""
        frames = tuple(each.frame(UNIT) for each in self.scores[text])
        return Entry(self.policy, setting.bits, self.plans, frames, self.seconds, self.scores[text])

    def kl(self, text: str) -> LanguageFrame:
        """Returns the divergence per token on a text, the mean over seeds."""
        found = self.scores[text]
        mean = sum(each.documents.kl for each in found) / len(found)
        first = found[0].frame(UNIT)
        return replace(first, values=mean)


def texts_of(options: argparse.Namespace, checkpoint: Checkpoint, corpus: Corpus) -> Iterator[tuple[str, Yardstick]]:
    """Yields the name of every text, with what the full-precision model says to it."""
    languages = [language.code for language in corpus.languages]
    texts = {"calibration's kind": corpus, "udhr": udhr(languages)}
    for path in options.evaluation:
        texts[path.name] = read_corpus(path, evaluation_share=1.0)
    for name, each in texts.items():
        yield (
            name,
            Yardstick.of(
                checkpoint,
                each,
                tokens=options.evaluation_tokens,
                sequence=options.sequence,
                device=options.device,
            ),
        )


def plan_of(
    policy: str, checkpoint: Checkpoint, corpus: Corpus, setting: Setting, *, seed: int, options: argparse.Namespace
) -> Plan:
    """Returns the plan of a policy; avg_bits without a number is that of the setting."""
    name = policy.replace("avg_bits", f"avg_bits={setting.bits}") if policy.endswith("avg_bits") else policy
    asked = variant(name)
    return planned(
        checkpoint,
        policy=asked.policy,
        text=corpus,
        tokens=options.tokens,
        sequence=options.sequence,
        seed=seed,
        device=options.device,
        **{"group": setting.group, **asked.at(setting.bits)},
    )


def outcome_of(
    policy: str,
    setting: Setting,
    *,
    model: torch.nn.Module,
    checkpoint: Checkpoint,
    corpus: Corpus,
    yardsticks: dict[str, Yardstick],
    options: argparse.Namespace,
) -> Outcome:
    """Returns what a policy does to the languages of every text, once for every seed."""
    plans, seconds = [], []
    scores: dict[str, list[Scores]] = {name: [] for name in yardsticks}
    for seed in options.seeds:
        plan = plan_of(policy, checkpoint, corpus, setting, seed=seed, options=options)
        start = time.perf_counter()
        blocks = list(
            carry_out(checkpoint, plan, text=calibration_text(checkpoint, plan, corpus), device=options.device)
        )
        seconds.append(time.perf_counter() - start)
        plans.append(replace(plan, learned=blocks[-1].learned))
        layers = {name: codes for block in blocks for name, codes in block.layers.items()}
        put(model, checkpoint, layers)
        identity = Identity(f"{checkpoint.target}, {policy}, {setting}, seed {seed}", plan.digest, plan.size_bytes)
        for name, each in yardsticks.items():
            scores[name].append(each.scores(model, identity, device=options.device))
        restore(model, checkpoint, layers)
        if not plan.reads_text:
            break
    return Outcome(policy, tuple(plans), tuple(seconds), {name: tuple(each) for name, each in scores.items()})


def table(found: Sequence[Outcome], text: str, setting: Setting) -> Iterator[str]:
    """Yields the lines of the table of one text."""
    base, base_kl = found[0].entry(text, setting), found[0].kl(text)
    names = ("policy", "MB", "worst", "ratio", "mean", "ratio", "best", "KL worst", "ratio", "KL mean", "ratio")
    yield f"| {' | '.join((*names, 'better', 'worse', 's'))} |"
    yield "|" + "---|" * (len(names) + 3)
    for each in found:
        entry, kl = each.entry(text, setting), each.kl(text)
        worst, mean, best = (entry.statistics[name] for name in ("worst", "mean", "best"))
        contrast = contrast_of(entry, base)
        same = each is found[0]
        cells = [
            f"`{each.policy}`",
            f"{entry.size_bytes / 1e6:.2f}",
            f"{shown(worst)} {entry.frame.worst()[0][:3]}",
            f"{worst.value / base.statistics['worst'].value:.2f}",
            f"{mean.value:.4f}",
            f"{mean.value / base.statistics['mean'].value:.2f}",
            f"{best.value:.4f}",
            f"{kl.worst()[1].value:.4f}",
            f"{kl.worst()[1].value / base_kl.worst()[1].value:.2f}",
            f"{kl.mean().value:.4f}",
            f"{kl.mean().value / base_kl.mean().value:.2f}",
            "" if same else str(len(contrast.better)),
            "" if same else str(len(contrast.worse)),
            f"{sum(each.seconds) / len(each.seconds):.0f}",
        ]
        yield f"| {' | '.join(cells)} |"


def shown(estimate: Estimate) -> str:
    """Returns an estimate with its interval."""
    return f"{estimate.value:.4f} [{estimate.low:.4f}, {estimate.high:.4f}]"


def minimax(found: Sequence[Outcome], texts: Sequence[str], setting: Setting) -> Iterator[str]:
    """Yields the worst language with weights that follow it less that with equal weights, on every text."""
    named = {each.policy: each for each in found}
    if WORST not in named or EQUAL not in named:
        return
    yield "| text | worst, following it − equal weights | the same of KL | mean |"
    yield "|---|---|---|---|"
    for text in texts:
        mine, theirs = named[WORST], named[EQUAL]
        contrast = contrast_of(mine.entry(text, setting), theirs.entry(text, setting))
        kl = mine.kl(text).worst_minus(theirs.kl(text))
        yield f"| {text} | {shown(contrast.worst)} | {shown(kl)} | {shown(contrast.mean)} |"


def arguments() -> argparse.Namespace:
    """Returns what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["embedded:tiny"])
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--evaluation", type=Path, nargs="*", default=[])
    parser.add_argument("--languages", help="such as eng,fra; all of the text if not given")
    parser.add_argument("--settings", nargs="+", default=["4:channel", "3:64"])
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--evaluation-tokens", type=int, default=8192)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="where what was learned is written, one JSON line per plan")
    return parser.parse_args()


def main() -> None:
    """Runs all settings of all models."""
    options = arguments()
    corpus = read_corpus(options.text, languages=options.languages.split(",") if options.languages else None)
    for target in options.model:
        checkpoint = Checkpoint(target)
        model, yardsticks = checkpoint.load(), dict(texts_of(options, checkpoint, corpus))
        print(
            f"\n## {target}\n\n{len(corpus.languages)} languages, about {options.tokens:,} tokens of each to calibrate "
            f"on, seeds {' '.join(map(str, options.seeds))}; torch {torch.__version__} on {options.device}"
        )
        for setting in map(Setting.of, options.settings):
            found = [
                outcome_of(
                    policy,
                    setting,
                    model=model,
                    checkpoint=checkpoint,
                    corpus=corpus,
                    yardsticks=yardsticks,
                    options=options,
                )
                for policy in options.policies
            ]
            for text in yardsticks:
                print(f"\n### {setting}, evaluated on {text}\n")
                print("\n".join(table(found, text, setting)), flush=True)
            print(f"\n### {setting}, minimax against equal weights\n")
            print("\n".join(minimax(found, tuple(yardsticks), setting)), flush=True)
            if options.out is not None:
                with options.out.open("a", encoding="utf-8") as file:
                    for each in found:
                        for plan in each.plans:
                            file.write(json.dumps({"policy": each.policy, **plan.as_data()}) + "\n")
        for each in yardsticks.values():
            each.reference.close()


if __name__ == "__main__":
    main()
