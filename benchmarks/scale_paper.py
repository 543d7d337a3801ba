"""What 8B, 70B and 405B take on this machine, on paper: a few blocks of each are done for real, on a little text.

    python benchmarks/scale_paper.py --device cuda --out DIRECTORY

The models need not exist: files with the right headers and no content stand for them, so weights are zeros, and reading
them is faster than from a disk. `--out` is on the disk that is meant. `benchmarks/estimate.py` compares such estimates
with runs.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from fairbits import Checkpoint
from fairbits.api.dry_run import ResourceEstimate, estimate_audit, estimate_evaluate, estimate_quantize
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


def estimates(checkpoint: Checkpoint, corpus: Corpus, device: str, out: Path) -> dict[str, ResourceEstimate]:
    """Returns the estimates by the name of the command or policy."""
    where: dict[str, Any] = {"device": device, "text": corpus}
    audit = estimate_audit(checkpoint, out=out, languages=None, request=CALIBRATION, **where)
    evaluation = estimate_evaluate(checkpoint, languages=None, request=EVALUATION, **where)
    policies = {
        policy: estimate_quantize(
            checkpoint, out=out, device=device, text=text, policy=policy, bits=4, group=128, **CALIBRATION.settings
        )
        for policy, text in (("rtn", None), ("mse", None), ("gptq", corpus))
    }
    return {"audit": audit, **policies, "evaluate": evaluation}


def print_stages(shape: str, estimate: ResourceEstimate) -> dict[str, float]:
    """Prints a row for every stage, and returns the seconds."""
    seconds = {}
    for stage in estimate.stages:
        seconds[stage.name] = estimate.time(stage)
        parts = estimate.parts(stage)
        slowest = max(parts, key=lambda part: parts[part]) if parts else "–"
        held = f"{stage.held.written / 1e9:.0f} | {stage.held.gpu / 1e9:.0f} | {stage.held.ram / 1e9:.0f}"
        print(f"| {shape} | {stage.name} | {held} | {seconds[stage.name] / 60:.1f} | {slowest} |")
    return seconds


def main() -> None:
    """Measures the work and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path(), help="a directory on the disk that is written to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        tokens, document = EVALUATION.tokens, EVALUATION.sequence
        text = write_text(Path(place) / "text", languages=LANGUAGES, tokens=tokens, document=document)
        corpus = read_corpus(text)
        print("| model | stage | written, GB | GPU, GB | RAM, GB | minutes | most of it |")
        print("|---|---|---|---|---|---|---|")
        for name in SHOWN:
            checkpoint = write_headers(Path(place) / name, SHAPES[name])
            seconds = {
                command: print_stages(f"{name}, {command}", estimate)
                for command, estimate in estimates(checkpoint, corpus, options.device, options.out).items()
            }
            once = sum(seconds["audit"].values()) + seconds["evaluate"]["evaluate the reference model"]
            per_policy = seconds["gptq"]["quantize"] + seconds["evaluate"]["evaluate the quantized model"]
            hours = MODELS * (once + POLICIES * per_policy) / 3600
            print(f"| {name} | {MODELS} models × {POLICIES} policies | | | | {hours * 60:,.0f} ({hours:,.0f} h) | |")


if __name__ == "__main__":
    main()
