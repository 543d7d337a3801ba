"""What the type of the KV cache costs every language, by the length of the context.

    python benchmarks/kv_cache.py local MODEL …   rounds keys and values here: a model against itself
    python benchmarks/kv_cache.py serve MODEL …   starts vLLM with every type: a server against its model
    python benchmarks/kv_cache.py table           prints what was measured, and writes kv_cache.csv

The documents of a language are joined into full windows, so `--text` needs about 80,000 tokens of every language for
the longest context. Scores go to `--out` at once, and what is there is not measured again. `--vllm` is the command that
starts a server, to which the model and options are added.
"""

import argparse
import csv
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from fairbits import Checkpoint, Scores, evaluate
from fairbits.api.evaluate import checkpoint_scores
from fairbits.core.table import Table
from fairbits.evaluation.meaning import percent
from fairbits.evaluation.measurement import BOUND
from fairbits.evaluation.reference import ReferenceModel
from fairbits.evaluation.saved_reference import save_reference
from fairbits.evaluation.servers.address import is_saved_reference
from fairbits.forward.tokenize import open_corpus_for
from fairbits.models.cache_types import CACHE_TYPES
from fairbits.models.cached_checkpoint import with_kv_cache
from fairbits.models.device import resolve_device
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits.text.corpus import TextRequest
from fairbits.text.language_codes import short_name
from served import PLAIN, server

SERVED_TYPES = (*("fp8_e4m3", "fp8_e5m2", "fp8_per_token_head", "int8_per_token_head", "int4_per_token_head", "nvfp4"),)
"""Types that vLLM has."""
TYPES = (*SERVED_TYPES, "q4_0")
PLAIN_CACHE, SERVED = (
    "auto",
    "served-",
)  # what vLLM calls a cache that is not quantized; what files of servers begin with
CONTEXTS = {512: 16_384, 4096: 32_768, 16_384: 81_920}
"""Tokens of every language by the tokens of a window."""
MEAN, WORST, ENGLISH = "mean", "worst", "eng_Latn"
MEASURES = {"changed": "changed tokens of 100", "kl": "KL in bits per byte, times 1,000"}
SWITCHES = f"{PLAIN} --max-num-batched-tokens 2048"  # a server has the logits of so many tokens in memory
Row = dict[str, str]


class Place:
    """Where the scores of one model are."""

    def __init__(self, out: Path, model: str) -> None:
        self._out, self.name = out, Path(model).name.replace(":", "-")

    def scores(self, sequence: int, kind: str) -> Path:
        """Returns the scores of one type at one context."""
        return self._out / f"{self.name}.{sequence}.{kind}.json"

    def missing(self, sequence: int, kinds: Sequence[str]) -> list[str]:
        """Returns the types without scores at one context."""
        return [kind for kind in kinds if not self.scores(sequence, kind).exists()]


def local(options: argparse.Namespace) -> None:
    """Evaluates a model against itself with every type; the reference is computed once per context."""
    for model in options.models:
        place, checkpoint = Place(options.out, model), Checkpoint(model)
        for sequence in options.contexts:
            if types := place.missing(sequence, options.types):
                with (
                    attempt(f"{place.name}, {sequence}"),
                    reference_model(checkpoint, sequence, options) as answers,
                ):
                    for kind in types:
                        with attempt(f"{place.name}, {sequence}, {kind}"):
                            cached = with_kv_cache(checkpoint, kind)
                            scores = checkpoint_scores(cached, answers, reference=checkpoint, device=options.device)
                            scores.save(place.scores(sequence, kind))


def reference_model(checkpoint: Checkpoint, sequence: int, options: argparse.Namespace) -> ReferenceModel:
    """Returns the predictions of a model at one context."""
    start, request = time.perf_counter(), TextRequest("evaluation", options.contexts[sequence], sequence, joined=True)
    corpus = open_corpus_for(checkpoint, options.text, options.languages)
    plain = checkpoint.plain or checkpoint
    answers = ReferenceModel.on_corpus(plain, corpus, request=request, device=options.device)
    report(f"{checkpoint.target}, {sequence}, reference: {time.perf_counter() - start:.0f} s")
    return answers


