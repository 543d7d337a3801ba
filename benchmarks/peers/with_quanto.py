"""optimum-quanto: least and largest weight of each group, asymmetric, without calibration."""

import sys

import torch
from job import STORED_BITS, Job, Prepared, Quantized, work
from optimum.quanto import freeze, qint2, qint4, qint8, quantize

TYPES = {2: qint2, 4: qint4, 8: qint8}


def prepare(job: Job) -> Prepared:
    """Returns a run of `quantize` and `freeze`."""
    if job.bits not in TYPES or (job.bits == 8 and job.group is not None):
        sys.exit(f"quanto has no weights of {job.bits} bits with groups of {job.group}")
    model = job.load()

    def run() -> None:
        quantize(model, weights=TYPES[job.bits], include=job.modules)
        for name in job.modules:
            model.get_submodule(name).weight_group_size = job.group  # it has no argument for it
        freeze(model)

    return run, lambda: read(job, model)


def read(job: Job, model: torch.nn.Module) -> Quantized:
    """Returns the dequantized weights."""
    stored = {name: model.get_submodule(name).weight for name in job.modules}
    weights = {name: W.dequantize() for name, W in stored.items()}
    shifts = [W._shift for W in stored.values() if job.bits < 8]
    scales = sum(each.numel() for each in [*shifts, *(W._scale for W in stored.values())])
    return Quantized(weights, job.bits + STORED_BITS * scales / sum(W.numel() for W in weights.values()))


if __name__ == "__main__":
    work("optimum-quanto", prepare)
