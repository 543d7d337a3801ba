"""AutoRound: rounding and scales learned block by block, symmetric, by its recommended 200 iterations of 8 samples.

Scales have either sign, so that the largest weight of a group is the lowest code. All else is left at its default but
the precision: it learns in float32, where by itself it would cast the model to bfloat16 if the processor knows that.
"""

import logging
from itertools import cycle, islice
from typing import Any

import torch
from auto_round import AutoRound, SignRoundConfig
from job import STORED_BITS, Job, Prepared, Quantized, work
from transformers import AutoTokenizer

ITERATIONS = 200
AT_ONCE = 8
"""Samples of an iteration, its default."""


class Warnings(logging.Handler):
    """Keeps what it warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps one message."""
        self.said.append(record.getMessage())


def prepare(job: Job) -> Prepared:
    """Returns a run of `quantize`, which leaves the rounded weights in the model; nothing is exported."""
    warnings = Warnings()
    logging.getLogger("autoround").addHandler(warnings)
    model, tokenizer = job.load(), AutoTokenizer.from_pretrained(job.model)
    samples = list(islice(cycle(job.samples), len(job.samples) + -len(job.samples) % AT_ONCE))
    run = AutoRound(
        model,
        tokenizer,
        alg_configs=SignRoundConfig(iters=ITERATIONS, bits=job.bits, group_size=job.group or -1, sym=True),
        dataset=batches(samples, padding=tokenizer.pad_token_id or 0),
        nsamples=len(samples),
        seqlen=max(map(len, samples)),
        batch_size=AT_ONCE,
        device_map="cpu",
        enable_torch_compile=False,
        amp=False,
        low_cpu_mem_usage=False,
    )
    if len(samples) > len(job.samples):
        warnings.said.append(f"{len(samples) - len(job.samples)} of {len(job.samples)} samples were given twice")
    return run.quantize, lambda: read(job, model, warnings.said)


def batches(samples: list[list[int]], *, padding: int) -> list[dict[str, torch.Tensor]]:
    """Returns full batches of samples, each filled up to the longest of all.

    AutoRound drops samples that are shorter than `seqlen`, cannot put different lengths into one batch, and in a batch
    that is not full it misplaces the position biases of BLOOM. What is filled up is masked, and left out of its loss.
    """
    length = max(map(len, samples))
    ids = torch.tensor([each + [padding] * (length - len(each)) for each in samples])
    mask = torch.tensor([[1] * len(each) + [0] * (length - len(each)) for each in samples])
    parts = zip(ids.split(AT_ONCE), mask.split(AT_ONCE), strict=True)
    return [{"input_ids": some, "attention_mask": real} for some, real in parts]


def read(job: Job, model: torch.nn.Module, warnings: list[str]) -> Quantized:
    """Returns the weights that the run has left in the modules, once they are seen to lie on their grids."""
    modules: dict[str, Any] = {name: model.get_submodule(name) for name in job.modules}
    lowest = -(2 ** (job.bits - 1))
    for each in modules.values():
        codes = each.weight.unflatten(1, (each.scale.shape[1], -1)) / each.scale[:, :, None].float()
        torch.testing.assert_close(codes, codes.round().clamp(lowest, -lowest - 1))
    weights = {name: each.weight for name, each in modules.items()}
    scales = sum(each.scale.numel() for each in modules.values())
    bits = job.bits + STORED_BITS * scales / sum(W.numel() for W in weights.values())
    return Quantized(weights, bits, tuple(dict.fromkeys(warnings)))


if __name__ == "__main__":
    work("auto-round", prepare)
