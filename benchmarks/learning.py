"""What learning costs at real sizes: seconds and memory of `fair` for models of a published shape with random weights.

    python benchmarks/learning.py model  [--shape 8b] [--blocks 32] [--steps 16] [--device cuda]
    python benchmarks/learning.py blocks [--shape 70b] [--blocks 4] [--steps 200] [--device cuda]

`model` learns all blocks together for a few steps, from codes that were rounded to nearest, and extrapolates to the
default number of steps, plus evaluations. `blocks` rounds with GPTQ and learns block by block, with all the steps that
`fair` takes, and extrapolates from this many blocks to all. Text is the help of LibreOffice, repeated, in windows of
512 tokens of 12 languages. Time and memory do not depend on the values of weights.
"""

import argparse
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch

from fairbits import Checkpoint
from fairbits.api.make_plan import plan as make_plan
from fairbits.evaluation.reference import ReferenceModel
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.models.device import is_gpu, resolve_device
from fairbits.models.scales.groups import scheme_grid
from fairbits.quantization.execute import execute_plan
from fairbits.quantization.gptq.engine import round_model
from fairbits.quantization.learned.holdout import HoldoutSplit
from fairbits.quantization.learned.learn import EVALUATIONS
from fairbits.quantization.learned.learn_model import distill_model
from fairbits.quantization.plan import Learning
from fairbits.quantization.policies.fair import GPU_ROWS, GPU_TOKENS
from fairbits.text.corpus import TextRequest
from fairbits.text.reading import open_corpus
from random_models import SHAPES, write_model, write_text

SEQUENCE, LANGUAGES = 512, 12


class Watch:
    """Seconds since the last question, and the most memory of the GPU meanwhile."""

    def __init__(self, device: str) -> None:
        self.device, self._start = device, 0.0
        self.restart()

    def restart(self) -> None:
        """Begins again."""
        if is_gpu(self.device):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        self._start = time.perf_counter()

    def line(self, what: str) -> float:
        """Prints the seconds and the memory since the start, and returns the seconds."""
        if is_gpu(self.device):
            torch.cuda.synchronize()
        seconds = time.perf_counter() - self._start
        peak = (
            f", at most {torch.cuda.max_memory_allocated() / 1e9:.1f} GB of GPU memory" if is_gpu(self.device) else ""
        )
        print(f"{what}: {seconds:.1f} s{peak}", flush=True)
        return seconds


def model_stage(options: argparse.Namespace, checkpoint: Checkpoint, place: Path) -> None:
    """Measures a few steps of learning all blocks together."""
    device, shape, watch = options.device, SHAPES[options.shape], Watch(options.device)
    how = Learning(block_steps=0, model_steps=options.steps, rows=options.rows)
    tokens = max(2 * options.rows * SEQUENCE // LANGUAGES, 2 * SEQUENCE)
    corpus = open_corpus(str(write_text(place / "text", languages=LANGUAGES, tokens=tokens, document=SEQUENCE)), None)
    text = tokenize_corpus(checkpoint, corpus, request=TextRequest("calibration", tokens, SEQUENCE, 0))
    split = HoldoutSplit.of(text, seed=0)
    plan = make_plan(checkpoint, policy="rtn", bits=4, group=128)
    watch.restart()
    layers = {
        name: codes for block in round_model(checkpoint, plan, device=device) for name, codes in block.layers.items()
    }
    watch.line("rounding to nearest")
    start = {name: (codes, scheme_grid(plan.schemes[name])) for name, codes in layers.items()}
    watch.restart()
    with ReferenceModel.on_text(checkpoint, text, device=device) as reference:
        passed = watch.line(f"reference model, {sum(window.length for window in text.windows):,} positions")
        moments: list[float] = []
        watch.restart()
        distill_model(
            checkpoint,
            start,
            {},
            reference=reference,
            split=split,
            learning=how,
            device=device,
            seed=0,
            progress=lambda *_: moments.append(time.perf_counter()),
        )
        total = watch.line(f"{options.steps} steps of {options.rows} windows of {SEQUENCE} tokens")
    alone = min(after - before for before, after in pairwise(moments))  # the others end with an evaluation
    evaluation = max((total - options.steps * alone) / (EVALUATIONS + 2), 0)  # loading counts as one
    default = Learning.model_steps * alone + (EVALUATIONS + 2) * evaluation
    weights = shape.block_weights * options.blocks
    print(f"{weights:,} weights; {alone:.2f} s per step; {Learning.model_steps} steps: {default / 60:.1f} min")
    print(f"with the reference model of {GPU_TOKENS * LANGUAGES:,} tokens:", end=" ")
    every = GPU_TOKENS * LANGUAGES / sum(window.length for window in text.windows)
    print(f"{(default + passed * every) / 60:.1f} min")


def blocks_stage(options: argparse.Namespace, checkpoint: Checkpoint, place: Path) -> None:
    """Measures rounding and learning of some blocks."""
    device, shape, watch = options.device, SHAPES[options.shape], Watch(options.device)
    text_at = write_text(place / "text", languages=LANGUAGES, tokens=options.tokens, document=SEQUENCE)
    corpus = open_corpus(str(text_at), None)
    read = {"text": corpus, "tokens": options.tokens, "sequence": SEQUENCE, "device": device}
    plan = make_plan(
        checkpoint,
        policy="fair",
        bits=4,
        group=128,
        model_steps=0,
        block_steps=options.steps,
        rows=options.rows,
        **read,
    )
    text = tokenize_corpus(checkpoint, corpus, request=TextRequest("calibration", options.tokens, SEQUENCE, 0))
    watch.restart()
    for done in execute_plan(checkpoint, plan, text=text, device=device):
        if done.index is not None:
            watch.line(f"up to block {done.index}")
    total = watch.line(f"{options.blocks} blocks, {options.steps} steps each of {options.rows} windows")
    print(f"{shape.blocks} blocks: {total / options.blocks * shape.blocks / 60:.0f} min")


def main() -> None:
    """Measures what is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["model", "blocks"])
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--blocks", type=int, help="by default all")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rows", type=int, default=GPU_ROWS, help="windows per step")
    parser.add_argument("--tokens", type=int, default=GPU_TOKENS, help="of every language, for blocks")
    parser.add_argument("--place", type=Path, help="where models are kept; by default a temporary directory")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    options.device = resolve_device(options.device)
    options.blocks = options.blocks or SHAPES[options.shape].blocks
    with tempfile.TemporaryDirectory() as temporary:
        place = options.place or Path(temporary)
        directory = place / f"{options.shape}-{options.blocks}"
        model = write_model(directory, SHAPES[options.shape], options.blocks, device=options.device)
        stage = model_stage if options.stage == "model" else blocks_stage
        stage(options, Checkpoint(model), place)


if __name__ == "__main__":
    main()
