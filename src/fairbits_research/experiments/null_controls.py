"""Null controls: 8 bits, Gaussian noise of the same size as the rounding error, and other draws of calibration text."""

from collections.abc import Iterator
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from fairbits.core.array_checks import Floats
from fairbits.models.scales.groups import rounding_error
from fairbits.quantization.gptq.block_rounding import matrix
from fairbits.stats.correlation import spearman
from fairbits.stats.frame import LanguageFrame
from fairbits_research.experiments.laboratory import Laboratory, ModelLab, damage_cells, language_values
from fairbits_research.experiments.result import (
    Answer,
    Result,
    ResultFigure,
    ResultTable,
    Series,
    describe,
    estimate_text,
)

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
    alike = {bits: spearman(language_values(rounded[bits]), _mean_damage(noise[bits])) for bits in BITS[1:]}
    worst = [frame.worst()[1].value for frame in draws]
    return describe(
        "null-controls",
        design=(
            "Round to nearest at 8, 4 and 3 bits. In place of the rounding error, Gaussian noise with the same "
            f"norm in every row of every linear layer, {DRAWS} draws. GPTQ at 4 bits, {DRAWS} draws of calibration "
            "text."
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
            f"Another draw of calibration text changes the worst damage by {max(worst) - min(worst):.4f} bits per byte "
            f"({DRAWS} draws, largest minus smallest): smaller differences between methods may be chance."
        ),
        tables=(_table(rounded, noise, draws),),
        figure=ResultFigure(
            "Damage by rounding and by noise of the same norm, 3 bits",
            "rounding, bits per byte",
            "noise, bits per byte",
            (
                Series(
                    "languages",
                    tuple(language_values(rounded[3]).tolist()),
                    tuple(_mean_damage(noise[3]).tolist()),
                    labels=rounded[3].languages,
                ),
            ),
        ),
    )


def _mean_damage(frames: list[LanguageFrame]) -> Floats:
    mean: Floats = np.mean([language_values(frame) for frame in frames], axis=0)
    return mean


def _noise(lab: ModelLab, bits: int, *, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Yields every linear layer with Gaussian noise whose norm in every row is that of the rounding error."""
    rng = torch.Generator().manual_seed(seed)
    for layer in chain.from_iterable(lab.linear_layers):
        W = matrix(lab.checkpoint, layer)
        error = rounding_error(W, lab.scheme(bits)).norm(dim=1, keepdim=True)
        drawn = torch.randn(W.shape, generator=rng)
        yield layer.name, W + drawn * (error / drawn.norm(dim=1, keepdim=True))


def _table(
    rounded: dict[int, LanguageFrame], noise: dict[int, list[LanguageFrame]], draws: list[LanguageFrame]
) -> ResultTable:
    rows = [(f"round to nearest, {bits} bits", *damage_cells(frame)) for bits, frame in rounded.items()]
    for bits, frames in noise.items():
        rows += [
            (f"Gaussian noise as of {bits} bits, draw {i}", *damage_cells(frame)) for i, frame in enumerate(frames)
        ]
    rows += [(f"GPTQ, 4 bits, calibration draw {i}", *damage_cells(frame)) for i, frame in enumerate(draws)]
    return ResultTable("Added bits per byte", ("what", "worst language", "worst", "mean", "gap"), tuple(rows))
