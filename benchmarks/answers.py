"""What the numbers of `evaluate` say about answers: changed answers of tasks against KL, changed tokens and perplexity.

    python benchmarks/answers.py run MODEL [VARIANT …]   quantizes, evaluates, answers the tasks; continues where it was
    python benchmarks/answers.py collect                 writes one row per variant, language and kind into answers.csv,
                                                         and the damage by variants into answers-variants.csv
    python benchmarks/answers.py table                   prints what follows from the rows, and writes docs/answers.md
    python benchmarks/practice.py table                  writes docs/leaderboard.md

A variant is a format of practice.py, or a policy and its bits, such as gptq-4 or gptq:mix=english-3. Its checkpoint is
removed when it has been measured. The questions are made of the text on which the variants are evaluated (`fairbits
tasks`); more tasks, such as those of task_data.py, are given with `--tasks`.
"""

import argparse
import csv
import json
import re
import shutil
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

import fairbits
import practice
from fairbits import Checkpoint, Scores
from fairbits.api.evaluate import checkpoint_scores
from fairbits.api.lm_eval_tasks import write_tasks
from fairbits.evaluation.lm_eval.task_language import task_languages
from fairbits.evaluation.reference import ReferenceModel
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.reading import open_corpus
from practice_writers import SEQUENCE, TEXTS, Writer, write_reference

ROOT = Path(__file__).parents[1]
OUT, CSV = ROOT / "build/answers", ROOT / "docs/assets/answers.csv"
KINDS = ("cloze", "next", "negation", "translation")
FAIRBITS = re.compile(r"(?P<policy>[a-z].*)-(?P<bits>[2-8])")
VARIANTS = (
    *(f"gptq-{bits}" for bits in (8, 6, 5, 4, 3)),
    *(f"rtn-{bits}" for bits in (8, 6, 5, 4, 3)),
    *(f"gptq:mix=english-{bits}" for bits in (5, 4, 3)),
    *("FP8_DYNAMIC", "W8A8", "NVFP4", "NVFP4A16", "MXFP4", "fair-4"),
)
EMBEDDED, CALIBRATION_TOKENS = "embedded:", 450
DAMAGE = ("kl", "added", "ratio", "changed", "sure")
"""Columns of damage: KL and added loss in bits per byte, perplexity, changed tokens of 100, those where sure."""


class Place:
    """Where the files of one model are."""

    def __init__(self, out: Path, model: str) -> None:
        self.directory = out / model.replace(":", "-")
        self.reference = self.directory / "checkpoint"
        self.questions = self.directory / "questions"

    def scores(self, variant: str) -> Path:
        return self.directory / variant / "scores.json"

    def answers(self, variant: str) -> Path:
        return self.directory / variant / "answers"

    def finished(self, variant: str) -> Path:
        """Returns the file that says how long a variant took, once it is done."""
        return self.directory / variant / "finished.json"


