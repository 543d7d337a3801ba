"""Gateway layers: every set of three blocks kept, all others rounded; are the first and the last block the best?"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.core.units import bits
from fairbits.quantization.allocation import gateway_set, protect_blocks
from fairbits.quantization.policies.precision import quiet_solver, random_sets
from fairbits.quantization.search.block_sensitivity import predicted_sensitivity
from fairbits.stats.frame import LanguageFrame
from fairbits_research.experiments.gaps import LanguageGap, documents_needed
from fairbits_research.experiments.laboratory import Blocks, Laboratory, ModelLab
from fairbits_research.experiments.result import (
    Answer,
    Cell,
    Judgement,
    Result,
    ResultFigure,
    ResultTable,
    Series,
    describe,
    estimate_text,
    sentence,
)

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
            blocks: measure(language_damages(self.frames[blocks], rows))
            for blocks in (self.sets if among is None else among)
        }
        return sorted(value, key=lambda blocks: (value[blocks], blocks))

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
        return tuple(sorted(blocks[0] for blocks in before.rank_sets("worst", rows, among=single)[:KEPT]))

    def program(rows: RowMask) -> Blocks:
        return best_if_additive(np.array([language_damages(frames[kept], rows) for kept in alone]).T)

    before = GatewayTrials(n, frames, ())
    chosen = [choose(rows) for choose in (greedy, program) for rows in before.halves]
    sets = sets_to_try(n, seed=lab.setting.seed, also=(rule, predicted, *chosen))
    frames |= _damage_of_keeping(lab, [blocks for blocks in sets if blocks not in frames], "keeping three blocks")
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
    damages: Floats = np.bincount(code, frame.values[rows], len(frame.languages)) / size
    return damages


def sets_to_try(n_blocks: int, *, seed: int, also: Iterable[Blocks] = ()) -> tuple[Blocks, ...]:
    """Returns all sets of three, or a sample with all that contain both ends if they are too many."""
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
    scheme = lab.scheme(BITS)
    now, damages = set(range(lab.n_blocks)), {}
    with lab.trial.swapped as swapped:
        for i, kept in enumerate(sets):
            lab.report(what, i, len(sets))
            for block in sorted(now - set(kept)):
                lab.replace_rounded(block, scheme)
            swapped.restore(layer.name for block in set(kept) - now for layer in lab.linear_layers[block])
            now, damages[kept] = set(kept), lab.damage()
    return damages


def _predicted_damage(lab: ModelLab) -> Floats:
    """Returns the predicted damage of every language by every block alone, in bits per byte of the evaluation text."""
    setting = lab.setting
    lab.report("predicting", 0, 1)
    predicted = predicted_sensitivity(
        lab.checkpoint, lab.corpus, request=setting.calibration_text, bits=(BITS,), group=setting.group
    )
    masks = [lab.text.lang == code for code in predicted.languages]
    per_byte = [float(lab.trial.predicted[rows].sum() / lab.text.size_bytes[rows].sum()) for rows in masks]
    return bits(predicted.at(BITS) * np.array(per_byte)[:, None])


TOP = (4, 10)
"""Numbers of best sets among which those with both ends are counted; the claim is about the first number."""
SHOWN = 10
"""Sets that are listed."""
KINDS = {"both ends": 2, "one end": 1, "neither": 0}
"""How many of the two ends a set contains."""
CHOSEN = (RULE, GREEDY, PROGRAM, PREDICTED)
"""Ways to choose a set without trying all."""


def gateway_layers(laboratory: Laboratory) -> Result:
    """Returns the result: are the first and the last block the ones to keep?"""
    lab = laboratory.lab()
    if lab.n_blocks <= KEPT:
        raise InputError(f"{lab.checkpoint.target} has {lab.n_blocks} blocks; the experiment needs more than {KEPT}")
    trials, choices = run_trials(lab)
    frames = {name: trials.cross_validate(choice) for name, choice in choices.items()}
    leads = both_ends_lead(trials)
    answer = gateway_answer(list(leads.values()))
    rule = gateway_set(trials.n_blocks, KEPT)
    places = {ranking: trials.rank_sets(ranking, trials.every).index(rule) + 1 for ranking in RANKINGS}
    regret = {name: frame.worst_minus(frames[BEST]) for name, frame in frames.items() if name not in (BEST, NONE)}
    n = len(trials.sets)
    because = (
        f"all of the {_top(trials)} best sets contain both ends in {sum(leads.values())} of {len(leads)} rankings (by "
        f"worst language and by gap, on either half of the documents), and {_braced(rule)} ranks {places['worst']} by "
        f"worst language and {places['gap']} by gap among {n} sets"
    )
    return describe(
        "gateway-layers",
        design=_design(trials),
        subject=laboratory.subject(bits=[BITS], kept=KEPT, sets=n),
        answer=answer,
        verdict=f"{sentence(because)}.",
        meaning=(
            f"Keeping three blocks widens the gap between languages in {count_wider_gaps(trials)} of {n} sets. "
            f"Compared with the best set, the worst damage is larger by {estimate_text(regret[RULE])} bits per byte "
            f"with the documents' set, {estimate_text(regret[PROGRAM])} with the integer program and "
            f"{estimate_text(regret[PREDICTED])} with the predictor. Without trying all sets, the best choice is "
            f"{min(CHOSEN, key=lambda name: regret[name].value)}."
        ),
        tables=(_choices(trials, choices, frames), _places(trials), _sets(trials)),
        figure=_figure(trials),
        judgements=(Judgement("004-26", answer, because, {"sets": n, "rankings_led": sum(leads.values()), **places}),),
        power=documents_needed({"best with both ends against best": regret[ENDS]})
        if answer is Answer.UNDECIDED
        else "",
    )


def both_ends_lead(trials: GatewayTrials) -> dict[tuple[str, int], bool]:
    """Returns, by ranking and half, whether all of the best sets contain both ends."""
    return {
        (ranking, half): all(map(trials.both_ends, trials.rank_sets(ranking, rows)[: _top(trials)]))
        for ranking in RANKINGS
        for half, rows in enumerate(trials.halves)
    }


def gateway_answer(leads: Sequence[bool]) -> Answer:
    """Returns the answer on the claim: supported by all rankings, not supported by none, else undecided."""
    if all(leads):
        return Answer.SUPPORTED
    return Answer.UNDECIDED if any(leads) else Answer.NOT_SUPPORTED


def count_wider_gaps(trials: GatewayTrials) -> int:
    """Returns how many sets have a wider gap than no kept block."""
    before, *after = (np.ptp(language_damages(trials.frames[gap], trials.every)) for gap in ((), *trials.sets))
    return sum(bool(gap > before) for gap in after)


def _top(trials: GatewayTrials) -> int:
    """Returns how many best sets must contain both ends: four, or all such sets in a small model."""
    return min(TOP[0], sum(map(trials.both_ends, trials.sets)))


def _design(trials: GatewayTrials) -> str:
    n, ends = len(trials.sets), sum(map(trials.both_ends, trials.sets))
    return (
        f"{'All' if n == comb(trials.n_blocks, KEPT) else 'A sample of'} {n} sets of {KEPT} of {trials.n_blocks} "
        f"blocks, {ends} of them with both ends: these are kept, all others are rounded to nearest at {BITS} bits. "
        "Sets are ranked by their worst language and by their gap, on each half of the documents. What is chosen on "
        "one half, including the best set, is evaluated on the other. Greedy: the three blocks that, kept alone, help "
        "the worst language most. Integer program and predictor: least worst damage if the damages of single blocks, "
        "measured or predicted from one pass over calibration text, add up."
    )


def _braced(blocks: Blocks) -> str:
    """Returns a set as the documents write it."""
    return f"{{{', '.join(map(str, blocks))}}}"


def _choices(
    trials: GatewayTrials, choices: Mapping[str, BlockChoice], frames: Mapping[str, LanguageFrame]
) -> ResultTable:
    rows: list[tuple[Cell, ...]] = []
    none, best = LanguageGap.of(frames[NONE]), frames[BEST]
    for name, frame in frames.items():
        sets = dict.fromkeys(_braced(choices[name](half)) for half in trials.halves)
        less = "" if name == BEST else estimate_text(frame.worst_minus(best))
        wider = "" if name == NONE else estimate_text(LanguageGap.of(frame).minus(none))
        rows.append((name, " / ".join(sets), estimate_text(frame.worst()[1]), less, estimate_text(frame.gap()), wider))
    columns = ("choice", "blocks", "worst", "worst minus that of the best", "gap", "gap minus that of none")
    return ResultTable(
        "Chosen on one half of the documents, evaluated on the other: bits per byte", columns, tuple(rows)
    )


def _places(trials: GatewayTrials) -> ResultTable:
    ends = list(filter(trials.both_ends, trials.sets))
    chance = len(ends) / len(trials.sets)
    rule = gateway_set(trials.n_blocks, KEPT)
    rows: list[tuple[Cell, ...]] = []
    documents = dict(zip(("all", "first half", "second half"), (trials.every, *trials.halves), strict=True))
    for ranking in RANKINGS:
        for name, those in documents.items():
            order = trials.rank_sets(ranking, those)
            tops = [f"{sum(map(trials.both_ends, order[:top]))} of {len(order[:top])}" for top in TOP]
            first = min(order.index(blocks) for blocks in ends) + 1
            rows.append((ranking, name, _braced(order[0]), order.index(rule) + 1, first, *tops))
    columns = ("ranked by", "documents", "best", f"place of {_braced(rule)}", "first place with both ends")
    title = f"Places among {len(trials.sets)} sets; by chance {chance:.1%} of the best contain both ends"
    return ResultTable(title, (*columns, *(f"both ends in the best {top}" for top in TOP)), tuple(rows))


def _sets(trials: GatewayTrials) -> ResultTable:
    rows = []
    for place, blocks in enumerate(trials.rank_sets("worst", trials.every)[:SHOWN], 1):
        damages = language_damages(trials.frames[blocks], trials.every)
        rows.append((place, _braced(blocks), round(float(damages.max()), 4), round(float(np.ptp(damages)), 4)))
    return ResultTable("The best sets by worst language, all documents", ("place", "kept", "worst", "gap"), tuple(rows))


def _figure(trials: GatewayTrials) -> ResultFigure:
    ends = {0, trials.n_blocks - 1}
    kinds = {name: [e for e in trials.sets if len(ends & set(e)) == k] for name, k in KINDS.items()}
    series = []
    nothing: list[Blocks] = [()]
    for name, sets in {**kinds, NONE: nothing}.items():
        damages = [language_damages(trials.frames[blocks], trials.every) for blocks in sets]
        x, y = tuple(float(damage.max()) for damage in damages), tuple(float(np.ptp(damage)) for damage in damages)
        series.append(Series(name, x, y, labels=tuple(map(_braced, sets))))
    title = f"Three blocks kept, the others at {BITS} bits"
    return ResultFigure(title, "worst language, bits per byte", "gap, bits per byte", tuple(series))
