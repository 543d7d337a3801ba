"""Predicted against measured damage of each language: is the audit's D̂ right, and where does it stop?

    python benchmarks/predict.py [--model embedded:tiny] [--text TEXT] [--bits 3 4] [--group channel 64] …

D̂ comes from calibration text, the damage from running the quantized model on evaluation text. Nothing is fitted.
Prints, per scheme: the range of damage, its split-half reliability (Spearman–Brown; the ceiling of any correlation is
the root of the reliabilities' product), and the rank correlation over languages of damage with D̂ and with everything
else that could be had before quantizing. `--blocks` adds the damage of single blocks against their predicted share.
"""

import argparse
import itertools
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fairbits import Audit, Checkpoint, Scheme
from fairbits.api.audit import build_audit
from fairbits.core.array_checks import Floats
from fairbits.forward.collect import collect_statistics, document_losses
from fairbits.forward.recorder import probed_linears
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import Text
from fairbits.models.embedded import embedded_languages
from fairbits.models.scales.groups import rounding_error
from fairbits.models.weight_moments import weight_moments
from fairbits.stats.correlation import spearman
from fairbits.text.included_texts import udhr
from fairbits.text.language_codes import find_language
from fairbits.text.reading import read_corpus
from fairbits.text.text_request import TextRequest

HISTORY = Path(__file__).parents[1] / "training/history.json"
HALVES = 200


@dataclass(frozen=True, eq=False)
class Sums:
    """A quantity of every document, in nats, and the tokens it is spread over."""

    lang: NDArray[np.str_]
    document: NDArray[np.intp]
    values: Floats
    tokens: Floats

    def by_language(self, languages: Iterable[str], chosen: NDArray[np.bool_] | None = None) -> Floats:
        """Returns nats per token of each language, of the chosen documents only."""
        rows = np.ones(len(self.lang), bool) if chosen is None else chosen
        own = [rows & (self.lang == code) for code in languages]
        return np.array([self.values[each].sum() / self.tokens[each].sum() for each in own])

    def reliability(self, languages: Iterable[str]) -> float:
        """Returns the mean over random halves of 2r/(1 + r), r the correlation of one half with the other.

        Parallel documents go to the same half in every language.
        """
        rng, found = np.random.default_rng(0), []
        ids, code = np.unique(self.document, return_inverse=True)
        for _ in range(HALVES):
            half = (rng.random(len(ids)) < 0.5)[code]
            r = np.corrcoef(self.by_language(languages, half), self.by_language(languages, ~half))[0, 1]
            found.append(2 * r / (1 + r))
        return float(np.mean(found))


class Measured:
    """The model itself, quantized in place and restored."""

    def __init__(self, checkpoint: Checkpoint, text: Text) -> None:
        """Runs the model as it is."""
        self.model, self.text = checkpoint.load(), text
        self.linears, _ = probed_linears(checkpoint.architecture, self.model)
        self.modules = dict(self.model.named_modules())
        self.base, self.tokens = document_losses(self.model, text)

    def damage(self, scheme: Scheme, blocks: Iterable[int] | None = None) -> Sums:
        """Returns the added loss of every document with all blocks quantized, or some."""
        with self._quantized(scheme, blocks):
            loss, _ = document_losses(self.model, self.text)
        return Sums(self.text.lang, self.text.document, loss - self.base, self.tokens)

    @contextmanager
    def _quantized(self, scheme: Scheme, blocks: Iterable[int] | None) -> Iterator[None]:
        chosen = None if blocks is None else set(blocks)
        linears = [weight for weight in self.linears.values() if chosen is None or weight.block in chosen]
        kept = {weight.module: self.modules[weight.module].weight.data.clone() for weight in linears}
        for weight in linears:
            W = self.modules[weight.module].weight.data
            W.add_(rounding_error(W.T, scheme).T if weight.transposed else rounding_error(W, scheme))
        try:
            yield
        finally:
            for module, W in kept.items():
                self.modules[module].weight.data.copy_(W)


def predictors(found: Audit, shares: dict[str, int] | None) -> dict[str, Floats]:
    """Returns everything that could be had before quantizing, per language."""
    codes = found.languages
    table: dict[str, Floats] = {
        f"D̂ {form}": np.array([each.estimates()[code].value for code in codes]) for form, each in found.damage.items()
    }
    table["activation-weighted error"] = found.weighted_error.by_linear.sum(1)
    table["κ_eff"] = np.array([found.kappa_weighted[code].value for code in codes])
    largest = int(np.argmax([block.kappa for block in found.moments.blocks]))
    table["R̂ (block of largest κ)"] = found.patterns["block", "norm"].share[:, largest]
    table["bytes per token"] = np.array([found.tokenization[code].bytes_per_token.value for code in codes])
    measured = found.measured
    table["baseline loss"] = Sums(measured.lang, measured.document, measured.nll, measured.predicted).by_language(codes)
    if shares is not None:
        table["training share"] = np.array([float(shares[code]) for code in codes])
    return table


def row(name: str, x: Floats, D: Floats) -> str:
    """Returns one line of the table: rank correlation with interval and, for D̂, its range and the factor off."""
    rho = spearman(x, D).estimate
    line = f"| {name} | {rho.value:+.2f} [{rho.low:+.2f}, {rho.high:+.2f}] | {np.corrcoef(x, D)[0, 1]:+.2f} |"
    if not name.startswith("D̂"):
        return f"{line} | | |"
    ratio = D / x
    mean = np.exp(np.log(ratio).mean())
    return f"{line} {x.min():.3f}–{x.max():.3f} | {mean:.2f} | {ratio.min():.2f}–{ratio.max():.2f} |"