def serve(options: argparse.Namespace) -> None:
    """Evaluates vLLM with every type of its cache; the reference is computed once per context."""
    kinds = {f"{SERVED}{kind}": kind for kind in (PLAIN_CACHE, *options.types) if kind in (PLAIN_CACHE, *SERVED_TYPES)}
    for model in options.models:
        place, checkpoint = Place(options.out, model), Checkpoint(model)
        references = {sequence: options.references / f"{place.name}.{sequence}" for sequence in options.contexts}
        for sequence, saved in references.items():  # before a server takes the memory of the GPU
            if place.missing(sequence, [*kinds]) and not is_saved_reference(saved):
                with reference_model(checkpoint, sequence, options) as answers:
                    save_reference(answers, saved)
        torch.cuda.empty_cache()
        longest = min(max(options.contexts) + 1, checkpoint.stated_positions)  # a server writes one token
        for name, kind in kinds.items():
            left = [sequence for sequence in references if place.missing(sequence, [name])]
            if left:
                with (
                    attempt(f"{place.name}, {name}"),
                    server(options, model, f"{SWITCHES} --kv-cache-dtype {kind}", options.port, longest) as url,
                ):
                    for sequence in left:
                        with attempt(f"{place.name}, {sequence}, {name}"):
                            scores = evaluate(url, reference=references[sequence], device=options.device)
                            scores.save(place.scores(sequence, name))
        for sequence, saved in references.items():
            if saved.exists() and not place.missing(sequence, [*kinds]):
                shutil.rmtree(saved)


@contextmanager
def attempt(name: str) -> Iterator[None]:
    """Prints how long something took; what fails is reported and does not end the others."""
    start = time.perf_counter()
    try:
        yield
    except (Exception, SystemExit):
        traceback.print_exc()
        report(f"{name}: failed after {time.perf_counter() - start:.0f} s")
    else:
        report(f"{name}: {time.perf_counter() - start:.0f} s")


def report(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)


def rows_of(file: Path) -> Iterator[Row]:
    """Yields the rows of one file of scores: every language, their mean, and the worst."""
    model, sequence, kind = file.stem.rsplit(".", 2)
    scores = Scores.load(file)
    changed, kl = estimates(scores.changed_frame, 100), estimates(scores.frame(), 1000)
    documents = scores.documents
    tokens = {code: documents.tokens[documents.lang == code].sum() for code in scores.languages}
    for language in changed:
        yield {
            "model": model,
            "context": sequence,
            "type": kind,
            "language": language,
            "tokens": f"{tokens.get(language, sum(tokens.values())):.0f}",
            **columns("changed", changed[language]),
            **columns("kl", kl[language]),
            "kl_kind": scores.kl_kind,
        }


def estimates(frame: LanguageFrame, factor: float) -> dict[str, tuple[str, Estimate]]:
    """Returns estimates by language, of their mean and of the worst, each with the code of its language."""
    languages = {code: (code, estimate) for code, estimate in frame.by_language().items()}
    named = {**languages, MEAN: ("", frame.mean()), WORST: frame.worst()}
    return {name: (code, estimate.transform(lambda x: factor * x)) for name, (code, estimate) in named.items()}


def columns(name: str, of: tuple[str, Estimate]) -> Row:
    """Returns a language, an estimate and its limits; these are empty if it has no interval."""
    code, estimate = of
    limits = (estimate.low, estimate.high) if estimate.bounded else ("", "")
    low, high = (limit if limit == "" else f"{limit:.6g}" for limit in limits)
    return {f"{name}_code": code, name: f"{estimate.value:.6g}", f"{name}_low": low, f"{name}_high": high}


def tables(rows: Sequence[Row]) -> str:
    """Returns two tables for every model and context, and one for every model that has what changes at all contexts."""
    parts = []
    for model in dict.fromkeys(row["model"] for row in rows):
        here = [row for row in rows if row["model"] == model]
        parts.append(summary(model, here))
        for sequence in sorted({int(row["context"]) for row in here}):
            for served in (False, True):
                chosen = [
                    row for row in here if int(row["context"]) == sequence and row["type"].startswith(SERVED) == served
                ]
                parts += [by_language(f"{model}, {sequence:,} tokens", name, chosen) for name in MEASURES if chosen]
    return "\n\n".join(parts)


def by_language(title: str, name: str, rows: Sequence[Row]) -> str:
    """Returns a table with a row for every language and a column for every type."""
    by_place = {(row["language"], row["type"]): row for row in rows}
    types = in_order({row["type"] for row in rows})
    bound = " (lower bounds)" if name == "kl" and any(row["kl_kind"] == BOUND for row in rows) else ""
    languages = [*dict.fromkeys(row["language"] for row in rows)]
    ordered = [*sorted((code for code in languages if code not in (MEAN, WORST)), key=short_name), MEAN, WORST]
    lines = [
        (
            language if language in (MEAN, WORST) else short_name(language),
            *(cell(by_place.get((language, kind)), name) for kind in types),
        )
        for language in ordered
    ]
    return Table(f"{title}: {MEASURES[name]}{bound}", ("language", *types), tuple(lines)).markdown()


