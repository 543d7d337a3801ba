"""Layer ablation: the outlier blocks at 8 bits, the rest at fewer. How much does disparity fall, and because of κ?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from fairbits.core.errors import InputError
from fairbits.kurtosis.checklist import outliers_above_threshold
from fairbits.models.scales.scheme import Clip
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.gaps import LanguageGap, documents_needed
from fairbits_research.experiments.laboratory import Blocks, Laboratory, ModelLab, outlier_blocks
from fairbits_research.experiments.result import Answer, Figure, Judgement, Result, Series, Table, all_of, estimate_text

NAME = "layer-ablation"
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
        own = self.outliers[BITS[0]].estimate.value
        return 1 + sum(gap.estimate.value < own for gap in self.random.values())

    def reduction(self, bits: int) -> Estimate | None:
        """Returns by how many percent protecting the outlier blocks narrows the gap; None if there may be no gap."""
        return self.outliers[bits].reduction_from(self.none[bits])


def layer_ablation(laboratory: Laboratory) -> Result:
    """Returns the result: does disparity fall by half when the outlier blocks are kept at 8 bits?"""
    model, blocks = with_outlier_blocks(laboratory)
    lab = laboratory.lab(model)
    sets = random_sets(lab.n_blocks, blocks, seed=laboratory.setting.seed)
    found = _ablations(lab, blocks, sets)
    n = found["absmax"].none[BITS[0]].estimate.n
    answer = all_of([falls_by_half(each.reduction(BITS[0])) for each in found.values()])
    reduced = ", ".join(f"{_percent(each.reduction(BITS[0]))} ({clip})" for clip, each in found.items())
    ranks = " and ".join(f"{each.rank} ({clip})" for clip, each in found.items())
    because = f"protecting blocks {_named(blocks)}, with the rest at {BITS[0]} bits, narrows the gap by {reduced}"
    reductions = {clip: each.reduction(BITS[0]) for clip, each in found.items()}
    known = {clip: each for clip, each in reductions.items() if each is not None}
    return Result(
        name=NAME,
        title="Protecting the outlier layers",
        question="Does disparity fall by half when the outlier blocks have 8 bits, and would other blocks do as well?",
        predicted="With the outlier layers at 8 bits and the rest at 4, disparity falls by about half.",
        design=(
            f"Blocks {_named(blocks)} have κ of {' and '.join(f'{lab.kappa[b]:.0f}' for b in blocks)}. They are "
            f"rounded to {HIGH} bits and the others to {BITS[0]} or {BITS[1]}, with α at the largest weight and with "
            f"that of least squared error. For comparison, at {BITS[0]} bits, {len(sets)} other sets of {len(blocks)} "
            f"blocks at {HIGH} bits, drawn with seed {laboratory.setting.seed}; {_sharing(sets, blocks)} of them "
            f"contain an outlier block. Reductions by resampling the same {n} documents in both runs; "
            f"{ABOUT_HALF[0]:g} to {ABOUT_HALF[1]:g} % counts as about half."
        ),
        subject=laboratory.subject(bits=list(BITS), protected=list(blocks)),
        answer=answer,
        verdict=(
            f"{because[0].upper()}{because[1:]}, which is place {ranks} among {len(sets) + 1} sets of the same size."
        ),
        meaning=_meaning(found),
        tables=(_table(found), _random_table(found)),
        figure=_figure(found),
        judgements=(Judgement("001-18", answer, because, {_key(clip): each.value for clip, each in known.items()}),),
        power=documents_needed(known)
        if len(known) == len(found)
        else f"{n} documents do not show the gap; give more tokens.",
    )


def with_outlier_blocks(laboratory: Laboratory) -> tuple[str, Blocks]:
    """Returns the model and its outlier blocks (κ > 100); a variant with two of them where it has none."""
    lab = laboratory.lab()
    own = outliers_above_threshold(lab.kappa).blocks
    n = lab.n_blocks
    if n < 4 or (own and 2 * len(own) > n):
        raise InputError(
            f"{len(own or ())} of {n} blocks are outliers; enough other blocks must remain to protect instead"
        )
    if own:
        return laboratory.setting.model, own
    added = outlier_blocks(n)
    return laboratory.with_outliers(added), tuple(added)


def random_sets(n_blocks: int, outliers: Blocks, *, seed: int) -> tuple[Blocks, ...]:
    """Returns DRAWS different sets of as many blocks as there are outliers, other than these; all if there are fewer.

    >>> random_sets(4, (1, 2), seed=0)
    ((0, 1), (0, 2), (0, 3), (1, 3), (2, 3))
    """
    rng = np.random.default_rng(seed)
    size, found = len(outliers), set[Blocks]()
    while len(found) < min(DRAWS, comb(n_blocks, size) - 1):
        drawn = tuple(sorted(rng.choice(n_blocks, size, replace=False).tolist()))
        found |= {drawn} - {tuple(sorted(outliers))}
    return tuple(sorted(found))


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
            random={each: gap(each, BITS[0], clip) for each in sets},
        )
        for clip in CLIPS
    }


def _meaning(found: Mapping[str, Ablation]) -> str:
    if all(each.rank == 1 for each in found.values()):
        return "κ is a good guide to what to protect: no other set that was tried has a smaller estimated gap."
    return (
        "Choose what to protect by measured damage, not by κ: under at least one clip some random blocks have a "
        "smaller estimated gap."
    )


def _sharing(sets: Sequence[Blocks], outliers: Blocks) -> int:
    return sum(not set(outliers).isdisjoint(each) for each in sets)


def _table(found: Mapping[str, Ablation]) -> Table:
    rows = [
        (
            clip,
            bits,
            estimate_text(each.none[bits].estimate),
            estimate_text(each.outliers[bits].estimate),
            _percent(each.reduction(bits)),
        )
        for clip, each in found.items()
        for bits in BITS
    ]
    columns = ("clip", "bits of the rest", "gap without protection", "outlier blocks protected", "reduction")
    return Table("Gap in bits per byte", columns, tuple(rows))


def _random_table(found: Mapping[str, Ablation]) -> Table:
    sets = next(iter(found.values())).random
    rows = [
        (
            _named(blocks),
            *(estimate_text(each.random[blocks].estimate) for each in found.values()),
            *(_percent(each.random[blocks].reduction_from(each.none[BITS[0]])) for each in found.values()),
        )
        for blocks in sets
    ]
    columns = ("protected", *(f"gap, {clip}" for clip in found), *(f"reduction, {clip}" for clip in found))
    return Table(f"Other blocks protected, the rest at {BITS[0]} bits", columns, tuple(rows))


def _figure(found: Mapping[str, Ablation]) -> Figure:
    """Returns the figure; x is 0 for no protection, 1 for the outlier blocks, then the random sets."""
    series = []
    for clip, each in found.items():
        shown = {"none": each.none[BITS[0]], "outlier blocks": each.outliers[BITS[0]]}
        shown |= {_named(blocks): gap for blocks, gap in each.random.items()}
        value, low, high = zip(
            *((g.estimate.value, g.estimate.low, g.estimate.high) for g in shown.values()), strict=True
        )
        series.append(Series(clip, tuple(map(float, range(len(shown)))), value, low, high, tuple(shown)))
    title = f"The gap by what is protected, the rest at {BITS[0]} bits"
    return Figure(title, "protected: none, the outlier blocks, then others", "gap, bits per byte", tuple(series))


def _percent(reduction: Estimate | None) -> str:
    if reduction is None:
        return "an unknown share, because there may be no gap"
    return f"{reduction.value:.0f} % [{reduction.low:.0f}, {reduction.high:.0f}]"


def _named(blocks: Blocks) -> str:
    return " and ".join(map(str, blocks))


def _key(clip: str) -> str:
    return f"reduction_{clip.replace(' ', '_')}"
