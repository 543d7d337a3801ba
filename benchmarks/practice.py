"""Damage by language of published practice: the formats in which quantized models are published, on real models.

    python benchmarks/practice.py write MODEL [VARIANT …]     writes checkpoints
    python benchmarks/practice.py measure MODEL [VARIANT …]   writes what is not there, and evaluates it
    python benchmarks/practice.py table                       collects the scores, writes the tables of docs
    python benchmarks/practice.py speed                       FP8 against bfloat16, block by block

The models are those of `published.py`, in bfloat16. Every variant is evaluated on the unseen documents of `help`, in 16
languages, and its scores are in `--out` at once; a variant that is there is not measured again. `practice_writers.py`
has the variants. AWQ needs `--awq-python`, a python with llm-compressor.
"""

import argparse
import csv
import json
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from fairbits.core.files import write_files
from fairbits.core.table import Table
from fairbits.evaluation.meaning import percent
from fairbits.evaluation.scores import Scores
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits.text.language_codes import short_name

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build/practice"
CSV, OF_ANSWERS = ROOT / "docs/assets/practice.csv", ROOT / "docs/assets/answers-variants.csv"
PAGE, LEADERBOARD = ROOT / "docs/practice.md", ROOT / "docs/leaderboard.md"
BEGIN, END = "<!-- written by benchmarks/practice.py table -->", "<!-- end of the tables -->"
MODELS = {
    "gemma-3-270m": "Gemma-3-270M",
    "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B-Instruct",
    "qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B-Instruct",
}
OTHER_MODELS = {"embedded-tiny": "embedded:tiny, the model of the demo"}
TITLES = {
    "W8A8": "W8A8, plain rounding",
    "FP8_DYNAMIC": "FP8_DYNAMIC",
    "FP8_BLOCK": "FP8_BLOCK",
    "Q8_0": "GGUF Q8_0",
    "NVFP4": "NVFP4 (W4A4)",
    "NVFP4A16": "NVFP4A16",
    "MXFP4": "MXFP4 (W4A4)",
    "MXFP4A16": "MXFP4A16",
    "W4A16": "W4A16, plain rounding",
    "AWQ": "AWQ, W4A16_ASYM, English",
    "GPTQ-English": "GPTQ, W4A16, English",
    "GPTQ-mix": "GPTQ, W4A16, equal mix",
    "nf4": "bitsandbytes nf4",
    "Q4_0": "GGUF Q4_0",
}
"""The variants, in the order of the table."""
POLICIES = {
    "rtn": "plain rounding",
    "gptq": "GPTQ, equal mix",
    "gptq:mix=english": "GPTQ, English",
    "fair": "learned rounding (fair)",
}
OTHERS = ("worst", "eng_Latn", "mean")
Row = dict[str, str]


class Place:
    """Where the files of one model are."""

    def __init__(self, out: Path, model: str) -> None:
        self.directory = out / model.replace(":", "-")
        self.reference = self.directory / "reference"

    def checkpoint(self, variant: str) -> Path:
        """Returns the checkpoint of a variant."""
        return self.directory / "checkpoints" / variant

    def facts(self, variant: str) -> Path:
        """Returns the file with the size and the seconds of a checkpoint."""
        return self.directory / "checkpoints" / f"{variant}.json"

    def scores(self, variant: str) -> Path:
        """Returns the scores of a variant."""
        return self.directory / "scores" / f"{variant}.json"


def write(options: argparse.Namespace) -> None:
    """Writes the checkpoints that are not there."""
    from practice_writers import Writer, write_reference

    place = Place(options.out, options.model)
    if not place.reference.exists():
        write_reference(options.model, place.reference)
    writer = Writer(place.reference, options.device, options.awq_python)
    for variant in options.variants:
        with _reported(options.model, variant):
            _write(writer, place, variant)


