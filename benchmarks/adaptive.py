"""Where option C pays: a base for all languages, and what is switched in it for the language that arrives.

    python benchmarks/adaptive.py [--model embedded:tiny] [--bits 3 4] [--budgets 0.02 0.05 0.1] [--tokens 2048] …

The base is GPTQ under the equal mix of all languages. Everything is made from the calibration split of the declaration
(two documents of three; the third decides on clusters) and judged by its evaluation split, in bits per byte added to
the model as it is. "overlays of 5 %": each takes at most 5 % of the bytes of the base; "one for all" is a single
overlay that serves every language, which is a larger base.
Documents are paired, intervals are of 95 % over documents; "better" and "worse" count the languages that differ beyond
doubt (Holm). "bytes" is what all overlays take together, and their share of the base.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fairbits import Checkpoint
from fairbits.api.make_plan import plan
from fairbits.api.overlay import overlays_for
from fairbits.api.quantize import quantize
from fairbits.comparison.plan_trial import corpus_for
from fairbits.core.array_checks import Floats
from fairbits.evaluation.reference import ReferenceModel
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.serve.overlays.activations import language_windows
from fairbits.serve.overlays.base_model import OverlayBase
from fairbits.serve.overlays.builder import Candidate, Cluster, OverlayBuilder, clusters
from fairbits.serve.overlays.overlay_files import BASE, Overlay
from fairbits.serve.overlays.switch import Switch
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits.text.corpus import TextRequest
from fairbits_research.experiments.gaps import LanguageGap

MIDDLE = 0.05
"""The budget at which the number of clusters is decided."""


@dataclass(frozen=True, eq=False)
class Damage:
    """What every language loses: added loss, and KL from the model as it is."""

    added: LanguageFrame
    kl: LanguageFrame

    @property
    def frames(self) -> tuple[LanguageFrame, LanguageFrame]:
        """Both."""
        return self.added, self.kl


class Judge:
    """The evaluation text, and what the model as it is says to it."""

    def __init__(self, checkpoint: Checkpoint, options: argparse.Namespace, keep: ExitStack) -> None:
        self.corpus = corpus_for(checkpoint, languages=options.languages and options.languages.split(","), text=None)
        self.text = tokenize_corpus(
            checkpoint, self.corpus, request=TextRequest("evaluation", tokens=options.tokens, seed=options.seed)
        )
        self._seed, self._device = options.seed, options.device
        self._references = {
            code: keep.enter_context(
                ReferenceModel.on_text(checkpoint, language_windows(self.text, code), device=options.device)
            )
            for code in self.text.languages
        }

    def asked(self, overlay_base: OverlayBase, overlay: Overlay | None, cluster: Cluster) -> Floats:
        """Returns tokens, loss before and after and KL of every document of some languages under an overlay."""
        switch = Switch(overlay_base.model, () if overlay is None else (overlay,))
        switch.to(BASE if overlay is None else overlay.name)
        sums = np.zeros((4, len(self.text.lang)))
        for code in cluster:
            document_sums = self._references[code].compare(overlay_base.model, device=self._device)
            sums += document_sums.predicted, document_sums.nll_reference, document_sums.nll_quantized, document_sums.kl
        switch.to(BASE)
        return sums

    def damage(self, sums: Floats) -> Damage:
        """Returns the damage of every language: added loss, and KL."""
        tokens, before, after, kl = sums
        return Damage(self._frame(before, after, tokens), self._frame(np.zeros_like(kl), kl, tokens))

    def served(self, overlay_base: OverlayBase, overlays: Mapping[Cluster, Overlay | None]) -> Damage:
        """Returns the damage of every language under the overlay of its cluster."""
        return self.damage(
            np.sum([self.asked(overlay_base, overlay, cluster) for cluster, overlay in overlays.items()], axis=0)
        )

    def _frame(self, before: Floats, after: Floats, tokens: Floats) -> LanguageFrame:
        return LanguageFrame.from_nats(
            self.text.lang,
            self.text.document,
            nats=after - before,
            tokens=tokens,
            size_bytes=self.text.size_bytes,
            seed=self._seed,
        )


class Table:
    """The rows of a width, printed as they come."""

    def __init__(self, title: str, base: Damage, size: int) -> None:
        self.base, self._size, self._title = base, size, title
        self.differences: dict[str, list[str]] = {"added bits per byte": [], "KL, bits per byte": []}
        self.notes: list[str] = []
        columns = "| weights | added: worst | mean | gap | KL: worst | mean | gap | overlays | bytes |"
        print(f"\n### {title}: bits per byte\n\n{columns}\n|---|---|---|---|---|---|---|---|---|")
        self.add("base", base, [])

    def add(self, name: str, damage: Damage, overlays: list[Overlay]) -> None:
        """Prints a row, and keeps its difference to the base."""
        extra = sum(overlay.size_bytes for overlay in overlays)
        numbers = " | ".join(
            f"{shown(frame.worst()[1])} {frame.worst()[0]} | {shown(frame.mean())} | {shown(frame.gap())}"
            for frame in (damage.added, damage.kl)
        )
        print(f"| {name} | {numbers} | {len(overlays)} | {extra:,} ({extra / self._size:.1%}) |", flush=True)
        if damage is not self.base:
            self.compare(f"{name} minus base", damage, self.base)

    def compare(self, name: str, damage: Damage, other: Damage) -> None:
        """Keeps a paired difference."""
        for rows, mine, base in zip(self.differences.values(), damage.frames, other.frames, strict=True):
            rows.append(difference_row(name, mine, base))

    def close(self) -> None:
        """Prints the differences."""
        for what, rows in self.differences.items():
            print(f"\n### {self._title}: differences, {what}\n\n| weights | worst | mean | gap | better | worse |")
            print("\n".join(("|---|---|---|---|---|---|", *rows)))
        print("", *self.notes, sep="\n", flush=True)


def report(checkpoint: Checkpoint, base: Checkpoint, judge: Judge, *, bits: int, options: argparse.Namespace) -> None:
    """Prints the tables of one width."""
    title = f"{checkpoint.target}, {bits} bits"
    words = tokenize_corpus(
        checkpoint, judge.corpus, request=TextRequest(tokens=options.calibration, seed=options.seed)
    )
    with ReferenceModel.on_text(checkpoint, words, device=options.device) as reference:
        overlay_base = OverlayBase(checkpoint, base, device=options.device)
        builder = OverlayBuilder(overlay_base, reference, seed=options.seed)
        languages = tuple(words.languages)
        alone: list[Cluster] = [(code,) for code in languages]
        table = Table(title, judge.served(overlay_base, dict.fromkeys(alone)), overlay_base.size_bytes)

        def all_rows(name: str, form: str) -> None:
            overlays = {solo: builder.overlay(solo[0], solo, builder.candidates(solo, form), None) for solo in alone}
            table.add(name, judge.served(overlay_base, overlays), list(overlays.values()))

        all_rows("scale switching, own steps of every language", "steps")
        _clustered(builder, table, judge, options)
        all_rows("private copies, own codes of every language", "codes")
        all_rows("private residuals of 2 bits, all rows", "residual")
        table.close()


def _clustered(builder: OverlayBuilder, table: Table, judge: Judge, options: argparse.Namespace) -> None:
    """Prints the rows of overlays."""
    overlay_base, languages = builder.overlay_base, tuple(builder.text.languages)
    count = options.clusters
    if count is None:
        _, _, record = overlays_for(builder, budget=MIDDLE, count=None, form="residual")
        count, tried = record["clusters"], record["tried"].items()
        summary = "; ".join(f"{k}: worst {kl['worst']:.4f}, mean {kl['mean']:.4f}" for k, kl in tried)
        table.notes.append(f"KL on the text kept apart, bits per byte, by number of clusters: {summary}")
    groups = clusters(builder.patterns(), count)
    candidates: dict[Cluster, list[Candidate]] = {group: builder.candidates(group, "residual") for group in groups}
    whole = candidates.get(languages) or builder.candidates(languages, "residual")
    middle, damages = None, {}
    for budget in options.budgets:
        overlays = {group: builder.overlay(group[0], group, candidates[group], budget) for group in groups}
        damages[budget] = judge.served(overlay_base, overlays)
        table.add(f"overlays of {budget:.0%}, {count} clusters", damages[budget], list(overlays.values()))
        if budget == MIDDLE:
            middle = damages[budget]
    for budget in sorted({*options.budgets, min(MIDDLE * count, 1.0)}):
        one = builder.overlay("one", languages, whole, budget)
        same = judge.served(overlay_base, {languages: one})
        table.add(f"one for all of {budget:.0%}", same, [one])
        if budget in damages:
            table.compare(f"overlays of {budget:.0%} minus one for all of {budget:.0%}", damages[budget], same)
        elif middle is not None:
            table.compare(f"overlays of {MIDDLE:.0%} minus one for all of their bytes", middle, same)
    table.notes.append("Clusters: " + "; ".join(", ".join(group) for group in groups))


def difference_row(name: str, mine: LanguageFrame, base: LanguageFrame) -> str:
    """Returns the line of a paired difference."""
    signs = np.sign([difference.value for difference in mine.contrast(base).significant().values()])
    gap = LanguageGap.of(mine).minus(LanguageGap.of(base))
    numbers = (mine.worst_minus(base), mine.minus(base).mean(), gap)
    return f"| {name} | {' | '.join(map(shown, numbers))} | {int((signs < 0).sum())} | {int((signs > 0).sum())} |"


def shown(estimate: Estimate) -> str:
    """Returns an estimate with its interval."""
    return f"{estimate.value:.4f} [{estimate.low:.4f}, {estimate.high:.4f}]"


def arguments() -> argparse.Namespace:
    """Returns what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded:tiny")
    parser.add_argument("--languages", help="such as eng_Latn,heb_Hebr; all of the model if not given")
    parser.add_argument("--bits", nargs="+", type=int, default=[3, 4])
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.02, MIDDLE, 0.1])
    parser.add_argument("--clusters", type=int, help="how many; decided on text kept apart if not given")
    parser.add_argument("--tokens", type=int, default=2048, help="of evaluation text, per language")
    parser.add_argument("--calibration", type=int, default=2048, help="tokens of calibration text, per language")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    """Prints the tables of every width."""
    options = arguments()
    start = time.perf_counter()
    checkpoint = Checkpoint(options.model)
    with ExitStack() as keep:
        judge = Judge(checkpoint, options, keep)
        print(
            f"{len(judge.text.languages)} languages, {len(judge.text.lang)} documents, seed {options.seed}, "
            f"torch {torch.__version__} on {options.device}",
            flush=True,
        )
        for bits in options.bits:
            place = Path(keep.enter_context(tempfile.TemporaryDirectory())) / "base"
            asked = {"tokens": options.calibration, "seed": options.seed, "device": options.device}
            gptq_plan = plan(checkpoint, policy="gptq", bits=bits, group="channel", text=judge.corpus, **asked)
            quantize(checkpoint, gptq_plan, out=place, text=judge.corpus, device=options.device)
            report(checkpoint, Checkpoint(place), judge, bits=bits, options=options)
    print(f"\n{time.perf_counter() - start:,.0f} s")


if __name__ == "__main__":
    main()
