"""Estimates against measurements: the time of every stage of `fairbits run`, predicted and measured.

    python benchmarks/estimate.py [--models tiny llama-100m] [--policy gptq] [--device cpu] [--cpu-time]

`tiny` is the embedded model with the amounts of the demonstration. The others are Llamas with random weights, in
bfloat16, with the embedded tokenizer. A machine that does other work at the same time changes rates from second to
second: with --cpu-time everything is measured in processor time of one thread.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fairbits import Checkpoint, run
from fairbits.api.dry_run import ResourceEstimate
from fairbits.api.run.run_settings import estimate_run

SHAPES = {
    "llama-25m": (512, 1408, 6),
    "llama-100m": (768, 2048, 12),
    "llama-300m": (1024, 2816, 24),
    "llama-1b": (2048, 5632, 24),
}
"""Width, inner width and blocks."""
LANGUAGES = ["eng", "fra", "kor", "rus", "tur", "zho_Hans"]
OVER = 5.0
"""Seconds from which a stage must be within GOAL."""
GOAL = 1.5
PARTS = {"audit.json": "audit", "answers of the reference": "evaluate the reference model", "report.html": "report"}
"""Stages of the estimate by what the run reports as finished."""


def random_llama(name: str, directory: Path) -> Path:
    """Returns the directory of a Llama with random weights."""
    width, inner, blocks = SHAPES[name]
    tokenizer = Checkpoint("embedded:tiny").tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=blocks,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 128,
        tie_word_embeddings=True,
        dtype=torch.bfloat16,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def predicted_seconds(found: ResourceEstimate, finished: str) -> tuple[float, dict[str, float]]:
    """Returns the predicted seconds of what a run reports as finished, and of the kinds of work in it."""
    own = [each for each in found.stages if matches(each.name, finished)]
    parts: dict[str, float] = {}
    for each in own:
        for name, spent in found.parts(each).items():
            parts[name] = parts.get(name, 0.0) + spent
    return sum(map(found.time, own)), parts


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
    if kind == "widths":
        return f", {name} bits" in plain and "quantize" not in plain
    return kind == "baselines" and plain.startswith(f"{name},")


def compare(model: str | Path | None, arguments: dict[str, object]) -> list[dict[str, object]]:
    """Returns a row for every stage: predicted and measured seconds, and their ratio."""
    with tempfile.TemporaryDirectory() as out:
        place = Path(out) / "run"
        found = estimate_run(model, out=place, **arguments)
        if place.exists():
            raise SystemExit("the dry run wrote something")
        measured: dict[str, float] = {}
        run(model, out=place, finished=lambda what, seconds: measured.update({what: seconds or 0.0}), **arguments)
        size = sum(each.stat().st_size for each in place.rglob("*.safetensors") if "model" in each.parts)
    rows = []
    for what, seconds in measured.items():
        predicted, parts = predicted_seconds(found, what)
        if predicted:
            rows.append({"stage": what, "predicted": predicted, "measured": seconds, "parts": parts})
    print(f"  model on disk: predicted {found.held.written / 1e6:.1f} MB, measured {size / 1e6:.1f} MB")
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
    parser.add_argument("--models", nargs="+", default=["tiny", "llama-100m"], choices=["tiny", *SHAPES])
    parser.add_argument("--policy", default="gptq")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--evaluation-tokens", type=int, default=1024)
    parser.add_argument("--widths", type=int, nargs="*", default=[])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.cpu_time:
        torch.set_num_threads(1)
        time.perf_counter = time.process_time
    for name in options.models:
        arguments = {"policy": options.policy, "widths": options.widths, "device": options.device}
        arguments |= {"tokens": options.tokens, "evaluation_tokens": options.evaluation_tokens}
        with tempfile.TemporaryDirectory() as directory:
            if name == "tiny":
                rows = compare(None, arguments)
            else:
                model = random_llama(name, Path(directory))
                rows = compare(model, {**arguments, "languages": LANGUAGES, "text": "help"})
        print(f"{name}, policy {options.policy}: predicted, measured, ratio")
        print_rows(rows)
        if options.json:
            print(json.dumps({"model": name, "rows": rows}))


if __name__ == "__main__":
    main()
