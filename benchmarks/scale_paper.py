"""What 8B, 70B and 405B take on this machine, on paper: counts of work from the shapes, divided by measured rates.

    python benchmarks/scale_paper.py --device cuda --model DIRECTORY

The models need not exist: files with the right headers and no content stand for them. `--model` is a model on the disk
that is meant; its files are read for the rate of reading. `benchmarks/estimate.py` compares such estimates with runs.
"""

import argparse
import json
import tempfile
from pathlib import Path

from fairbits.api.dry_run.jobs import counter_for
from fairbits.api.dry_run.planning import stand_in_plan
from fairbits.api.dry_run.rates import measure_rates
from fairbits.api.dry_run.sizes import TextSize
from fairbits.api.dry_run.work import Rates, Stage

from fairbits import Checkpoint
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.text.corpus import Corpus
from fairbits.text.reading import read_corpus
from fairbits.text.text_request import TextRequest
from random_models import EMBEDDED, SHAPES, Shape, write_text

SHOWN = ("8b", "70b", "405b")
MODELS, POLICIES = 100, 5
CALIBRATION = TextRequest("calibration", 4096, 512)
EVALUATION = TextRequest("evaluation", 8192, 512)
LANGUAGES = 20


def write_headers(directory: Path, shape: Shape) -> Checkpoint:
    """Returns a model of this shape whose files have headers and, instead of weights, holes."""
    directory.mkdir()
    files: dict[str, str] = {}
    for name, tensors in shape.files(shape.blocks):
        entries, end = {}, 0
        for tensor, size in tensors.items():
            start, end = end, end + 2 * size[0] * (size[1] if len(size) > 1 else 1)
            entries[tensor] = {"dtype": "BF16", "shape": size, "data_offsets": (start, end)}
        header = json.dumps(entries).encode()
        with (directory / name).open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + end)
        files |= dict.fromkeys(tensors, name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    Checkpoint(EMBEDDED).tokenizer().save_pretrained(directory)
    shape.config(shape.blocks).save_pretrained(directory)
    checkpoint = Checkpoint(directory)
    vars(checkpoint)["fingerprint"] = "0" * 64  # otherwise all holes would be read
    return checkpoint


def stages_of(checkpoint: Checkpoint, corpus: Corpus, device: str) -> dict[str, Stage]:
    """Returns the stages by the name of the command."""
    counter = counter_for(checkpoint, device)
    calibration, evaluation = (
        TextSize.of(tokenize_corpus(checkpoint, corpus, request=request, least=1))
        for request in (CALIBRATION, EVALUATION)
    )
    options = {"bits": 4, "group": 128}
    plans = {
        policy: stand_in_plan(
            checkpoint, words, policy=policy, options=options, request=CALIBRATION, device=device
        ).plan
        for policy, words in (("rtn", None), ("mse", None), ("gptq", corpus))
    }
    size = plans["gptq"].size_bytes
    return {
        "hash of the model": counter.check(),
        "audit": counter.audit(calibration),
        **{
            policy: counter.round(plan, calibration if policy == "gptq" else None, name=policy, written=True)
            for policy, plan in plans.items()
        },
        "evaluate the reference": counter.evaluate_reference(evaluation),
        "evaluate the quantized": counter.evaluate_quantized(evaluation, name="quantized", stored=size),
    }


def print_stages(shape: str, stages: dict[str, Stage], rates: Rates) -> dict[str, float]:
    """Prints a row for every stage, and returns the seconds."""
    seconds = {}
    for name, stage in stages.items():
        work = stage.work
        seconds[name] = rates.time(work, overlapping=stage.overlapping)
        parts = rates.parts(work)
        slowest = max(parts, key=lambda part: parts[part]) if parts else "–"
        flops = (work.products + work.fast + work.factors) / 1e15
        moved = f"{work.read / 1e9:.0f} | {work.written / 1e9:.0f} | {flops:.1f}"
        held = f"{stage.held.gpu / 1e9:.0f} | {stage.held.ram / 1e9:.0f}"
        print(f"| {shape} | {name} | {moved} | {held} | {seconds[name] / 60:.1f} | {slowest} |")
    return seconds


def main() -> None:
    """Measures the rates and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default=EMBEDDED, help="whose files are read to measure the disk")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        rates = measure_rates(Checkpoint(given.model), device=given.device, out=Path(place))
        print("rates per second: " + ", ".join(f"{name} {value:.3g}" for name, value in vars(rates).items()))
        tokens, document = EVALUATION.tokens, EVALUATION.sequence
        text = write_text(Path(place) / "text", languages=LANGUAGES, tokens=tokens, document=document)
        corpus = read_corpus(text)
        print("\n| model | stage | read, GB | written, GB | PFLOP | GPU, GB | RAM, GB | minutes | most of it |")
        print("|---|---|---|---|---|---|---|---|---|")
        for name in SHOWN:
            checkpoint = write_headers(Path(place) / name, SHAPES[name])
            seconds = print_stages(name, stages_of(checkpoint, corpus, given.device), rates)
            once = seconds["audit"] + seconds["hash of the model"] + seconds["evaluate the reference"]
            each = seconds["gptq"] + seconds["evaluate the quantized"]
            hours = MODELS * (once + POLICIES * each) / 3600
            print(
                f"| {name} | {MODELS} models × {POLICIES} policies | | | | | | {hours * 60:,.0f} ({hours:,.0f} h) | |"
            )


if __name__ == "__main__":
    main()
