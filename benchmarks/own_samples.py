"""Calibration without text: samples of the model itself in every language, next to real text of the same amount.

    python benchmarks/own_samples.py run --model embedded:tiny --setting 3:64 --out FILE
    python benchmarks/own_samples.py tables FILE …

GPTQ with equal weights of the languages is calibrated on about `--tokens` of every language from

    declaration, help    the calibration text of the declaration or of LibreOffice help
    words                samples that begin with the first words of sections of the declaration's calibration text
    name                 samples that begin with the language's own name for itself: no text is needed

and evaluated on evaluation text of the declaration and of the help. The samples are drawn from the full-precision model
at temperature 1, anew for every seed, as many tokens as were read of the declaration. The help is left out if it lacks
one of the languages.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from fairbits.core.units import LEAST_DOCUMENTS
from fairbits.models.device import fixed_seed, resolve_device
from fairbits.stats.frame import LanguageFrame
from fairbits.text.catalog import Language
from fairbits.text.corpus import Corpus
from fairbits.text.included_texts import help_languages, help_text, udhr
from fairbits.text.language_codes import resolve_language
from language_trial import Results, Trial, known_languages
from measured import number, shown
from real_texts import CALIBRATED

KINDS = ("words", "name")
SAMPLE = 128
"""Tokens of a sample, about as many as a section of the declaration has."""
FIRST = 16
"""Characters of a section that a sample begins with, at most; it ends with a whole word where there are spaces."""


def first_words(text: str) -> str:
    """Returns the beginning of a text.

    >>> first_words("All human beings are born free"), first_words("人人生而自由,在尊严和权利上一律平等。")
    ('All human', '人人生而自由,在尊严和权利上一律')
    """
    start = text[: FIRST + 1]
    return start.rsplit(None, 1)[0] if " " in start else start[:FIRST]


def prompts_of(kind: str, language: Language, sections: Sequence[str], number: int) -> list[str]:
    """Returns the beginnings of the samples of a language."""
    if kind == "words":
        return [first_words(sections[i % len(sections)]) for i in range(number)]
    return [language.autonym] * number


@torch.no_grad()
def draw(trial: Trial, prompts: Sequence[str], *, seed: int, top_p: float) -> list[str]:
    """Returns a text of SAMPLE tokens for every prompt, which it begins with."""
    checkpoint = trial.bench.checkpoint
    tokenizer = checkpoint.tokenizer()
    model = checkpoint.load(device=trial.device)
    start = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    ids = [start + tokenizer(text, add_special_tokens=False)["input_ids"] for text in prompts]
    longest = max(map(len, ids))
    fill = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    rows = torch.tensor([[fill] * (longest - len(tokens)) + tokens for tokens in ids], device=trial.device)
    mask = torch.tensor([[0] * (longest - len(tokens)) + [1] * len(tokens) for tokens in ids], device=trial.device)
    sampling = {"do_sample": True, "temperature": 1.0, "top_p": top_p, "top_k": 0}
    with fixed_seed(seed, trial.device):
        generated = model.generate(
            rows,
            attention_mask=mask,
            max_new_tokens=SAMPLE,
            min_new_tokens=SAMPLE,
            pad_token_id=fill,
            **sampling,
        )
    return tokenizer.batch_decode(generated, skip_special_tokens=True)


def sampled(trial: Trial, kind: str, *, tokens: int, seed: int, top_p: float) -> Corpus:
    """Returns a calibration text of about `tokens`, equally many samples of every language."""
    number = max(round(tokens / SAMPLE / len(trial.corpus.languages)), LEAST_DOCUMENTS)
    asked = {
        language.code: prompts_of(kind, language, trial.corpus.calibration[language.code], number)
        for language in trial.corpus.languages
    }
    texts = draw(trial, [prompt for prompts in asked.values() for prompt in prompts], seed=seed, top_p=top_p)
    parts: Mapping[str, list[str]] = {code: texts[i * number : (i + 1) * number] for i, code in enumerate(asked)}
    documents = {code: [text for text in samples if text.strip()] for code, samples in parts.items()}
    return Corpus(f"samples, {kind}", documents, {})


def run(options: argparse.Namespace) -> None:
    """Measures what is not there yet."""
    start = time.perf_counter()
    options.device = resolve_device(options.device)
    trained_on = {} if options.languages else known_languages(options.model)
    names = options.languages.split(",") if options.languages else list(trained_on)
    languages = [resolve_language(name).language.code for name in names]
    with_help = set(languages) <= {language.code for language in help_languages()}
    evaluation = {"declaration": udhr(languages)} | ({"help": help_text(languages)} if with_help else {})
    trial = Trial(
        options.model,
        options.setting,
        evaluation,
        tokens=options.evaluation_tokens,
        device=options.device,
    )
    results = Results.load(options.out) if options.out.exists() else Results(options.model, options.setting, trained_on)
    print(f"{options.model}: {len(languages)} languages, {time.perf_counter() - start:.0f} s", flush=True)
    for seed in options.seeds:
        for kind in (*evaluation, *options.kinds):
            label = f"{kind} {seed}"
            if label in results.sets or time.perf_counter() - start > options.budget:
                continue
            if kind in evaluation:
                trial.run(results, label, evaluation[kind], tokens=options.tokens, seed=seed)
            else:
                tokens = results.sets[f"declaration {seed}"]["calibration_tokens"]
                corpus = sampled(trial, kind, tokens=tokens, seed=seed, top_p=options.top_p)
                trial.run(results, label, corpus, seed=seed)
                results.facts[label] = {code: texts[0][:200] for code, texts in corpus.calibration.items()}
            results.save(options.out)
            entry = results.sets[label]
            print(f"{label}: {entry['calibration_tokens']:,} tokens, {entry['seconds']:.0f} s", flush=True)
    trial.close()


def table(results: Results) -> str:
    """Returns a table for every text that was evaluated, whose own calibration text the others are compared with."""
    return "\n".join(line for text in dict.fromkeys(results.text) for line in text_lines(results, text))


def text_lines(results: Results, text: str) -> list[str]:
    """Returns one table: a row for every calibration, and its ratio to the text of the same kind."""
    kinds = list(dict.fromkeys(name.rsplit(" ", 1)[0] for name in results.sets))
    frames = {kind: frame(results, text, kind) for kind in kinds}
    base = frames[text]
    seeds = {kind: sum(name.rsplit(" ", 1)[0] == kind for name in results.sets) for kind in kinds}
    rows = [
        f"**{results.model}, W{results.setting}, evaluated on the {text}, {len(base.languages)} languages, "
        f"{len(base.lang)} documents**",
        "",
        "| calibrated on | seeds | tokens | KL worst | ratio | KL mean | ratio | difference | lower | higher |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, mine in frames.items():
        tokens = np.mean([entry["calibration_tokens"] for name, entry in results.sets.items() if name.startswith(kind)])
        worst, before = mine.worst(), base.worst()
        difference = mine.contrast(base)
        mean = LanguageFrame(
            mine.lang, mine.document, values=mine.values - base.values, weights=mine.weights, unit=mine.unit
        ).mean()
        sure = [estimate.value for estimate in difference.significant().values()]
        rows.append(
            f"| {kind} | {seeds[kind]} | {tokens:,.0f} | {shown(worst[1])} {worst[0][:3]} | "
            f"{number(worst[1].value / before[1].value, 2)} | {number(mine.mean().value)} | "
            f"{number(mine.mean().value / base.mean().value, 2)} | {shown(mean)} | "
            f"{sum(value < 0 for value in sure)} | {sum(value > 0 for value in sure)} |"
        )
    return [*rows, ""]


def frame(results: Results, text: str, kind: str) -> LanguageFrame:
    """Returns the KL of every document, the mean over seeds, in nats per token."""
    rows = np.array(results.text) == text
    runs = [np.array(entry["kl"]) for name, entry in results.sets.items() if name.rsplit(" ", 1)[0] == kind]
    return LanguageFrame(
        np.array(results.lang)[rows],
        np.array(results.document)[rows],
        values=np.mean(runs, axis=0)[rows],
        weights=np.array(results.tokens)[rows],
        unit="nats_per_token",
    )


def main(arguments: Sequence[str]) -> None:
    """Measures, or prints tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(dest="stage", required=True)
    running, printing = stages.add_parser("run"), stages.add_parser("tables")
    running.add_argument("--model", default="embedded:tiny")
    running.add_argument("--setting", default="3:64", help="bits and group")
    running.add_argument(
        "--languages", default=",".join(CALIBRATED), help="such as eng,fra; empty: those that the model knows"
    )
    running.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    running.add_argument("--tokens", type=int, default=1024, help="of each language, for calibration")
    running.add_argument("--evaluation-tokens", type=int, default=700, help="of each language and text")
    running.add_argument("--top-p", type=float, default=1.0)
    running.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    running.add_argument("--device", default="auto")
    running.add_argument("--budget", type=float, default=float("inf"), help="seconds after which nothing is begun")
    running.add_argument("--out", type=Path, required=True)
    printing.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    if options.stage == "run":
        run(options)
    else:
        for file in options.files:
            print(table(Results.load(file)))


if __name__ == "__main__":
    main(sys.argv[1:])