def _write(writer: object, place: Place, variant: str) -> None:
    """Writes one checkpoint, and its size and seconds beside it, if they are not there."""
    final = place.checkpoint(variant)
    if place.facts(variant).exists():
        return
    draft = final.with_name(f"{variant}.draft")
    for old in (draft, final):
        shutil.rmtree(old, ignore_errors=True)
    draft.parent.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    size = writer.write(variant, draft)  # type: ignore[attr-defined]
    facts = {"seconds": time.perf_counter() - start, "bytes": size}
    draft.rename(final)
    place.facts(variant).write_text(json.dumps(facts), encoding="utf-8")


def measure(options: argparse.Namespace) -> None:
    """Evaluates what is not evaluated yet; the reference is evaluated once."""
    from fairbits import Checkpoint
    from fairbits.evaluation.reference import ReferenceModel
    from fairbits.text.corpus import TextRequest
    from practice_writers import SEQUENCE, TEXT, TEXTS, Writer, write_reference

    place = Place(options.out, options.model)
    left = [variant for variant in options.variants if not place.scores(variant).exists()]
    if not left:
        return
    if not place.reference.exists():
        write_reference(options.model, place.reference)
    place.scores("").parent.mkdir(parents=True, exist_ok=True)
    before, writer = Checkpoint(place.reference), Writer(place.reference, options.device, options.awq_python)
    request = TextRequest("evaluation", options.tokens, SEQUENCE)
    start = time.perf_counter()
    with ReferenceModel.on_corpus(before, TEXTS.evaluation[TEXT], request=request, device=options.device) as answers:
        report(f"{options.model}: reference in {time.perf_counter() - start:.0f} s")
        for variant in left:
            with _reported(options.model, variant):
                _write(writer, place, variant)
                _evaluate(place, variant, before, answers, options)


def _evaluate(place: Place, variant: str, before: object, answers: object, options: argparse.Namespace) -> None:
    """Writes the scores of one checkpoint and, unless it is kept, removes its weights."""
    from dataclasses import replace

    from fairbits import Checkpoint
    from fairbits.api.evaluate import checkpoint_scores

    start, file = time.perf_counter(), place.facts(variant)
    facts = json.loads(file.read_text(encoding="utf-8"))
    after = Checkpoint(place.checkpoint(variant))
    scores = checkpoint_scores(after, answers, reference=before, device=options.device)  # type: ignore[arg-type]
    size = facts["bytes"] or sum(path.stat().st_size for path in after.directory.glob("*.safetensors"))
    facts |= {"bytes": size, "evaluation_seconds": time.perf_counter() - start, "environment": _environment(options)}
    scores = replace(scores, quantized=replace(scores.quantized, target=variant, size_bytes=size))
    file.write_text(json.dumps(facts), encoding="utf-8")
    shutil.copy(file, place.scores(f"{variant}.facts"))
    scores.save(place.scores(variant))
    report(f"  changed, of 100: {_without_intervals(scores)}; {json.dumps(facts)}")
    if not options.keep:
        shutil.rmtree(place.checkpoint(variant))
        file.unlink()


def _without_intervals(scores: Scores) -> str:
    """Returns what changes most and what English shows, at once: intervals take seconds."""
    documents = scores.documents
    sums = {
        code: float(documents.flips[documents.lang == code].sum() / documents.tokens[documents.lang == code].sum())
        for code in scores.languages
    }
    worst = max(sums, key=sums.__getitem__)
    return ", ".join(f"{code} {100 * sums[code]:.1f}" for code in (worst, "eng_Latn") if code in sums)


def _environment(options: argparse.Namespace) -> str:
    from real_items import environment

    return environment(options.device)


class _reported:  # noqa: N801
    """Prints what is done and how long it took; a variant that fails is reported and does not end the others."""

    def __init__(self, model: str, variant: str) -> None:
        self.name, self.start = f"{model}, {variant}", time.perf_counter()

    def __enter__(self) -> None:
        report(f"{self.name} …")

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> bool:
        if isinstance(problem, Exception):
            traceback.print_exception(problem)
        report(f"{self.name}: {'failed' if problem else 'done'} after {time.perf_counter() - self.start:.1f} s")
        return isinstance(problem, Exception)