def report(scheme: Scheme, found: Audit, damage: Sums, shares: dict[str, int] | None) -> None:
    """Prints the table of one scheme."""
    codes = found.languages
    D = damage.by_language(codes)
    predicted = found.predicted
    own = Sums(predicted.lang, predicted.document, predicted.sums.sum(1), predicted.predicted)
    r_D, r_P = damage.reliability(codes), own.reliability(codes)
    worst = codes[int(np.argmax(D))]
    print(f"\n### {scheme.name}\n")
    print(
        f"Measured {D.min():.3f}–{D.max():.3f} nats/token (worst {worst}), n = {len(codes)} languages; reliability "
        f"of damage {r_D:.2f}, of D̂ {r_P:.2f}: a perfect predictor would reach r = {np.sqrt(max(r_D * r_P, 0)):.2f}.\n"
    )
    print("| before quantizing | Spearman with damage | Pearson | predicted range | damage/D̂ | of the languages |")
    print("|---|---|---|---|---|---|")
    for name, x in predictors(found, shares).items():
        print(row(name, x, D), flush=True)


def report_blocks(scheme: Scheme, found: Audit, measured: Measured) -> None:
    """Prints the damage of quantizing one block alone against its predicted share."""
    codes, predicted = found.languages, found.predicted.by_block
    alone = np.array([measured.damage(scheme, [b]).by_language(codes) for b in range(predicted.shape[1])]).T
    together = measured.damage(scheme).by_language(codes)
    print(f"\n### One block at a time, {scheme.name}\n")
    print("| block | measured alone | predicted | worst language measured | predicted |\n|---|---|---|---|---|")
    for b in range(predicted.shape[1]):
        worst = [codes[int(np.argmax(table[:, b]))] for table in (alone, predicted)]
        print(f"| {b} | {alone[:, b].mean():.4f} | {predicted[:, b].mean():.4f} | {worst[0]} | {worst[1]} |")
    over = spearman(alone.mean(0), predicted.mean(0)).estimate
    each = [spearman(alone[i], predicted[i]).estimate.value for i in range(len(codes))]
    within = [spearman(alone[:, b], predicted[:, b]).estimate.value for b in range(predicted.shape[1])]
    print(
        f"\nSpearman over the blocks: {over} of the means; of each language {min(each):.2f} to {max(each):.2f}. Over "
        f"the languages, block by block: median {np.median(within):.2f}. Sum of single blocks / all together: "
        f"{(alone.sum(1) / together).mean():.2f} (predictions add up by construction)."
    )


def arguments() -> argparse.Namespace:
    """Returns the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded:tiny")
    parser.add_argument("--text", type=Path, help="directory or JSONL file; else the embedded declaration")
    parser.add_argument("--languages", default=",".join(embedded_languages("embedded:tiny") or ()))
    parser.add_argument("--bits", type=int, nargs="+", default=[3, 4])
    parser.add_argument("--group", nargs="+", default=["channel", "64"])
    parser.add_argument("--clip", nargs="+", default=["absmax", "exact"])
    parser.add_argument("--tokens", type=int, default=4096, help="per language, to predict from")
    parser.add_argument("--measured-tokens", type=int, default=12288, help="per language, to measure on")
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--blocks", action="store_true", help="one block at a time too, for the first scheme")
    return parser.parse_args()


def training_shares(model: str, languages: Iterable[str]) -> dict[str, int] | None:
    """Returns the tokens that the embedded model was trained on; None for another model."""
    if not model.startswith("embedded:tiny"):
        return None
    known = json.loads(HISTORY.read_text(encoding="utf-8"))["tokens"]
    counts = {find_language(name).code: count for name, count in known.items()}
    return {code: counts[code] for code in languages} if set(languages) <= set(counts) else None


def main() -> None:
    """Runs the comparison."""
    options = arguments()
    names = options.languages.split(",")
    corpus = udhr(names) if options.text is None else read_corpus(options.text, languages=names)
    checkpoint = Checkpoint(options.model)
    groups = [None if name == "channel" else int(name) for name in options.group]
    schemes = [Scheme(*each) for each in itertools.product(options.bits, groups, options.clip)]
    start = time.perf_counter()
    text = tokenize_corpus(
        checkpoint, corpus, request=TextRequest("evaluation", tokens=options.measured_tokens, sequence=options.sequence)
    )
    measured = Measured(checkpoint, text)
    shares = training_shares(options.model, [language.code for language in corpus.languages])
    print(
        f"{options.model}, {corpus.name}: D̂ from about {options.tokens:,} tokens per language, damage on "
        f"{measured.tokens.sum():,.0f} tokens in {len(text.lang):,} documents of {len(text.languages)} languages; "
        f"windows of {options.sequence}; seed 0; torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
    request = TextRequest("calibration", options.tokens, options.sequence)
    seen = collect_statistics(checkpoint, corpus, request=request, schemes=tuple(schemes))
    moments = weight_moments(checkpoint)
    for scheme in schemes:
        found = build_audit(checkpoint, corpus, measured=seen, moments=moments, scheme=scheme, request=request)
        report(scheme, found, measured.damage(scheme), shares)
        if options.blocks and scheme == schemes[0]:
            report_blocks(scheme, found, measured)
    print(f"\n{time.perf_counter() - start:,.0f} s")


if __name__ == "__main__":
    main()