def run(options: argparse.Namespace) -> None:
    """Measures the reference and every variant; one that fails is reported, and the others go on."""
    place = Place(options.out, options.model)
    place.directory.mkdir(parents=True, exist_ok=True)
    chosen = {name: str(getattr(options, name)) for name in ("tokens", "items", "kinds", "languages", "text", "tasks")}
    settings = place.directory / "settings.json"
    if settings.exists() and json.loads(settings.read_bytes()) != chosen:
        raise SystemExit(f"{place.directory} was measured with {settings.read_text()}; use these, or another --out")
    settings.write_text(json.dumps(chosen), encoding="utf-8")
    calibration, text = _texts(options)
    model: str | Path = options.model
    if not options.model.startswith(EMBEDDED):
        model = place.reference
        if not place.reference.exists():
            write_reference(options.model, place.reference)
    if not place.questions.exists():
        written = write_tasks(place.questions, text=text, kinds=options.kinds, items=options.items)
        print(json.dumps(written.as_data() | {"notes": []}), flush=True)
    before, started = Checkpoint(model), time.perf_counter()
    request = TextRequest("evaluation", options.tokens, SEQUENCE)
    left = [variant for variant in options.variants if not place.finished(variant).exists()]
    _answer(before, place, "reference", options)
    print(f"{options.model}: reference answered after {time.perf_counter() - started:.0f} s", flush=True)
    with ReferenceModel.on_corpus(before, text, request=request, device=options.device) as predictions:
        for variant in left:
            start, draft = time.perf_counter(), place.directory / variant / "checkpoint"
            shutil.rmtree(draft, ignore_errors=True)
            draft.parent.mkdir(parents=True, exist_ok=True)
            try:
                _write(model, variant, draft, calibration, options)
                written_after = time.perf_counter() - start
                after = Checkpoint(draft)
                scores = checkpoint_scores(after, predictions, reference=before, device=options.device)
                scores.save(place.scores(variant))
                _answer(after, place, variant, options)
            except Exception as problem:  # one variant that cannot be made must not end hours of others
                traceback.print_exception(problem)
                continue
            finally:
                shutil.rmtree(draft, ignore_errors=True)
            seconds = time.perf_counter() - start
            facts = {"seconds": written_after, "evaluation_seconds": seconds - written_after}
            facts["bytes"] = scores.quantized.size_bytes
            place.finished(variant).write_text(json.dumps(facts), encoding="utf-8")
            print(f"{options.model}, {variant}: {seconds:.0f} s, {written_after:.0f} s to write it", flush=True)
    shutil.rmtree(place.reference, ignore_errors=True) if not left and options.clean else None


def _texts(options: argparse.Namespace) -> tuple[Corpus, Corpus]:
    """Returns the text to calibrate on and the text to evaluate on, in the languages that are asked for."""
    if options.text is None:
        calibration, text = TEXTS.calibration, TEXTS.evaluation["help"]
    else:
        calibration = text = open_corpus(options.text, options.languages)
    if options.languages:
        text = text.restrict([code for code in text.evaluation if code in options.languages])
    return calibration, text


def _write(model: str | Path, variant: str, out: Path, calibration: Corpus, options: argparse.Namespace) -> None:
    parts = FAIRBITS.fullmatch(variant)
    if parts is None:
        Writer(Checkpoint(model).directory, options.device, options.awq_python).write(variant, out)
        return
    read = {"text": calibration, "sequence": SEQUENCE, "device": options.device}
    tokens = None if parts["policy"].startswith("fair") else CALIBRATION_TOKENS
    plan = fairbits.plan(model, policy=parts["policy"], bits=int(parts["bits"]), group=128, tokens=tokens, **read)
    fairbits.quantize(model, plan, out=out, text=calibration, device=options.device)


def _answer(model: Checkpoint, place: Place, variant: str, options: argparse.Namespace) -> None:
    for directory in (place.questions, *options.tasks):
        out = place.answers(variant) / directory.name
        fairbits.evaluate_tasks(model, directory, out=out, limit=options.items, device=options.device)


