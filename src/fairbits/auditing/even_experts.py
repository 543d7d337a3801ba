"""Calibration samples that reach the experts which would otherwise get the least text of a language.

Every language keeps as many samples as it would have without the choice; only which ones they are differs. A
heuristic: it evens out what calibration knows of the experts; whether this lowers the damage is another question.
"""

import heapq
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from fairbits.auditing.expert_use import LEAST_POSITIONS
from fairbits.core.checks import instance, whole
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.forward.expert_pass import count_by_document
from fairbits.forward.experts import Counts
from fairbits.forward.tokenize import text_of_samples
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.mix import interleave
from fairbits.text.mix_file import Mix, Sample


def even_experts(
    checkpoint: Checkpoint, mix: Mix, *, one_in: int = 4, device: str = "cpu", progress: Progress | None = None
) -> Mix:
    """Returns one in `one_in` of the samples of every language of a mix, those that even out the text of its experts.

    With c the positions of a language that reach an expert of a block, the samples are chosen to make Σ log(1 + c/32)
    over all experts large, one after the other (`choose_rows`). A note says how many pairs of expert and language get
    too little text, with the choice and with the first samples instead.
    """
    instance("mix", mix, Mix)
    by_language = {code: [sample for sample in mix.samples if sample.lang == code] for code in mix.shares}
    whole("one_in", one_in, least=2)
    for code, samples in by_language.items():
        if len(samples) < one_in:
            raise InputError(
                f"{code} has {len(samples)} samples, of which one in {one_in} is to be chosen; there must be at "
                f"least {one_in}: give more text, shorten the sequence, or choose one in fewer"
            )
    text = text_of_samples(checkpoint, list(chain.from_iterable(by_language.values())))
    blocks = count_by_document(checkpoint, text, device=device, progress=progress)
    counts = np.concatenate([block.counts for block in blocks], axis=1)
    chosen: dict[str, Sequence[Sample]] = {}
    before = after = start = 0
    for code, samples in by_language.items():
        rows, number = counts[start : start + len(samples)], len(samples) // one_in
        kept = sorted(choose_rows(rows, number))
        chosen[code] = [samples[i] for i in kept]
        before += _too_little_text(rows[:number])
        after += _too_little_text(rows[kept])
        start += len(samples)
    pairs = counts.shape[1] * len(by_language)
    note = (
        f"one in {one_in} samples chosen by the experts that they reach: {after:,} of {pairs:,} pairs of expert and "
        f"language get fewer than {LEAST_POSITIONS} positions ({before:,} without the choice)"
    )
    budget = None if mix.budget is None else mix.budget // one_in
    return replace(mix, samples=interleave(chosen, mix.seed), budget=budget, notes=(*mix.notes, note))


def choose_rows(counts: Counts, number: int) -> list[int]:
    """Returns `number` rows whose sums c of columns have a large Σ log(1 + c/32), in the order of their choice.

    Each next row is the one that adds most, the first of several. As the sum of concave functions of c is submodular,
    this reaches at least 1 − 1/e of the largest value, and a gain computed earlier bounds the present one.

    >>> choose_rows(np.array([[64, 0], [60, 2], [0, 64]]), 2)
    [1, 2]
    """
    total = np.zeros(counts.shape[1])

    def gain(row: int) -> float:
        return float(np.log1p(counts[row] / (LEAST_POSITIONS + total)).sum())

    bounds = [(-gain(row), row) for row in range(len(counts))]
    heapq.heapify(bounds)
    chosen: list[int] = []
    while len(chosen) < number:
        _, row = heapq.heappop(bounds)
        current = -gain(row), row
        if bounds and current > bounds[0]:
            heapq.heappush(bounds, current)
            continue
        chosen.append(row)
        total += counts[row]
    return chosen


def _too_little_text(rows: Counts) -> int:
    return int((rows.sum(0) < LEAST_POSITIONS).sum())
