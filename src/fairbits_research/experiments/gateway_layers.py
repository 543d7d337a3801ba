"""Gateway layers: every set of k blocks kept, all others rounded; are the first and the last block the best?

D(S), the disparity, is the gap between the worst and the best language when the blocks S are kept; E(S), the
efficiency, is how many times smaller the tensors of the model are than in the source (theorem 3 of document 004).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from fairbits.core.array_checks import Floats
from fairbits.core.checks import whole
from fairbits.core.errors import InputError
from fairbits.core.units import bits
from fairbits.models.io.compressed_tensors import planned_bytes
from fairbits.quantization.allocation import gateway_set, protect_blocks
from fairbits.quantization.policies.precision import quiet_solver, random_sets
from fairbits.quantization.search.block_sensitivity import predicted_sensitivity
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
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
LEAST_GAP, ENDS_GAP = "least gap", "least gap with both ends"
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
    """The sets of blocks, which are compared."""
    ratio: Mapping[Blocks, float] = field(default_factory=dict)
    """E(S), the size of the source over that of the model in which these blocks are kept."""
    kept: int = KEPT

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
    n, k = lab.n_blocks, lab.setting.kept or KEPT
    every = frozenset(range(n))
    single = [(block,) for block in range(n)]
    alone = [tuple(sorted(every - {block})) for block in range(n)]  # one block rounded, all others kept
    frames = _damage_of_keeping(lab, [(), *single, *alone], "keeping or rounding one block")
    rule, predicted = gateway_set(n, k), best_if_additive(_predicted_damage(lab), k)

    def greedy(rows: RowMask) -> Blocks:
        return tuple(sorted(blocks[0] for blocks in before.rank_sets("worst", rows, among=single)[:k]))

    def program(rows: RowMask) -> Blocks:
        return best_if_additive(np.array([language_damages(frames[kept], rows) for kept in alone]).T, k)

    before = GatewayTrials(n, frames, ())
    chosen = [choose(rows) for choose in (greedy, program) for rows in before.halves]
    sets = sets_to_try(n, k, seed=lab.setting.seed, also=(rule, predicted, *chosen))
    frames |= _damage_of_keeping(lab, [blocks for blocks in sets if blocks not in frames], f"keeping {k} blocks")
    trials = GatewayTrials(n, frames, sets, efficiencies(lab, [(), *sets]), k)
    ends = list(filter(trials.both_ends, sets))
    return trials, {
        NONE: lambda _: (),
        BEST: lambda rows: trials.rank_sets("worst", rows)[0],
        ENDS: lambda rows: trials.rank_sets("worst", rows, among=ends)[0],
        LEAST_GAP: lambda rows: trials.rank_sets("gap", rows)[0],
        ENDS_GAP: lambda rows: trials.rank_sets("gap", rows, among=ends)[0],
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


def sets_to_try(n_blocks: int, k: int = KEPT, *, seed: int, also: Iterable[Blocks] = ()) -> tuple[Blocks, ...]:
    """Returns all sets of k blocks; if they are too many, a sample of them and of those with both ends."""
    if comb(n_blocks, k) <= MOST:
        return tuple(combinations(range(n_blocks), k))
    inner = random_sets(n_blocks - 2, k - 2, count=SAMPLE, seed=seed)
    ends = {(0, *(block + 1 for block in some), n_blocks - 1) for some in inner}
    return tuple(sorted({*random_sets(n_blocks, k, count=SAMPLE, seed=seed), *ends, *also}))


def efficiencies(lab: ModelLab, sets: Iterable[Blocks]) -> dict[Blocks, float]:
    """Returns E(S) of every set: bytes of the source / bytes with the blocks S kept and all others at BITS bits."""
    scheme, source = lab.scheme(BITS), planned_bytes(lab.checkpoint, {})
    ratios = {}
    for kept in sets:
        layers = [
            layer.name for block in range(lab.n_blocks) if block not in kept for layer in lab.linear_layers[block]
        ]
        ratios[kept] = source / planned_bytes(lab.checkpoint, dict.fromkeys(layers, scheme))
    return ratios


def best_if_additive(alone: Floats, k: int = KEPT) -> Blocks:
    """Returns the blocks to keep for the least worst damage, if the damages of single blocks add up.

    `alone` is (languages, blocks).
    """
    with quiet_solver():
        return protect_blocks(alone, np.zeros_like(alone), k=k)


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
    if laboratory.setting.sets is not None:
        return compare_sets(laboratory, laboratory.setting.sets)
    k = whole("k", laboratory.setting.kept or KEPT, least=3)
    if lab.n_blocks <= k:
        raise InputError(f"{lab.checkpoint.target} has {lab.n_blocks} blocks; the experiment needs more than {k}")
    trials, choices = run_trials(lab)
    frames = {name: trials.cross_validate(choice) for name, choice in choices.items()}
    leads = both_ends_lead(trials)
    answer = gateway_answer(list(leads.values()))
    rule = gateway_set(trials.n_blocks, k)
    places = {ranking: trials.rank_sets(ranking, trials.every).index(rule) + 1 for ranking in RANKINGS}
    regret = {name: frame.worst_minus(frames[BEST]) for name, frame in frames.items() if name not in (BEST, NONE)}
    n, ends = len(trials.sets), list(filter(trials.both_ends, trials.sets))
    contest = gap_difference(trials, ends, [blocks for blocks in trials.sets if blocks not in ends])
    because = (
        f"all of the {_top(trials)} best sets contain both ends in {sum(leads.values())} of {len(leads)} rankings (by "
        f"worst language and by gap, on either half of the documents), and {_braced(rule)} ranks {places['worst']} by "
        f"worst language and {places['gap']} by gap among {n} sets"
    )
    return describe(
        "gateway-layers",
        design=_design(trials),
        subject=laboratory.subject(bits=[BITS], blocks_kept=k, sets_tried=n),
        answer=answer,
        verdict=f"{sentence(because)}.",
        meaning=(
            f"Keeping {k} blocks widens the gap between languages in {count_wider_gaps(trials)} of {n} sets. The least "
            f"gap with both ends minus the least gap without is {estimate_text(contest)} bits per byte. "
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


def gap_difference(trials: GatewayTrials, some: Sequence[Blocks], others: Sequence[Blocks]) -> Estimate:
    """Returns the least D(S) of some sets minus that of others, each chosen on one half and evaluated on the other."""

    def least(among: Sequence[Blocks]) -> LanguageGap:
        return LanguageGap.of(trials.cross_validate(lambda rows: trials.rank_sets("gap", rows, among=among)[0]))

    return least(some).minus(least(others))


def compare_sets(laboratory: Laboratory, named: Sequence[Sequence[int]]) -> Result:
    """Returns D(S) and E(S) of the sets that the user named, and whether those with both ends are better."""
    lab = laboratory.lab()
    sets = tuple(dict.fromkeys(_named_set(blocks, lab.n_blocks) for blocks in named))
    if len(sets) < 2:
        raise InputError(f"{len(sets)} set of blocks was named; name two or more, such as 0,9,11;2,5,7")
    frames = _damage_of_keeping(lab, [(), *sets], "keeping the named blocks")
    trials = GatewayTrials(lab.n_blocks, frames, sets, efficiencies(lab, [(), *sets]), len(sets[0]))
    ends, sizes = list(filter(trials.both_ends, sets)), {len(blocks) for blocks in sets}
    if not ends or len(ends) == len(sets) or len(sizes) > 1:
        answer, power = Answer.UNDECIDED, ""
        because = "the named sets cannot decide: sets of one size are needed, with both ends and without"
    else:
        contest = gap_difference(trials, ends, [blocks for blocks in sets if blocks not in ends])
        answer = Answer.NOT_SUPPORTED if contest.low > 0 else Answer.SUPPORTED if contest.high < 0 else Answer.UNDECIDED
        power = documents_needed({"with both ends against without": contest}) if answer is Answer.UNDECIDED else ""
        because = f"D of the best named set with both ends minus that of the best without is {estimate_text(contest)}"
    none = LanguageGap.of(frames[()])
    wider = sum(LanguageGap.of(frames[blocks]).minus(none).low > 0 for blocks in sets)
    return describe(
        "gateway-layers",
        design=(
            f"{len(sets)} named sets of {trials.n_blocks} blocks: these are kept, all others are rounded to nearest at "
            f"{BITS} bits. D(S) is the gap between the worst and the best language, E(S) the size of the source over "
            "that of the model. The best of several sets is chosen on one half of the documents and evaluated on the "
            "other."
        ),
        subject=laboratory.subject(bits=[BITS], sets_tried=len(sets)),
        answer=answer,
        verdict=f"{sentence(because)}.",
        meaning=f"The gap is wider than with no block kept, beyond its interval, in {wider} of {len(sets)} sets.",
        tables=(_sets(trials),),
        figure=_figure(trials),
        power=power,
    )


def _named_set(blocks: Sequence[int], n_blocks: int) -> Blocks:
    if len(set(blocks)) in (0, n_blocks):
        raise InputError(f"a set has {len(set(blocks))} of {n_blocks} blocks; it must have some and leave some out")
    return tuple(sorted({whole("a block of a set", block, least=0, most=n_blocks - 1) for block in blocks}))


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
    n, k, ends = len(trials.sets), trials.kept, sum(map(trials.both_ends, trials.sets))
    return (
        f"{'All' if n == comb(trials.n_blocks, k) else 'A sample of'} {n} sets of {k} of {trials.n_blocks} "
        f"blocks, {ends} of them with both ends: these are kept, all others are rounded to nearest at {BITS} bits. "
        "Sets are ranked by their worst language and by their gap, on each half of the documents. What is chosen on "
        "one half, including the best set, is evaluated on the other. Greedy: the blocks that, kept alone, help the "
        "worst language most. Integer program and predictor: least worst damage if the damages of single blocks, "
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
    rule = gateway_set(trials.n_blocks, trials.kept)
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
    """Returns D(S), E(S) and both places of the best sets by worst language, the documents' set, and none."""
    order = {ranking: trials.rank_sets(ranking, trials.every) for ranking in RANKINGS}
    shown, rule = order["worst"][:SHOWN], gateway_set(trials.n_blocks, trials.kept) if trials.kept > 1 else ()
    rows: list[tuple[Cell, ...]] = []
    for blocks in (*shown, *([rule] if rule in trials.sets and rule not in shown else []), ()):
        frame = trials.frames[blocks]
        places = [ranked.index(blocks) + 1 if blocks else "–" for ranked in order.values()]
        ratio = f"{trials.ratio[blocks]:.3f}" if blocks in trials.ratio else "–"
        rows.append((_braced(blocks), *places, estimate_text(frame.worst()[1]), estimate_text(frame.gap()), ratio))
    columns = ("kept", "place by worst", "place by D(S)", "worst", "D(S)", "E(S)")
    title = "The best sets by worst language, all documents: disparity D(S) in bits per byte, efficiency E(S)"
    return ResultTable(title, columns, tuple(rows))


def _figure(trials: GatewayTrials) -> ResultFigure:
    ends = {0, trials.n_blocks - 1}
    kinds = {name: [e for e in trials.sets if len(ends & set(e)) == k] for name, k in KINDS.items()}
    series = []
    nothing: list[Blocks] = [()]
    for name, sets in {**kinds, NONE: nothing}.items():
        damages = [language_damages(trials.frames[blocks], trials.every) for blocks in sets]
        x, y = tuple(float(damage.max()) for damage in damages), tuple(float(np.ptp(damage)) for damage in damages)
        series.append(Series(name, x, y, labels=tuple(map(_braced, sets))))
    title = f"{trials.kept} blocks kept, the others at {BITS} bits"
    return ResultFigure(title, "worst language, bits per byte", "gap, bits per byte", tuple(series))
