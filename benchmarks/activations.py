"""What activations on a grid cost the languages of a model: one threshold for all, their own, another's, per token.

    python benchmarks/activations.py [--model embedded:tiny …] [--weights 8 4] [--activations 8 6 4] [--tokens 600] …

Thresholds are found on the calibration split of the declaration, by the model whose weights are quantized already;
damage is measured on its evaluation split, in bits per byte added to the model as it is. "another's" are the
thresholds of the language whose row differs most (mean |log α ratio|). Documents are paired, intervals are of 95 % over
documents; "better" and "worse" count the languages that differ significantly (Holm). "bytes" is what the rows of all
languages take beside the language-blind one.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from fairbits import Checkpoint
from fairbits.api.make_plan import plan as planned
from fairbits.core.array_checks import Floats
from fairbits.forward.collect import document_losses
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import Text
from fairbits.models.embedded import embedded_languages
from fairbits.models.swapped_model import SwappedModel
from fairbits.quantization.execute import execute_plan
from fairbits.serve.overlays.activations import (
    ActivationQuantizer,
    ActivationRecord,
    ActivationTable,
    language_windows,
    record_activations,
)
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits.text.included_texts import udhr
from fairbits.text.text_request import TextRequest
from fairbits_research.experiments.gaps import LanguageGap

MODELS = ("embedded:tiny", "embedded:tiny?outliers=3:125,7:148")
BLIND, OWN, OTHER, DYNAMIC = "language-blind", "own", "another's", "per token"


class Bench:
    """A model in memory before the evaluation text, with its loss as it is."""

    def __init__(self, target: str, options: argparse.Namespace) -> None:
        self.checkpoint, self.options = Checkpoint(target), options
        codes = embedded_languages(target) if options.languages is None else options.languages.split(",")
        self.corpus = udhr(codes)
        self.calibration = self._text("calibration", options.calibration)
        self.text = self._text("evaluation", options.tokens)
        self.swapped = SwappedModel.load(self.checkpoint, device=options.device)
        self.model = self.swapped.model
        self.before, self.predicted = document_losses(self.model, self.text)

    def put_weights(self, bits: int) -> None:
        """Quantizes the weights in place."""
        own = self.options
        asked = {"tokens": own.calibration, "seed": own.seed, "device": own.device}
        plan = planned(self.checkpoint, policy=own.policy, text=self.corpus, bits=bits, group="channel", **asked)
        text = self.calibration if plan.calibration is not None else None
        for block in execute_plan(self.checkpoint, plan, text=text, device=own.device):
            self.swapped.replace(block.layers)

    def frame(self, switch: Callable[[str], None] | None = None) -> LanguageFrame:
        """Returns the damage as the model is now; `switch` is called before the text of every language."""
        if switch is None:
            after = document_losses(self.model, self.text)[0]
        else:
            after = np.zeros_like(self.before)
            for code in self.text.languages:
                switch(code)
                after += document_losses(self.model, language_windows(self.text, code))[0]
        return LanguageFrame.from_nll(
            self.text.lang,
            self.text.document,
            reference=self.before,
            quantized=after,
            tokens=self.predicted,
            size_bytes=self.text.size_bytes,
            seed=self.options.seed,
        )

    def frames(self, table: ActivationTable) -> dict[str, LanguageFrame]:
        """Returns the damage of every way to choose thresholds."""
        other = farthest(table)
        with ActivationQuantizer(self.model, table) as quantizer:
            found = {
                BLIND: self.frame(lambda _: quantizer.use(None)),
                OWN: self.frame(quantizer.use),
                OTHER: self.frame(lambda code: quantizer.use(other[code])),
            }
            quantizer.dynamic()
            found[DYNAMIC] = self.frame()
        return found

    def _text(self, split: str, tokens: int) -> Text:
        return tokenize_corpus(
            self.checkpoint, self.corpus, request=TextRequest(split, tokens=tokens, seed=self.options.seed)
        )


def farthest(table: ActivationTable) -> dict[str, str]:
    """Returns for every language the one whose thresholds differ most."""
    logs = np.log(table.alpha)
    distance = np.abs(logs[:, None] - logs[None]).mean(axis=2)
    return {code: table.languages[int(np.argmax(row))] for code, row in zip(table.languages, distance, strict=True)}


def errors(record: ActivationRecord, table: ActivationTable, rows: Callable[[str], Floats]) -> Floats:
    """Returns E_λ(x − Q(x))² by given thresholds over that by the language's own, (languages, points)."""
    return np.array(
        [
            [
                each.error(float(alpha), table.bits) / each.error(float(best), table.bits)
                for each, alpha, best in zip(record.seen[code], rows(code), table.row(code), strict=True)
            ]
            for code in table.languages
        ]
    )