def summary(model: str, rows: Sequence[Row]) -> str:
    """Returns a table with a row for every type, and what changes in the worst language, in English and in the mean."""
    by_place = {(int(row["context"]), row["type"], row["language"]): row for row in rows}
    contexts = sorted({context for context, *_ in by_place})
    shown = (WORST, ENGLISH, MEAN)
    lines = [
        (kind, *(cell(by_place.get((context, kind, name)), "changed") for context in contexts for name in shown))
        for kind in in_order({row["type"] for row in rows})
    ]
    headers = [f"{context:,}: {name}" for context in contexts for name in ("worst", "English", "mean")]
    return Table(f"{model}: {MEASURES['changed']}", ("type", *headers), tuple(lines)).markdown()


def in_order(types: set[str]) -> list[str]:
    """Returns types in the order of TYPES, those of servers last."""
    order = [*TYPES, *(f"{SERVED}{kind}" for kind in (PLAIN_CACHE, *SERVED_TYPES))]
    return sorted(types, key=lambda kind: (order.index(kind) if kind in order else len(order), kind))


def cell(row: Row | None, name: str) -> str:
    """Returns a number with its interval, and the worst language with its name."""
    if row is None:
        return "–"
    show: Callable[[float], str] = percent if name == "changed" else digits
    value, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
    limits = f"{show(float(low))}–{show(float(high))}" if low else "–"
    language = f" {short_name(row[f'{name}_code'])}" if row["language"] == WORST else ""
    return f"{show(float(value))}{language} ({limits})"


def digits(value: float) -> str:
    """Returns a number with up to three digits that count."""
    return str(np.format_float_positional(value, precision=3, fractional=False, trim="-"))


def table(options: argparse.Namespace) -> None:
    """Prints what was measured, and writes it as CSV."""
    files = sorted(options.out.glob("*.*.*.json"))
    rows = [row for file in files for row in rows_of(file)]
    if not rows:
        raise SystemExit(f"{options.out} has no scores; measure some first")
    with (options.out / "kv_cache.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(tables(rows))
    if lines := [line for file in files if SERVED in file.stem for line in added(file)]:
        headers = ("model", "context", "type", "in vLLM", "here", "in vLLM, English", "here, English")
        title = "added loss over a cache in 16 bits, nats per token, mean over languages"
        print("\n" + Table(title, headers, tuple(lines), left=(0, 2)).markdown())


def added(file: Path) -> Iterator[tuple[str, ...]]:
    """Yields what a type adds to the loss in vLLM, and here."""
    model, sequence, name = file.stem.rsplit(".", 2)
    plain, here = (
        file.with_name(f"{model}.{sequence}.{kind}.json") for kind in (SERVED + PLAIN_CACHE, name[len(SERVED) :])
    )
    if name != SERVED + PLAIN_CACHE and plain.exists() and here.exists():
        losses = [losses_of(path) for path in (file, plain, here)]
        served = {code: losses[0][code] - losses[1][code] for code in losses[0]}
        means = [np.mean([*values.values()]) for values in (served, losses[2])]
        numbers = (*means, served[ENGLISH], losses[2][ENGLISH])
        yield model, sequence, name[len(SERVED) :], *(f"{number:.4f}" for number in numbers)


def losses_of(file: Path) -> dict[str, float]:
    """Returns the added loss of every language in nats per token."""
    frame = Scores.load(file).frame("nats_per_token", measure="loss")
    return {code: estimate.value for code, estimate in frame.by_language().items()}


def context(text: str) -> tuple[int, int]:
    """Returns the tokens of a window and of every language, from one of CONTEXTS or from WINDOW:TOKENS."""
    sequence, colon, tokens = text.partition(":")
    return int(sequence), int(tokens) if colon else CONTEXTS[int(sequence)]


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("local", "serve", "table"))
    parser.add_argument("models", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path("build/kv-cache"))
    parser.add_argument("--text", default="help")
    parser.add_argument("--languages", nargs="+", default=None)
    parser.add_argument("--types", nargs="+", choices=[*CACHE_TYPES], default=TYPES)
    parser.add_argument("--contexts", nargs="+", type=context, default=[*CONTEXTS.items()], help="512, or 64:1024")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--references", type=Path, default=None, help="where serve keeps predictions until the end")
    parser.add_argument("--port", type=int, default=8700)
    parser.add_argument("--vllm", default="python3 -m vllm.entrypoints.openai.api_server")
    options = parser.parse_args()
    options.device, options.contexts = resolve_device(options.device), dict(options.contexts)
    options.references = options.references or options.out / "references"
    options.out.mkdir(parents=True, exist_ok=True)
    options.references.mkdir(parents=True, exist_ok=True)
    {"local": local, "serve": serve, "table": table}[options.stage](options)


if __name__ == "__main__":
    main()
