"""HQQ: half-quadratic search of zero points, asymmetric, without calibration."""

from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
from job import STORED_BITS, Job, Prepared, Quantized, work
from torch import float32


def prepare(job: Job) -> Prepared:
    """Returns the replacement of every module by an HQQLinear."""
    model = job.load()
    done: dict[str, HQQLinear] = {}

    def quantize() -> None:
        for name in job.modules:
            linear = model.get_submodule(name)
            # one group per row, rather than none, which HQQ cannot unpack at 3 bits
            config = BaseQuantizeConfig(nbits=job.bits, group_size=job.group or linear.in_features, axis=1)
            done[name] = HQQLinear(linear, config, compute_dtype=float32, device="cpu", del_orig=False)

    return quantize, lambda: read(done)


def read(done: dict[str, HQQLinear]) -> Quantized:
    """Returns the dequantized weights; codes count as they are packed, at 3 bits ten of them in 32."""
    weights = {name: each.dequantize() for name, each in done.items()}
    codes = sum(each.W_q.numel() * each.W_q.element_size() * 8 for each in done.values())
    scales = sum(each.meta["scale"].numel() + each.meta["zero"].numel() for each in done.values())
    return Quantized(weights, (codes + STORED_BITS * scales) / sum(W.numel() for W in weights.values()))


if __name__ == "__main__":
    work("hqq", prepare)