def error_rows(record: ActivationRecord, tables: Sequence[ActivationTable]) -> Iterator[str]:
    """Yields the lines of the table of squared errors."""
    yield "| activations | thresholds | error / own optimum: median | mean | worst language, mean over points |"
    yield "|---|---|---|---|---|"
    for table in tables:
        other = farthest(table)
        ways: dict[str, Callable[[str], Floats]] = {
            BLIND: lambda _, table=table: table.blind,
            OTHER: lambda code, table=table, other=other: table.row(other[code]),
            **{f"own, {clip}": record.table(table.bits, clip).row for clip in ("laplace", "gaussian", "absmax")},
        }
        for name, rows in ways.items():
            ratio = errors(record, table, rows)
            means = ratio.mean(axis=1)
            worst = f"{means.max():.3f} {table.languages[int(means.argmax())]}"
            yield f"| A{table.bits} | {name} | {np.median(ratio):.3f} | {ratio.mean():.3f} | {worst} |"
        spread = np.exp(np.ptp(np.log(table.alpha), axis=0))
        yield f"| A{table.bits} | largest / smallest α | {np.median(spread):.2f} | {spread.mean():.2f} | – |"


def damage_row(name: str, frame: LanguageFrame, extra: int | None) -> str:
    """Returns the line of one way."""
    code, worst = frame.worst()
    size = "–" if extra is None else f"{extra:,}"
    return f"| {name} | {shown(worst)} {code} | {shown(frame.mean())} | {shown(frame.gap())} | {size} |"


def difference_row(name: str, mine: LanguageFrame, base: LanguageFrame) -> str:
    """Returns the line of a paired difference."""
    signs = np.sign([each.value for each in mine.contrast(base).significant().values()])
    gap = LanguageGap.of(mine).minus(LanguageGap.of(base))
    numbers = (mine.worst_minus(base), mine.minus(base).mean(), gap)
    return f"| {name} | {' | '.join(map(shown, numbers))} | {int((signs < 0).sum())} | {int((signs > 0).sum())} |"


def shown(estimate: Estimate) -> str:
    """Returns an estimate with its interval."""
    return f"{estimate.value:.4f} [{estimate.low:.4f}, {estimate.high:.4f}]"


def report(bench: Bench, width: int) -> None:
    """Prints the tables of one width of weights."""
    options = bench.options
    bench.put_weights(width)
    record = record_activations(bench.model, bench.checkpoint.architecture, bench.calibration)
    tables = [record.table(bits) for bits in options.activations]
    print(f"\n### {bench.checkpoint.target}, W{width}: squared error of activations\n")
    print("\n".join(error_rows(record, tables)), flush=True)
    damage = [damage_row(f"W{width}, activations as they are", bench.frame(), None)]
    differences = []
    for table in tables:
        found = bench.frames(table)
        for name, frame in found.items():
            extra = {OWN: table.extra_bytes, OTHER: table.extra_bytes}.get(name, 0)
            damage.append(damage_row(f"W{width}A{table.bits}, {name}", frame, extra))
            if name != BLIND:
                differences.append(difference_row(f"W{width}A{table.bits}, {name}", frame, found[BLIND]))
    bench.swapped.restore()
    print(f"\n### {bench.checkpoint.target}, W{width}: added bits per byte\n")
    print("| thresholds | worst | mean | gap | bytes |\n|---|---|---|---|---|")
    print("\n".join(damage))
    print(f"\n### {bench.checkpoint.target}, W{width}: less {BLIND}\n")
    print("| thresholds | worst | mean | gap | better | worse |\n|---|---|---|---|---|---|")
    print("\n".join(differences), flush=True)


def arguments() -> argparse.Namespace:
    """Returns what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(MODELS))
    parser.add_argument("--languages", help="such as eng_Latn,heb_Hebr; all of the model if not given")
    parser.add_argument("--policy", default="gptq")
    parser.add_argument("--weights", nargs="+", type=int, default=[8, 4])
    parser.add_argument("--activations", nargs="+", type=int, default=[8, 6, 4])
    parser.add_argument("--tokens", type=int, default=600, help="of evaluation text, per language")
    parser.add_argument("--calibration", type=int, default=600, help="tokens of calibration text, per language")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    """Prints the tables of every model."""
    options = arguments()
    start = time.perf_counter()
    for target in options.model:
        bench = Bench(target, options)
        documents = len(bench.text.lang) // len(bench.text.languages)
        print(
            f"\n## {target}\n\n{len(bench.text.languages)} languages, {documents} documents each "
            f"({int(bench.predicted.sum()):,} predicted tokens), {len(bench.calibration.lang)} of calibration in all; "
            f"weights {options.policy} per channel, seed {options.seed}, torch {torch.__version__} on {options.device}",
            flush=True,
        )
        for width in options.weights:
            report(bench, width)
    print(f"\n{time.perf_counter() - start:,.0f} s")


if __name__ == "__main__":
    main()
