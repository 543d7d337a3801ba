"""fairbits itself: rtn, mse (exact clip), gptq with equal weights of languages, fair (learned for the worst one)."""

from pathlib import Path

import numpy as np
from job import Job, Prepared, Quantized, work

from fairbits import Checkpoint
from fairbits.forward.windows import NO_LABEL, TokenizedText, Window, WindowPart
from fairbits.quantization import policies
from fairbits.quantization.evidence import Evidence
from fairbits.quantization.execute import execute_plan
from fairbits.quantization.gptq.block_rounding import RoundedBlock
from fairbits.quantization.plan import Calibration


def prepare(job: Job) -> Prepared:
    """Returns a run of the engine; it reads the model itself."""
    checkpoint = Checkpoint(Path(job.model))
    text, options = None, {}
    if policies.find_policy(job.method).reads_text:
        text = text_of(job)
        hashes = dict.fromkeys(text.languages, "0" * 64)  # of no corpus
        tokens = sum(map(len, job.samples))
        options["calibration"] = Calibration("given samples", hashes, tokens=tokens, sequence=0, seed=0)
    evidence = Evidence(checkpoint, () if text is None else text.languages)
    plan = policies.decide(job.method, evidence, bits=job.bits, group=job.group or "channel", **options)
    done: list[RoundedBlock] = []
    return lambda: done.extend(execute_plan(checkpoint, plan, text=text)), lambda: read(checkpoint, done)


def text_of(job: Job) -> TokenizedText:
    """Returns the samples as windows, each a document of its own."""
    lang = np.array(job.languages)
    windows = [Window(i, WindowPart(ids, [True] * len(ids), [*ids[1:], NO_LABEL])) for i, ids in enumerate(job.samples)]
    every = np.arange(len(lang))
    return TokenizedText(tuple(sorted(set(job.languages))), lang, every, np.ones(len(lang)), tuple(windows), padding=0)


def read(checkpoint: Checkpoint, done: list[RoundedBlock]) -> Quantized:
    """Returns the dequantized weights; scales count as they are stored."""
    layers = {name: codes for block in done for name, codes in block.layers.items()}
    weights = {checkpoint.architecture.weights[name].module: codes.dequantized for name, codes in layers.items()}
    bits = sum(each.bits * each.codes.numel() + 8 * each.scales.nbytes for each in layers.values())
    notes = tuple(note for block in done for outcome in block.outcomes for note in outcome.notes)
    return Quantized(weights, bits / sum(W.numel() for W in weights.values()), notes)


if __name__ == "__main__":
    work("fairbits", prepare)
