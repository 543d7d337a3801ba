"""Trials of gateway layers: the damage with different sets of blocks left unrounded, and ways to choose a set."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.core.units import bits
from fairbits.models.scales.scheme import Scheme, within_rows
from fairbits.quantization.allocation import gateway_set, protect_blocks
from fairbits.quantization.policies.precision import quiet_solver, random_sets
from fairbits.quantization.search.block_sensitivity import predicted_sensitivity
from fairbits.stats.frame import LanguageFrame
from fairbits_research.experiments.laboratory import Blocks, ModelLab

BITS, KEPT = 3, 3
MOST, SAMPLE = 300, 220
"""Up to MOST sets are all tried; of more, SAMPLE random ones and all that contain both ends."""
RANKINGS: Mapping[str, Callable[[Floats], float]] = {
    "worst": lambda damage: float(damage.max()),
    "gap": lambda damage: float(np.ptp(damage)),
}
"""The criteria by which sets are ranked, from the damages of all languages."""
BEST, ENDS, RULE, NONE = "best set", "best set with both ends", "the documents' set", "none kept"
GREEDY, PREDICTED, PROGRAM = "greedy", "predictor", "integer program"

RowMask = NDArray[np.bool_]
BlockChoice = Callable[[RowMask], Blocks]
"""A way to choose a set from some of the records."""


@dataclass(frozen=True, eq=False)
class GatewayTrials:
    """The damage by the set of kept blocks. Documents alternate between two halves."""

    n_blocks: int
    frames: Mapping[Blocks, LanguageFrame]
    sets: tuple[Blocks, ...]
    """The sets of three blocks, which are compared."""

    @property
    def every(self) -> RowMask:
        """All records."""
        return np.ones(len(self.frames[()].lang), dtype=np.bool_)

    @property
    def halves(self) -> tuple[RowMask, RowMask]:
        """Which records belong to each half."""
        odd = np.unique(self.frames[()].document, return_inverse=True)[1] % 2 == 1
        return ~odd, odd

    def rank_sets(self, ranking: str, rows: RowMask, *, among: Sequence[Blocks] | None = None) -> list[Blocks]:
        """Returns the sets in order, the best on some records first."""
        measure = RANKINGS[ranking]
        value = {
            each: measure(language_damages(self.frames[each], rows)) for each in (self.sets if among is None else among)
        }
        return sorted(value, key=lambda each: (value[each], each))

    def cross_validate(self, choice: BlockChoice) -> LanguageFrame:
        """Returns the damage of a choice, each half of the documents with the set chosen on the other half.

        A choice evaluated on the documents it was made on would look better than it is.
        """
        even, odd = self.halves
        on_even, on_odd = self.frames[choice(odd)], self.frames[choice(even)]
        return replace(on_even, values=np.where(even, on_even.values, on_odd.values))

    def both_ends(self, blocks: Blocks) -> bool:
        """Returns whether the first and the last block are among these."""
        return {0, self.n_blocks - 1} <= set(blocks)


def run_trials(lab: ModelLab) -> tuple[GatewayTrials, dict[str, BlockChoice]]:
    """Returns the damage of all sets, and the ways to choose a set from some of the records."""
    n = lab.n_blocks
    every = frozenset(range(n))
    single = [(block,) for block in range(n)]
    alone = [tuple(sorted(every - {block})) for block in range(n)]  # one block rounded, all others kept
    frames = _damage_of_keeping(lab, [(), *single, *alone], "keeping or rounding one block")
    rule, predicted = gateway_set(n, KEPT), best_if_additive(_predicted_damage(lab))

    def greedy(rows: RowMask) -> Blocks:
        return tuple(sorted(each[0] for each in before.rank_sets("worst", rows, among=single)[:KEPT]))

    def program(rows: RowMask) -> Blocks:
        return best_if_additive(np.array([language_damages(frames[each], rows) for each in alone]).T)

    before = GatewayTrials(n, frames, ())
    chosen = [choose(rows) for choose in (greedy, program) for rows in before.halves]
    sets = sets_to_try(n, seed=lab.setting.seed, also=(rule, predicted, *chosen))
    frames |= _damage_of_keeping(lab, [each for each in sets if each not in frames], "keeping three blocks")
    trials = GatewayTrials(n, frames, sets)
    ends = list(filter(trials.both_ends, sets))
    return trials, {
        NONE: lambda _: (),
        BEST: lambda rows: trials.rank_sets("worst", rows)[0],
        ENDS: lambda rows: trials.rank_sets("worst", rows, among=ends)[0],
        RULE: lambda _: rule,
        GREEDY: greedy,
        PROGRAM: program,
        PREDICTED: lambda _: predicted,
    }


def language_damages(frame: LanguageFrame, rows: RowMask) -> Floats:
    """Returns the damage of every language on some records of a frame, without intervals."""
    code = np.unique(frame.lang, return_inverse=True)[1][rows]
    size = np.bincount(code, frame.weights[rows], len(frame.languages))
    if not (size > 0).all():
        short = frame.languages[int(np.argmin(size))]
        raise InputError(f"{short} has too few documents for two halves; give more tokens")
    found: Floats = np.bincount(code, frame.values[rows], len(frame.languages)) / size
    return found


def sets_to_try(n_blocks: int, *, seed: int, also: Iterable[Blocks] = ()) -> tuple[Blocks, ...]:
    """Returns all sets of three, or a sample with all that contain both ends if they are too many.

    >>> len(sets_to_try(12, seed=0)), len(sets_to_try(24, seed=0)) >= 220
    (220, True)
    """
    if comb(n_blocks, KEPT) <= MOST:
        return tuple(combinations(range(n_blocks), KEPT))
    ends = {(0, inner, n_blocks - 1) for inner in range(1, n_blocks - 1)}
    return tuple(sorted({*random_sets(n_blocks, KEPT, count=SAMPLE, seed=seed), *ends, *also}))


def best_if_additive(alone: Floats) -> Blocks:
    """Returns the blocks to keep for the least worst damage, if the damages of single blocks add up.

    `alone` is (languages, blocks).
    """
    with quiet_solver():
        return protect_blocks(alone, np.zeros_like(alone), k=KEPT)


def _damage_of_keeping(lab: ModelLab, sets: Sequence[Blocks], what: str) -> dict[Blocks, LanguageFrame]:
    """Returns the damage of every set; from one to the next only the blocks in which they differ are replaced."""
    group = lab.setting.group
    scheme = Scheme(BITS, within_rows(group), "absmax", "twos")
    now, found = set(range(lab.n_blocks)), {}
    with lab.trial.swapped as swapped:
        for i, kept in enumerate(sets):
            lab.report(what, i, len(sets))
            for block in sorted(now - set(kept)):
                lab.replace_rounded(block, scheme)
            swapped.restore(each.name for block in set(kept) - now for each in lab.linear_maps[block])
            now, found[kept] = set(kept), lab.damage()
    return found


def _predicted_damage(lab: ModelLab) -> Floats:
    """Returns the predicted damage of every language by every block alone, in bits per byte of the evaluation text."""
    own = lab.setting
    lab.report("predicting", 0, 1)
    found = predicted_sensitivity(
        lab.checkpoint, lab.corpus, request=own.calibration_text, bits=(BITS,), group=own.group
    )
    rows = [lab.text.lang == code for code in found.languages]
    per_byte = [float(lab.trial.predicted[own].sum() / lab.text.size_bytes[own].sum()) for own in rows]
    return bits(found.at(BITS) * np.array(per_byte)[:, None])
