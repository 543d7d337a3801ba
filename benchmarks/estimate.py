"""Estimates against measurements: the time of every stage of `fairbits run`, predicted and measured.

    python benchmarks/estimate.py [--models demo 100m] [--policy gptq] [--device cpu] [--cpu-time]

`demo` is the embedded model with the amounts of the demonstration. The others are Llamas of `random_models.py`. A
machine that does other work at the same time changes rates from second to second: with --cpu-time everything is
measured in processor time of one thread.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch

from fairbits import run
from fairbits.api.dry_run import ResourceEstimate
from fairbits.api.run.run_settings import estimate_run
from random_models import SHAPES, write_model

LANGUAGES = ["eng", "fra", "kor", "rus", "tur", "zho_Hans"]
OVER = 5.0
"""Seconds from which a stage must be within GOAL."""
GOAL = 1.5
PARTS = {"audit.json": "audit", "answers of the reference": "evaluate the reference model", "report.html": "report"}
"""Stages of the estimate by what the run reports as finished."""


def predicted_seconds(estimate: ResourceEstimate, finished: str) -> tuple[float, dict[str, float]]:
    """Returns the predicted seconds of what a run reports as finished, and of the kinds of work in it."""
    stages = [stage for stage in estimate.stages if matches(stage.name, finished)]
    parts: dict[str, float] = {}
    for stage in stages:
        for name, spent in estimate.parts(stage).items():
            parts[name] = parts.get(name, 0.0) + spent
    return sum(map(estimate.time, stages)), parts


def matches(stage: str, finished: str) -> bool:
    """Returns whether a stage of the estimate belongs to what a run reports as finished."""
    if finished in PARTS:
        return stage == PARTS[finished]
    if finished == "model":
        return stage.startswith(("quantize", "plan of quantize"))
    if finished == "scores.json":
        return stage == "evaluate the quantized model"
    kind, _, file = finished.partition("/")
    name = file.removesuffix(".json")
    plain = stage.removeprefix("evaluate ").removeprefix("plan of ").replace(":", "-").replace("=", "-")
    if kind == "more-bits":
        return f", {name} bits" in plain and "quantize" not in plain
    return kind == "baselines" and plain.startswith(f"{name},")


def compare(model: str | Path | None, arguments: dict[str, object]) -> list[dict[str, object]]:
    """Returns a row for every stage: predicted and measured seconds, and their ratio."""
    with tempfile.TemporaryDirectory() as out:
        place = Path(out) / "run"
        estimate = estimate_run(model, out=place, **arguments)
        if place.exists():
            raise SystemExit("the dry run wrote something")
        measured: dict[str, float] = {}
        run(model, out=place, finished=lambda what, seconds: measured.update({what: seconds or 0.0}), **arguments)
        size = sum(file.stat().st_size for file in place.rglob("*.safetensors") if "model" in file.parts)
    rows = []
    for what, seconds in measured.items():
        predicted, parts = predicted_seconds(estimate, what)
        if predicted:
            rows.append({"stage": what, "predicted": predicted, "measured": seconds, "parts": parts})
    print(f"  model on disk: predicted {estimate.held.written / 1e6:.1f} MB, measured {size / 1e6:.1f} MB")
    return rows


def print_rows(rows: list[dict[str, object]]) -> None:
    """Prints the stages, and how many of the long ones are within the goal."""
    long = []
    for row in rows:
        predicted, measured = float(row["predicted"]), float(row["measured"])  # type: ignore[arg-type]
        ratio = predicted / measured
        if max(predicted, measured) >= OVER:
            long.append(max(ratio, 1 / ratio) <= GOAL)
        parts = row["parts"]
        assert isinstance(parts, dict)
        named = ", ".join(f"{name} {spent:.1f}" for name, spent in parts.items() if spent > 0.05 * predicted)
        print(f"  {row['stage']:<28} {predicted:8.1f} s {measured:8.1f} s  {ratio:5.2f}  ({named})")
    print(f"  within a factor of {GOAL}: {sum(long)} of {len(long)} stages over {OVER:.0f} s")


def main() -> None:
    """Compares estimates with measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["demo", "100m"], choices=["demo", *SHAPES])
    parser.add_argument("--policy", default="gptq")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--evaluation-tokens", type=int, default=1024)
    parser.add_argument("--more-bits", type=int, nargs="*", default=[])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.cpu_time:
        torch.set_num_threads(1)
        time.perf_counter = time.process_time
    for name in options.models:
        arguments = {"policy": options.policy, "more_bits": options.more_bits, "audit": True, "device": options.device}
        arguments |= {"tokens": options.tokens, "evaluation_tokens": options.evaluation_tokens}
        with tempfile.TemporaryDirectory() as directory:
            if name == "demo":
                rows = compare(None, arguments)
            else:
                model = write_model(Path(directory), SHAPES[name], SHAPES[name].blocks)
                rows = compare(model, {**arguments, "languages": LANGUAGES, "text": "help"})
        print(f"{name}, policy {options.policy}: predicted, measured, ratio")
        print_rows(rows)
        if options.json:
            print(json.dumps({"model": name, "rows": rows}))


if __name__ == "__main__":
    main()