def report(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)


def collect(out: Path) -> list[Row]:
    """Returns the rows of all scores: the worst language, corrected for its choice, the mean, and every language."""
    return [
        row
        for model in MODELS
        for variant in TITLES
        if (file := Place(out, model).scores(variant)).exists()
        for row in rows_of(model, variant, Scores.load(file), json.loads(file.with_suffix(".facts.json").read_bytes()))
    ]


def rows_of(model: str, variant: str, scores: Scores, facts: Mapping[str, float]) -> Iterator[Row]:
    """Yields the rows of the scores of a checkpoint, whose size and seconds are `facts`."""
    changed, kl = _estimates(scores.changed_frame), _estimates(scores.frame())
    for language, (code, share) in changed.items():
        kl_code, divergence = kl[language]
        yield {
            "model": model,
            "variant": variant,
            "language": language,
            "changed_code": code,
            **{f"changed{end}": f"{100 * value:.4g}" for end, value in _ends(share)},
            "kl_code": kl_code,
            **{f"kl_bits_per_byte{end}": f"{value:.4g}" for end, value in _ends(divergence)},
            "bytes": str(facts["bytes"]),
            "seconds": f"{facts['seconds']:.1f}",
            "evaluation_seconds": f"{facts['evaluation_seconds']:.1f}",
        }


def _estimates(frame: LanguageFrame) -> Mapping[str, tuple[str, Estimate]]:
    languages = {code: (code, estimate) for code, estimate in frame.by_language().items()}
    return {"worst": frame.worst(), "mean": ("", frame.mean()), **languages}


def _ends(estimate: Estimate) -> list[tuple[str, float]]:
    return [("", estimate.value), ("_low", estimate.low), ("_high", estimate.high)]


def summary(rows: Sequence[Row]) -> str:
    """Returns one table of all models: what changes in the worst language and in English, and the ratio of their KL."""
    by_place = {(row["model"], row["variant"], row["language"]): row for row in rows}
    lines = []
    for variant, title in TITLES.items():
        cells = []
        for model in MODELS:
            worst, english = (by_place.get((model, variant, name)) for name in ("worst", "eng_Latn"))
            if worst is None or english is None:
                cells += ["–", "–", "–"]
                continue
            ratio = float(worst["kl_bits_per_byte"]) / float(english["kl_bits_per_byte"])
            share = percent(float(worst["changed"]))
            cells += [
                f"{share} {short_name(worst['changed_code'])}",
                percent(float(english["changed"])),
                f"{ratio:.1f}",
            ]
        lines.append((title, *cells))
    headers = [(f"{short}: worst", "English", "KL ratio") for short in ("Gemma 270M", "Qwen 0.5B", "Qwen 1.5B")]
    return Table(
        "", ("variant", *(header for part in headers for header in part)), tuple(lines), left=(0, 1, 4, 7)
    ).markdown()


def leaderboard(rows: Sequence[Row]) -> str:
    """Returns one table for every model, smallest first: what changes most, what English shows, and the mean."""
    headers = (
        *("variant", "changed most, of 100 (95 % CI)", "English", "mean"),
        *("KL, worst, bits per byte (95 % CI)", "English", "mean", "MB", "seconds to write"),
    )
    parts = []
    for model, title in (MODELS | OTHER_MODELS).items():
        by_variant: dict[str, dict[str, Row]] = {}
        for row in rows:
            if row["model"] == model:
                by_variant.setdefault(row["variant"], {}).setdefault(row["language"], row)
        smallest_first = sorted(by_variant.items(), key=lambda pair: int(pair[1]["worst"]["bytes"]))
        lines = tuple(_line(variant, found) for variant, found in smallest_first)
        if lines:
            parts.append(Table(title, headers, lines, left=(0, 1, 4)).markdown())
    return "\n\n".join(parts)


