"""What it gains to choose calibration text by the experts that it reaches, on a mixture of experts.

    python benchmarks/starvation.py run MODEL TEXT --out FILE
    python benchmarks/starvation.py tables FILE …

MODEL is a mixture of experts; `training/README.md` says how to train a small one. TEXT is a directory with a text of
each language. GPTQ is calibrated on about `--tokens` of all languages together:

    plain      samples in the order of the seed, equally many of every language (`fairbits mix`)
    chosen     those of four times as many that reach the experts with the least text (`fairbits mix --experts 4`)
    English    as many tokens of English alone

and evaluated on the evaluation split of the declaration and of TEXT. The map of the experts, the number of positions
of every language that reach each, is printed for the plain mix of the first seed.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import samples_tables
from fairbits import Checkpoint
from fairbits.auditing.expert_use import ExpertUse, even_experts
from fairbits.forward.expert_pass import count_by_document
from fairbits.forward.experts import BlockExperts
from fairbits.forward.tokenize import text_of_samples
from fairbits.text.corpus import Corpus
from fairbits.text.included_texts import udhr
from fairbits.text.mix import Mix, build_mix
from fairbits.text.reading import open_corpus
from language_trial import Results, Trial

TIMES = 4
KINDS = ("plain", "chosen", "English")


def mix_of(kind: str, checkpoint: Checkpoint, corpus: Corpus, options: argparse.Namespace, seed: int) -> Mix:
    """Returns the calibration samples of this kind."""
    given = {"sequence": options.sequence, "seed": seed}
    tokenizer = checkpoint.tokenizer()
    if kind == "plain":
        return build_mix(corpus, tokenizer, tokens=options.tokens, **given)
    if kind == "chosen":
        return even_experts(
            checkpoint, build_mix(corpus, tokenizer, tokens=TIMES * options.tokens, **given), one_in=TIMES
        )
    return build_mix(corpus, tokenizer, languages=["eng"], tokens=options.tokens, **given)


def use_of(checkpoint: Checkpoint, mix: Mix) -> ExpertUse:
    """Returns how many positions of every language reach each expert."""
    text = text_of_samples(checkpoint, mix.samples)
    blocks = tuple(
        BlockExperts(
            each.block,
            each.per_position,
            np.stack([each.counts[text.lang == code].sum(0) for code in text.languages]),
        )
        for each in count_by_document(checkpoint, text)
    )
    return ExpertUse(text.languages, blocks)


def corpus_of(mix: Mix) -> Corpus:
    """Returns the samples of a mix as calibration text."""
    return Corpus(
        "samples", {code: [each.text for each in mix.samples if each.lang == code] for code in mix.shares}, {}
    )


def run(options: argparse.Namespace) -> None:
    """Measures what is not there yet."""
    start = time.perf_counter()
    checkpoint, corpus = Checkpoint(options.model), open_corpus(str(options.text), None)
    codes = [language.code for language in corpus.languages]
    texts = {"declaration": udhr(codes), "own text": corpus}
    trial = Trial(str(options.model), options.setting, texts, tokens=options.evaluation_tokens, device="cpu")
    results = Results.load(options.out) if options.out.exists() else Results("MoE", options.setting, {})
    for seed in options.seeds:
        for kind in KINDS:
            label = f"{kind} {seed}"
            if label in results.sets:
                continue
            mix = mix_of(kind, checkpoint, corpus, options, seed)
            use = use_of(checkpoint, mix)
            if kind == "plain" and seed == options.seeds[0]:
                print(use.to_pandas().pivot_table("positions", ["block", "language"], "expert").to_string())
            trial.run(results, label, corpus_of(mix), seed=seed)
            results.facts[label] = {
                "starved": int(use.too_little_text().sum()),
                "pairs": use.pairs,
                "notes": list(mix.notes),
            }
            results.save(options.out)
            seconds = time.perf_counter() - start
            print(
                f"{label}: {use.too_little_text().sum()} of {use.pairs} pairs with too little text, {seconds:.0f} s",
                flush=True,
            )
    trial.close()


def main(arguments: Sequence[str]) -> None:
    """Measures, or prints tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(dest="stage", required=True)
    running, printing = stages.add_parser("run"), stages.add_parser("tables")
    running.add_argument("model", type=Path)
    running.add_argument("text", type=Path)
    running.add_argument("--setting", default="3:64", help="bits and group")
    running.add_argument("--tokens", type=int, default=20480, help="of all languages together, for calibration")
    running.add_argument("--sequence", type=int, default=64, help="tokens of a sample")
    running.add_argument("--evaluation-tokens", type=int, default=1000, help="of each language and text")
    running.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    running.add_argument("--out", type=Path, required=True)
    printing.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    if options.stage == "run":
        run(options)
        return
    for file in options.files:
        results = Results.load(file)
        for label, facts in results.facts.items():
            print(f"{label}: {facts['starved']} of {facts['pairs']} pairs of expert and language get too little text")
        print(samples_tables.table(results, "plain"))


if __name__ == "__main__":
    main(sys.argv[1:])
