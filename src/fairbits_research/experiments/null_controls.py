"""Null controls: 8 bits, Gaussian noise of the same size as the rounding error, and other draws of calibration text."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fairbits.models.scales.groups import rounding_error
from fairbits.models.scales.scheme import Scheme, within_rows
from fairbits.quantization.gptq.block_rounding import matrix
from fairbits.stats.correlation import spearman
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.laboratory import Laboratory, ModelLab, language_values
from fairbits_research.experiments.result import Answer, Figure, Result, Series, Table, estimate_text

NAME = "null-controls"
BITS = (8, 4, 3)
DRAWS = 5
"""Random draws of noise, and of calibration text."""
NEGLIGIBLE = 0.01
"""Bits per byte; a gap at 8 bits below this counts as none: it is about 1 % of a good model's loss."""


def null_controls(laboratory: Laboratory) -> Result:
    """Returns the result: do the measurements show quantization? Three controls that must show nothing, or the same."""
    lab = laboratory.lab()
    rounded = {}
    for i, bits in enumerate(BITS):
        laboratory.report("rounding", i, len(BITS))
        rounded[bits] = lab.rounding_damage(bits)
    noise: dict[int, list[LanguageFrame]] = {}
    for i in range(2 * DRAWS):
        laboratory.report("drawing noise", i, 2 * DRAWS)
        bits = BITS[1:][i // DRAWS]
        noise.setdefault(bits, []).append(lab.weights_damage(_noise(lab, bits, seed=i % DRAWS)))
    draws = []
    for seed in range(DRAWS):
        laboratory.report("drawing calibration text", seed, DRAWS)
        draws.append(lab.policy_damage("gptq", 4, seed=seed))
    gap = rounded[8].gap()
    answer = Answer.SUPPORTED if gap.high < NEGLIGIBLE else Answer.UNDECIDED
    if gap.low > NEGLIGIBLE:
        answer = Answer.NOT_SUPPORTED
    alike = {
        bits: spearman(language_values(rounded[bits]), np.mean([language_values(each) for each in noise[bits]], axis=0))
        for bits in BITS[1:]
    }
    worst = _over([frame.worst()[1].value for frame in draws])
    return Result(
        name=NAME,
        title="Null controls",
        question="Are the measured gaps caused by quantization, or would they appear without it?",
        predicted="The documents predict nothing; a sound method shows no gap where there is hardly any rounding.",
        design=(
            "Round to nearest at 8, 4 and 3 bits. In place of the rounding error, Gaussian noise with the same "
            f"norm in every row of every layer, {DRAWS} draws. GPTQ at 4 bits, {DRAWS} draws of calibration text."
        ),
        subject=laboratory.subject(range(DRAWS), bits=list(BITS)),
        answer=answer,
        verdict=(
            f"At 8 bits the gap between languages is {estimate_text(gap)} bits per byte, "
            + {Answer.SUPPORTED: "which is negligible", Answer.UNDECIDED: "which may or may not be negligible"}.get(
                answer, "which is not negligible"
            )
            + "; at 3 bits the damage of noise and that of rounding have a rank correlation of "
            f"{estimate_text(alike[3].estimate)}."
        ),
        meaning=(
            f"Another draw of calibration text changes the worst damage by {worst.high - worst.low:.4f} bits per byte "
            f"({DRAWS} draws, largest minus smallest): smaller differences between methods may be chance."
        ),
        tables=(_table(rounded, noise, draws),),
        figure=Figure(
            "Damage by rounding and by noise of the same norm, 3 bits",
            "rounding, bits per byte",
            "noise, bits per byte",
            (
                Series(
                    "languages",
                    tuple(language_values(rounded[3]).tolist()),
                    tuple(np.mean([language_values(each) for each in noise[3]], axis=0).tolist()),
                    labels=rounded[3].languages,
                ),
            ),
        ),
    )


def _noise(lab: ModelLab, bits: int, *, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Yields every linear layer with Gaussian noise whose norm in every row is that of the rounding error."""
    rng = torch.Generator().manual_seed(seed)
    group = within_rows(lab.setting.group)
    for block in lab.linear_maps:
        for each in block:
            W = matrix(lab.checkpoint, each)
            error = rounding_error(W, Scheme(bits, group, "absmax", "twos")).norm(dim=1, keepdim=True)
            drawn = torch.randn(W.shape, generator=rng)
            yield each.name, W + drawn * (error / drawn.norm(dim=1, keepdim=True))


def _table(
    rounded: dict[int, LanguageFrame], noise: dict[int, list[LanguageFrame]], draws: list[LanguageFrame]
) -> Table:
    rows = [(f"round to nearest, {bits} bits", *_row(frame)) for bits, frame in rounded.items()]
    for bits, frames in noise.items():
        rows += [(f"Gaussian noise as of {bits} bits, draw {i}", *_row(frame)) for i, frame in enumerate(frames)]
    rows += [(f"GPTQ, 4 bits, calibration draw {i}", *_row(frame)) for i, frame in enumerate(draws)]
    return Table("Added bits per byte", ("what", "worst language", "worst", "mean", "gap"), tuple(rows))


def _row(frame: LanguageFrame) -> tuple[str, ...]:
    code, worst = frame.worst()
    return code, estimate_text(worst), estimate_text(frame.mean()), estimate_text(frame.gap())


def _over(found: list[float]) -> Estimate:
    return Estimate(float(np.mean(found)), min(found), max(found), len(found))