def title_of(variant: str) -> str:
    """Returns the title of a format, or of a policy and its bits.

    >>> title_of("gptq:mix=english-3"), title_of("fair-4")
    ('GPTQ, English, 3 bits', 'learned rounding (fair), 4 bits')
    """
    policy, _, bits = variant.rpartition("-")
    return TITLES.get(variant) or f"{POLICIES[policy]}, {bits} bits"


def _line(variant: str, rows: Mapping[str, Row]) -> tuple[str, ...]:
    first, *rest = (rows[name] for name in OTHERS)
    return (
        title_of(variant),
        f"{short_name(first['changed_code'])} {_range(first, 'changed', percent)}",
        *(_range(row, "changed", percent) for row in rest),
        f"{short_name(first['kl_code'])} {_range(first, 'kl_bits_per_byte', _digits)}",
        *(_range(row, "kl_bits_per_byte", _digits) for row in rest),
        f"{int(first['bytes']) / 1e6:,.0f}",
        f"{float(first['seconds']):.0f}",
    )


def _range(row: Row, name: str, show: object) -> str:
    value, low, high = (show(float(row[f"{name}{end}"])) for end in ("", "_low", "_high"))  # type: ignore[operator]
    return f"{value} ({low}–{high})"


def _digits(value: float) -> str:
    return np.format_float_positional(value, precision=2, fractional=False, trim="-")


def table(options: argparse.Namespace) -> None:
    """Writes the rows of new scores, and the tables of all rows between their marks in the page."""
    rows = collect(options.out)
    if rows:
        with CSV.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    stored = read_rows(CSV)
    both = [*stored, *(read_rows(OF_ANSWERS) if OF_ANSWERS.exists() else [])]
    pages: dict[Path, bytes] = {}
    for page, text in ((PAGE, summary(stored)), (LEADERBOARD, leaderboard(both))):
        print(text)
        before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        if not (begin and end):
            sys.exit(f"{page} has no {BEGIN}")
        pages[page] = f"{before}{BEGIN}\n\n{text}\n\n{END}{after}".encode()
    write_files(pages)


def read_rows(file: Path) -> list[Row]:
    """Returns the rows of a file of values separated by commas."""
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def speed(options: argparse.Namespace) -> None:
    """Measures how long evaluate takes, block by block, on FP8 and on bfloat16."""
    import practice_speed

    practice_speed.measure(options)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the stage and its options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(dest="stage", required=True)
    writing, measuring, showing, timing = map(stages.add_parser, ("write", "measure", "table", "speed"))
    for stage in (writing, measuring):
        stage.add_argument("model", help=f"{', '.join(MODELS)}, or what names a model")
        stage.add_argument("variants", nargs="*", default=list(TITLES), help=", ".join(TITLES))
        stage.add_argument("--awq-python", default="python", help="a command: a python that has llm-compressor")
    for stage in (writing, measuring, timing):
        stage.add_argument("--device", default="cuda")
    for stage in (writing, measuring, showing, timing):
        stage.add_argument("--out", type=Path, default=OUT, help="for checkpoints, scores and results")
    measuring.add_argument("--tokens", type=int, default=8192, help="of every language, at most")
    measuring.add_argument("--keep", action="store_true", help="keep the checkpoints")
    timing.add_argument("--shape", default="8b", help="of random_models.py")
    timing.add_argument("--blocks", type=int, default=32)
    timing.add_argument("--languages", type=int, default=20)
    timing.add_argument("--tokens", type=int, default=2048)
    timing.add_argument("--only-write", action="store_true", help="write the models and end")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Carries out a stage."""
    options = parse(arguments)
    {"write": write, "measure": measure, "table": table, "speed": speed}[options.stage](options)


if __name__ == "__main__":
    main(sys.argv[1:])
