"""Moves offsets with the kernel and on the CPU; prints `equal` if all but the random rounding agrees."""

import torch

from fairbits.quantization.learned import adam_cpu, adam_gpu


def main() -> None:
    """Runs ten steps, one of them with a gradient that is not finite."""
    torch.manual_seed(0)
    shape, same = (24, 200), True
    sizes = 10 ** (4 * torch.rand(shape) - 8)
    runs = []
    for move in (adam_cpu.move, adam_gpu.move):
        torch.manual_seed(1)
        moments, moved = adam_cpu.AdamMoments.zeros(torch.zeros(shape)), torch.zeros(shape)
        for step in range(1, 11):
            gradient = (sizes * (0.5 + torch.randn(shape))).bfloat16()
            if step == 5:
                gradient[3, 7] = torch.nan
            offsets = torch.zeros(shape).bfloat16()
            moments_before = moments.second.clone()
            if step == 1:
                moments.set_range(gradient)
            finite = move(offsets, gradient, moments, adam_cpu.AdamStep(step, 0.9, step))
            same &= bool(finite) == (step != 5)
            same &= not torch.equal(moments_before, moments.second)
            moved += offsets.float()
        runs.append((moved, moments))
    (one, before), (other, after) = runs
    close = (before.first.float() - after.first.float()).abs() <= 0.05 * sizes  # a few steps of bfloat16
    print("first", "equal" if close.all() else "differs")
    print("finite", "equal" if same else "differs")
    # rounding is at random: second moments differ by a few quarters of an octave, and offsets by some percent
    codes = (before.second.float() - after.second.float()).abs()
    print("second", "equal" if codes.mean() < 2 and codes.max() < 16 else f"differs by {codes.mean()}, {codes.max()}")
    agree = torch.corrcoef(torch.stack((one.flatten(), other.flatten())))[0, 1]
    bias = (one.mean() - other.mean()).abs() / one.std()
    print("offsets", "equal" if agree > 0.99 and bias < 0.02 else f"differ: {agree}, {bias}")


if __name__ == "__main__":
    main()