def collect(options: argparse.Namespace) -> None:
    """Writes one row for every model, variant, language and kind of task, and the damage by variants."""
    places = sorted(path for path in options.out.iterdir() if any(path.glob("*/finished.json")))
    if not places:
        raise SystemExit(f"nothing has been measured in {options.out}")
    rows = [row for directory in places for row in rows_of(directory)]
    variants = [row for directory in places for row in damage_rows(directory)]
    options.csv.parent.mkdir(parents=True, exist_ok=True)
    for out, content in ((options.csv, rows), (options.csv.with_stem(f"{options.csv.stem}-variants"), variants)):
        with out.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(content[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(content)
        print(f"{len(content)} rows in {out}")


def finished(directory: Path) -> Iterator[tuple[str, Scores, dict[str, float]]]:
    """Yields every measured variant of a model, its scores, and its size and seconds."""
    for facts in sorted(directory.glob("*/finished.json")):
        yield facts.parent.name, Scores.load(facts.parent / "scores.json"), json.loads(facts.read_bytes())


def damage_rows(directory: Path) -> Iterator[dict[str, str]]:
    """Yields the rows of one model for the leaderboard."""
    for variant, scores, facts in finished(directory):
        yield from practice.rows_of(directory.name, variant, scores, facts)


def rows_of(directory: Path) -> Iterator[dict[str, object]]:
    """Yields the rows of one model."""
    truth = choices_in(directory / "reference/answers")
    languages = task_languages(truth, {})
    for variant, scores, facts in finished(directory):
        kl, added = scores.frame().by_language(), scores.frame(measure="loss").by_language()
        answers = choices_in(directory / variant / "answers")
        for task, (first, was_right) in truth.items():
            code = languages[task]
            if code not in scores.languages or task not in answers:
                continue
            choice, is_right = answers[task]
            damage = (
                *(kl[code].value, added[code].value, 1 + scores.relative_perplexity[code].value),
                *(100 * scores.flips[code].value, 100 * scores.sure_flips[code].value),
            )
            yield {
                "model": directory.name,
                "variant": variant,
                "bytes": facts["bytes"],
                "language": code,
                "kind": kind_of(task),
                "items": len(first),
                "right_before": int(was_right.sum()),
                "right_after": int(is_right.sum()),
                "lost": int((was_right & ~is_right).sum()),
                "gained": int((~was_right & is_right).sum()),
                "changed_answers": int((choice != first).sum()),
                **{name: f"{value:.5g}" for name, value in zip(DAMAGE, damage, strict=True)},
            }


def kind_of(task: str) -> str:
    """Returns the kind of a task: its name without its own prefix and without its language.

    >>> kind_of("fairbits_next_eng_Latn"), kind_of("exams_pol_Latn")
    ('next', 'exams')
    """
    return task.removeprefix("fairbits_").rsplit("_", 2)[0]


def choices_in(directory: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns for every task which choice was the likeliest in every item, and whether it was right."""
    found = {}
    for file in sorted(directory.rglob("samples_*.jsonl")):
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        lines = sorted((line for line in lines if "acc" in line), key=lambda line: int(line["doc_id"]))
        if not lines:
            continue
        task = re.sub(r"_\d{4}-\d\d-\d\dT[\d.-]+$", "", file.stem.removeprefix("samples_"))
        likelihoods = [[float(answer[0][0]) for answer in line["resps"]] for line in lines]
        choice = np.array([int(np.argmax(values)) for values in likelihoods])
        found[task] = choice, np.array([bool(line["acc"]) for line in lines])
    return found


def main() -> None:
    """Runs the command that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--csv", type=Path, default=CSV)
    commands = parser.add_subparsers(required=True)
    measured = commands.add_parser("run")
    measured.set_defaults(function=run)
    measured.add_argument("model")
    measured.add_argument("variants", nargs="*", default=VARIANTS)
    measured.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    measured.add_argument("--languages", nargs="*")
    measured.add_argument("--text", help="by default the text of practice.py")
    measured.add_argument("--tokens", type=int, default=8192)
    measured.add_argument("--items", type=int, default=500)
    measured.add_argument("--kinds", nargs="*", default=KINDS)
    measured.add_argument("--tasks", nargs="*", type=Path, default=())
    measured.add_argument("--awq-python", default="python")
    measured.add_argument("--clean", action="store_true", help="also remove the reference once all is measured")
    commands.add_parser("collect").set_defaults(function=collect)
    table = commands.add_parser("table")
    table.set_defaults(function=show)
    options = parser.parse_args()
    options.function(options)


def show(options: argparse.Namespace) -> None:
    """Prints the tables, and writes them and the figures."""
    from answers_relation import write_page

    with options.csv.open(encoding="utf-8") as file:
        write_page(list(csv.DictReader(file)))


if __name__ == "__main__":
    main()
