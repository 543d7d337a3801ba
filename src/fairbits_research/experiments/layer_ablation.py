"""Layer ablation: the outlier blocks at 8 bits, the rest at fewer. How much does disparity fall, and because of κ?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from fairbits.core.errors import InputError
from fairbits.models.scales.scheme import Clip
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.gaps import LanguageGap, documents_needed
from fairbits_research.experiments.laboratory import Blocks, Laboratory, ModelLab, knob_kappa
from fairbits_research.experiments.result import (
    Answer,
    Judgement,
    Result,
    ResultFigure,
    ResultTable,
    Series,
    all_of,
    describe,
    estimate_text,
    sentence,
)

CLIPS: Mapping[str, Clip] = {"absmax": "absmax", "exact clip": "exact"}
HIGH, BITS = 8, (4, 3)
"""Bits of the protected blocks, and of the rest."""
DRAWS = 12
"""Random sets of the same number of blocks."""
ABOUT_HALF = (35.0, 65.0)
"""Percent that count as "about half"."""


@dataclass(frozen=True)
class Ablation:
    """The gaps under one clip: unprotected and with protected outlier blocks by width, with random blocks at 4 bits."""

    none: Mapping[int, LanguageGap]
    outliers: Mapping[int, LanguageGap]
    random: Mapping[Blocks, LanguageGap]

    @property
    def rank(self) -> int:
        """The rank of the outlier blocks among all protected sets, 1 for the narrowest gap."""
        protected = self.outliers[BITS[0]].estimate.value
        return 1 + sum(gap.estimate.value < protected for gap in self.random.values())

    def reduction(self, bits: int) -> Estimate | None:
        """Returns by how many percent protecting the outlier blocks narrows the gap; None if there may be no gap."""
        return self.outliers[bits].reduction_from(self.none[bits])


def layer_ablation(laboratory: Laboratory) -> Result:
    """Returns the result: does disparity fall by half when the outlier blocks are kept at 8 bits?"""
    model, blocks = with_outlier_blocks(laboratory)
    lab = laboratory.lab(model)
    sets = random_sets(lab.n_blocks, blocks, seed=laboratory.setting.seed)
    ablations = _ablations(lab, blocks, sets)
    n = ablations["absmax"].none[BITS[0]].estimate.n
    answer = all_of([falls_by_half(ablation.reduction(BITS[0])) for ablation in ablations.values()])
    reduced = ", ".join(f"{_percent(ablation.reduction(BITS[0]))} ({clip})" for clip, ablation in ablations.items())
    ranks = " and ".join(f"{ablation.rank} ({clip})" for clip, ablation in ablations.items())
    because = f"protecting blocks {_named(blocks)}, with the rest at {BITS[0]} bits, narrows the gap by {reduced}"
    reductions = {clip: ablation.reduction(BITS[0]) for clip, ablation in ablations.items()}
    reported = {clip: ablation for clip, ablation in reductions.items() if ablation is not None}
    return describe(
        "layer-ablation",
        design=(
            f"{_origin(laboratory, blocks)} Their κ is {', '.join(f'{lab.kappa[b]:.3g}' for b in blocks)}. They are "
            f"rounded to {HIGH} bits and the others to {BITS[0]} or {BITS[1]}, with α at the largest weight and with "
            f"that of least squared error. For comparison, at {BITS[0]} bits, {len(sets)} other sets of {len(blocks)} "
            f"blocks at {HIGH} bits, drawn with seed {laboratory.setting.seed}; {_sharing(sets, blocks)} of them "
            f"contain an outlier block. Reductions by resampling the same {n} documents in both runs; "
            f"{ABOUT_HALF[0]:g} to {ABOUT_HALF[1]:g} % counts as about half."
        ),
        subject=laboratory.subject(bits=list(BITS), protected=list(blocks)),
        answer=answer,
        verdict=(f"{sentence(because)}, which is place {ranks} among {len(sets) + 1} sets of the same size."),
        meaning=_meaning(ablations),
        tables=(_table(ablations), _random_table(ablations)),
        figure=_figure(ablations),
        judgements=(
            Judgement("001-18", answer, because, {_key(clip): ablation.value for clip, ablation in reported.items()}),
        ),
        power=documents_needed(reported)
        if len(reported) == len(ablations)
        else f"{n} documents do not show the gap; give more tokens.",
    )


def with_outlier_blocks(laboratory: Laboratory) -> tuple[str, Blocks]:
    """Returns the model and its outlier blocks; a variant with two of them where it has none and they can be inserted.

    Raises where they cannot, with what to do.
    """
    n, blocks = laboratory.lab().n_blocks, laboratory.outliers
    if n < 4 or (blocks and 2 * len(blocks) > n):
        raise InputError(
            f"{len(blocks)} of {n} blocks are outliers; enough other blocks must remain to protect instead"
        )
    added = knob_kappa(n)
    variant = None if blocks else laboratory.knob(added)[0]
    return (laboratory.model, laboratory.require_outliers()) if variant is None else (variant, tuple(added))


def _origin(laboratory: Laboratory, blocks: Blocks) -> str:
    inserted = not laboratory.outliers
    return f"Outliers were inserted into blocks {_named(blocks)}." if inserted else laboratory.lab().outlier_text()


def random_sets(n_blocks: int, outliers: Blocks, *, seed: int) -> tuple[Blocks, ...]:
    """Returns DRAWS other sets of as many blocks as there are outliers; all of them if there are fewer."""
    rng = np.random.default_rng(seed)
    size, sets = len(outliers), set[Blocks]()
    while len(sets) < min(DRAWS, comb(n_blocks, size) - 1):
        drawn = tuple(sorted(rng.choice(n_blocks, size, replace=False).tolist()))
        sets |= {drawn} - {tuple(sorted(outliers))}
    return tuple(sorted(sets))


def falls_by_half(reduction: Estimate | None) -> Answer:
    """Returns whether a reduction in percent is about half: its interval excludes 0 and overlaps ABOUT_HALF."""
    if reduction is None:
        return Answer.UNDECIDED
    low, high = ABOUT_HALF
    if reduction.high < low or reduction.low > high:
        return Answer.NOT_SUPPORTED
    return Answer.SUPPORTED if reduction.low > 0 else Answer.UNDECIDED


def _ablations(lab: ModelLab, outliers: Blocks, sets: Sequence[Blocks]) -> dict[str, Ablation]:
    done, total = 0, len(CLIPS) * (2 * len(BITS) + len(sets))

    def gap(protected: Blocks, bits: int, clip: str) -> LanguageGap:
        nonlocal done
        lab.report("protecting blocks", done, total)
        done += 1
        widths = [HIGH if block in protected else bits for block in range(lab.n_blocks)]
        return LanguageGap.of(lab.rounding_damage(widths, clip=CLIPS[clip]))

    return {
        clip: Ablation(
            none={bits: gap((), bits, clip) for bits in BITS},
            outliers={bits: gap(outliers, bits, clip) for bits in BITS},
            random={blocks: gap(blocks, BITS[0], clip) for blocks in sets},
        )
        for clip in CLIPS
    }


def _meaning(ablations: Mapping[str, Ablation]) -> str:
    if all(ablation.rank == 1 for ablation in ablations.values()):
        return "κ is a good guide to what to protect: no other set that was tried has a smaller estimated gap."
    return (
        "Choose what to protect by measured damage, not by κ: under at least one clip some random blocks have a "
        "smaller estimated gap."
    )


def _sharing(sets: Sequence[Blocks], outliers: Blocks) -> int:
    return sum(not set(outliers).isdisjoint(blocks) for blocks in sets)


def _table(ablations: Mapping[str, Ablation]) -> ResultTable:
    rows = [
        (
            clip,
            bits,
            estimate_text(ablation.none[bits].estimate),
            estimate_text(ablation.outliers[bits].estimate),
            _percent(ablation.reduction(bits)),
        )
        for clip, ablation in ablations.items()
        for bits in BITS
    ]
    columns = ("clip", "bits of the rest", "gap without protection", "outlier blocks protected", "reduction")
    return ResultTable("Gap in bits per byte", columns, tuple(rows))


def _random_table(ablations: Mapping[str, Ablation]) -> ResultTable:
    sets = next(iter(ablations.values())).random
    rows = [
        (
            _named(blocks),
            *(estimate_text(ablation.random[blocks].estimate) for ablation in ablations.values()),
            *(
                _percent(ablation.random[blocks].reduction_from(ablation.none[BITS[0]]))
                for ablation in ablations.values()
            ),
        )
        for blocks in sets
    ]
    columns = ("protected", *(f"gap, {clip}" for clip in ablations), *(f"reduction, {clip}" for clip in ablations))
    return ResultTable(f"Other blocks protected, the rest at {BITS[0]} bits", columns, tuple(rows))


def _figure(ablations: Mapping[str, Ablation]) -> ResultFigure:
    """Returns the figure; x is 0 for no protection, 1 for the outlier blocks, then the random sets."""
    series = []
    for clip, ablation in ablations.items():
        shown = {"none": ablation.none[BITS[0]], "outlier blocks": ablation.outliers[BITS[0]]}
        shown |= {_named(blocks): gap for blocks, gap in ablation.random.items()}
        gaps = (gap.estimate for gap in shown.values())
        series.append(Series.of_estimates(clip, map(float, range(len(shown))), gaps, shown))
    title = f"The gap by what is protected, the rest at {BITS[0]} bits"
    return ResultFigure(title, "protected: none, the outlier blocks, then others", "gap, bits per byte", tuple(series))


def _percent(reduction: Estimate | None) -> str:
    if reduction is None:
        return "an unknown share, because there may be no gap"
    return f"{reduction.value:.0f} % [{reduction.low:.0f}, {reduction.high:.0f}]"


def _named(blocks: Blocks) -> str:
    return " and ".join(map(str, blocks))


def _key(clip: str) -> str:
    return f"reduction_{clip.replace(' ', '_')}"
