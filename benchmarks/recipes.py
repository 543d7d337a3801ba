"""What other quantizers gain from the samples of `fairbits mix`: English samples against an equal mix of languages.

    python benchmarks/recipes.py --environments DIR --out DIR [--model embedded:tiny] [--recipes llm_compressor …]

Every recipe of examples/recipes runs twice, in the environment of its quantizer, which is made in DIR where it is
missing: on English samples, and on as many samples of as many tokens in equal parts of all languages. Both
checkpoints have the same bytes. They are measured against the model before quantization on evaluation text, as
`fairbits evaluate` does; differences are paired by document. Checkpoints and scores stay in --out: what is there is
not made again.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from environments import QUANTIZERS, python_of
from fairbits import Checkpoint
from fairbits.api.evaluate import checkpoint_scores
from fairbits.evaluation.reference import ReferenceModel
from fairbits.evaluation.scores import Scores
from fairbits.models.embedded import LANGUAGES
from fairbits.stats.intervals import Estimate
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.included_texts import help_languages, help_text
from fairbits.text.mix import build_mix

RECIPES = Path(__file__).parents[1] / "examples" / "recipes"
NAMES = {
    "llm_compressor": "llm-compressor, GPTQ",
    "auto_round": "AutoRound",
    "gptqmodel": "GPTQModel, GPTQ",
}
MIXES = ("english", "equal")
ENGLISH = "eng_Latn"


def samples(corpus: Corpus, checkpoint: Checkpoint, options: argparse.Namespace) -> dict[str, Path]:
    """Returns the files of both mixes, which have the same number of samples and tokens."""
    files = {}
    for name, text in (("english", corpus.restrict([ENGLISH])), ("equal", corpus)):
        files[name] = options.out / f"{name}.jsonl"
        mix = build_mix(
            text, checkpoint.tokenizer(), tokens=options.tokens, sequence=options.sequence, seed=options.seed
        )
        mix.save(files[name])
        print(f"{name}: {len(mix.samples)} samples, {sum(item.tokens for item in mix.samples):,} tokens", flush=True)
    return files


def quantized(recipe: str, mix: Path, model: Path, options: argparse.Namespace) -> Path:
    """Returns the checkpoint that a recipe makes of a model, and what it took in seconds.json next to it."""
    out = options.out / f"{recipe}-{mix.stem}"
    if (out / "seconds.json").exists():
        return out
    python, extra = python_of(options.environments / recipe, QUANTIZERS[recipe]), []
    if recipe == "auto_round":
        extra = [str(options.iterations)]
    # nothing is compiled: it takes longer than such a small model on a CPU
    settings = os.environ | {"HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false"}
    settings["GPTQMODEL_CPU_WORKERS"] = str(os.cpu_count())  # by default it wants more than a small machine has
    start = time.perf_counter()
    files = (path.resolve() for path in (RECIPES / f"with_{recipe}.py", model, mix, out))
    command = [python, *files, str(options.group), *extra]
    subprocess.run(command, env=settings, check=True, stdout=sys.stderr, cwd=options.out)  # GPTQModel leaves logs there
    seconds = time.perf_counter() - start
    (out / "seconds.json").write_text(json.dumps(seconds))
    return out


def readable(directory: Path) -> Path:
    """Returns the directory that fairbits reads: the same weights unpacked, where the format is another."""
    plain = directory.with_name(f"{directory.name}-plain")
    return plain if plain.exists() else directory


def weights_bytes(directory: Path) -> int:
    """Returns the bytes of all tensors that a recipe has written."""
    return sum(info.nbytes for info in Checkpoint(directory).tensors.values())


def shown(estimate: Estimate, digits: int = 4) -> str:
    """Returns an estimate with its interval."""
    return f"{estimate.value:.{digits}f} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def row(recipe: str, places: Sequence[Path], scores: Sequence[Scores]) -> str:
    """Returns one line of the table."""
    english, equal = (mix_scores.frame() for mix_scores in scores)
    (before, worst_before), (after, worst_after) = english.worst(), equal.worst()
    change = scores[1].contrast(scores[0])
    sure = change.significant()
    counts = f"{sum(delta.value < 0 for delta in sure.values())}, {sum(delta.value > 0 for delta in sure.values())}"
    cells = [
        NAMES[recipe],
        f"{shown(worst_before)} {before}",
        f"{shown(worst_after)} {after}",
        shown(equal.worst_minus(english)),
        f"{worst_after.value / worst_before.value:.2f}",
        f"{english.by_language()[ENGLISH].value:.4f}, {equal.by_language()[ENGLISH].value:.4f}",
        shown(change.differences[ENGLISH]),
        f"{counts} of {len(change.differences)}",
    ]
    sizes = {weights_bytes(place) for place in places}
    if len(sizes) > 1:
        raise ValueError(f"the checkpoints of {recipe} have {sizes} bytes; they must have the same")
    return f"| {' | '.join(cells)} |"


def arguments() -> argparse.Namespace:
    """Returns the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, required=True, help="directory of the quantizers' environments")
    parser.add_argument("--out", type=Path, required=True, help="directory for samples, checkpoints and scores")
    parser.add_argument("--model", default="embedded:tiny")
    parser.add_argument("--languages", help="separated by commas; else those of embedded:tiny that the help has")
    parser.add_argument("--recipes", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--tokens", type=int, default=6144, help="in total, to calibrate on")
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--measured-tokens", type=int, default=4096, help="per language")
    parser.add_argument("--group", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=200, help="of AutoRound")
    parser.add_argument("--seed", type=int, default=0, help="of the calibration mixes")
    return parser.parse_args()


def main() -> None:
    """Quantizes, measures, and prints the table."""
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    checkpoint = Checkpoint(options.model)
    codes = sorted(set(LANGUAGES["tiny"]) & {language.code for language in help_languages()})
    corpus = help_text(options.languages.split(",") if options.languages else codes)
    mixes = samples(corpus, checkpoint, options)
    request = TextRequest("evaluation", options.measured_tokens, options.sequence)
    rows = []
    with ReferenceModel.on_corpus(checkpoint, corpus, request=request) as answers:
        for recipe in options.recipes:
            places = [quantized(recipe, mixes[mix], checkpoint.directory, options) for mix in MIXES]
            scores = []
            for place in places:
                scores.append(checkpoint_scores(Checkpoint(readable(place)), answers, reference=checkpoint))
                scores[-1].save(place / "scores.json")
            rows.append(row(recipe, places, scores))
            print(rows[-1], flush=True)
    documents = len(scores[0].documents.lang)
    print(
        f"\n{options.model}, 4 bits, groups of {options.group}; {len(corpus.languages)} languages; measured on "
        f"{documents} documents of the help; seed {options.seed}; AutoRound with {options.iterations} iterations\n"
    )
    heads = "| | English samples, worst | equal mix, worst | difference | ratio | English: before, after | difference "
    print(f"{heads}| languages better, worse |\n|---|---|---|---|---|---|---|---|", *rows, sep="\n")


if __name__ == "__main__":
    main()
