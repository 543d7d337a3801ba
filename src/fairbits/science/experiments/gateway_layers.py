"""Gateway layers: every set of three blocks kept as they are, all others rounded; are the first and the last best?"""

from collections.abc import Mapping, Sequence
from math import comb

import numpy as np

from fairbits.errors import InputError
from fairbits.science.experiments.gaps import Gap, needed
from fairbits.science.experiments.gateway_trials import (
    BEST,
    BITS,
    ENDS,
    GREEDY,
    KEPT,
    NONE,
    PREDICTED,
    PROGRAM,
    RANKINGS,
    RULE,
    Blocks,
    Choice,
    Trials,
    damages,
    measured,
)
from fairbits.science.experiments.laboratory import Laboratory
from fairbits.science.experiments.result import Answer, Cell, Figure, Judgement, Result, Series, Table, written
from fairbits.stats import LanguageFrame
from fairbits.theory.allocation import gateway_set

NAME, CLAIM = "gateway-layers", "004-26"
TOP = (4, 10)
"""Of the best so many sets it is counted how many hold both ends; the claim is on the first number."""
SHOWN = 10
"""Sets that are listed."""
KINDS = {"both ends": 2, "one end": 1, "neither": 0}
"""How many of the two ends a set holds."""
CHOSEN = (RULE, GREEDY, PROGRAM, PREDICTED)
"""Ways to choose that do not try all sets."""


def gateway_layers(laboratory: Laboratory) -> Result:
    """Are the first and the last block the ones to keep?"""
    lab = laboratory.lab()
    if lab.n_blocks <= KEPT:
        raise InputError(f"{lab.checkpoint.target} has {lab.n_blocks} blocks; sets of {KEPT} need a model of more")
    trials, choices = measured(lab)
    frames = {name: trials.crossed(choice) for name, choice in choices.items()}
    leads = leading(trials)
    answer = gateway_answer(list(leads.values()))
    rule = gateway_set(trials.n_blocks, KEPT)
    places = {each: trials.ranked(each, trials.every).index(rule) + 1 for each in RANKINGS}
    regret = {name: frame.worst_minus(frames[BEST]) for name, frame in frames.items() if name not in (BEST, NONE)}
    n = len(trials.sets)
    because = (
        f"both ends are in all of the {_top(trials)} best sets in {sum(leads.values())} of {len(leads)} rankings (by "
        f"worst language and by gap, on either half of the documents), and {_braced(rule)} "
        f"ranks {places['worst']} by worst language and {places['gap']} by gap among {n} sets"
    )
    return Result(
        name=NAME,
        title="Gateway layers",
        question="Are the first and the last layer the ones to keep in high precision?",
        predicted="The best three layers to keep are {0, 9, 11} of 12, and the four best sets all hold {0, 11}.",
        design=_design(trials),
        subject=laboratory.subject(bits=[BITS], kept=KEPT, sets=n),
        answer=answer,
        verdict=f"{because[0].upper()}{because[1:]}.",
        meaning=(
            f"Keeping three blocks widens the gap between languages in {raising(trials)} of {n} sets. Against the best "
            f"set the worst language loses {written(regret[RULE])} bits per byte by the documents' set, "
            f"{written(regret[PROGRAM])} by the integer program and {written(regret[PREDICTED])} by the predictor; of "
            f"the ways that do not try all sets, the least by {min(CHOSEN, key=lambda name: regret[name].value)}."
        ),
        tables=(_choices(trials, choices, frames), _places(trials), _sets(trials)),
        figure=_figure(trials),
        judgements=(Judgement(CLAIM, answer, because, {"sets": n, "rankings_led": sum(leads.values()), **places}),),
        power=needed({"best with both ends against best": regret[ENDS]}) if answer is Answer.UNDECIDED else "",
    )


def leading(trials: Trials) -> dict[tuple[str, int], bool]:
    """Returns, by ranking and half, whether all of the best sets hold both ends."""
    return {
        (ranking, half): all(map(trials.both_ends, trials.ranked(ranking, rows)[: _top(trials)]))
        for ranking in RANKINGS
        for half, rows in enumerate(trials.halves)
    }


def gateway_answer(leads: Sequence[bool]) -> Answer:
    """Returns what the rankings say of the claim: supported by all of them, not by none.

    >>> gateway_answer([True, False, False, False]).value
    'undecided'
    """
    if all(leads):
        return Answer.SUPPORTED
    return Answer.UNDECIDED if any(leads) else Answer.NOT_SUPPORTED


def raising(trials: Trials) -> int:
    """Returns in how many sets the gap is wider than with no block kept."""
    before, *after = (np.ptp(damages(trials.frames[each], trials.every)) for each in ((), *trials.sets))
    return sum(bool(each > before) for each in after)


def _top(trials: Trials) -> int:
    """Returns how many best sets must hold both ends: four, or all there are in a small model."""
    return min(TOP[0], sum(map(trials.both_ends, trials.sets)))


def _design(trials: Trials) -> str:
    n, ends = len(trials.sets), sum(map(trials.both_ends, trials.sets))
    return (
        f"{'All' if n == comb(trials.n_blocks, KEPT) else 'A sample of'} {n} sets of {KEPT} of {trials.n_blocks} "
        f"blocks, {ends} of them with both ends: these stay as they are, all others are rounded to nearest at {BITS} "
        "bits. Sets are ranked by their worst language and by their gap, on each half of the documents. What is chosen "
        "on one half is judged on the other, the best set too. Greedy: the three whose keeping alone helps the worst "
        "language most; integer program and predictor: least worst damage if that of single blocks, measured or "
        "predicted from one pass over calibration text, adds up."
    )


def _braced(blocks: Blocks) -> str:
    """Returns a set as the documents write it."""
    return f"{{{', '.join(map(str, blocks))}}}"


def _choices(trials: Trials, choices: Mapping[str, Choice], frames: Mapping[str, LanguageFrame]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    none, best = Gap.of(frames[NONE]), frames[BEST]
    for name, frame in frames.items():
        sets = dict.fromkeys(_braced(choices[name](half)) for half in trials.halves)
        less = "" if name == BEST else written(frame.worst_minus(best))
        wider = "" if name == NONE else written(Gap.of(frame).minus(none))
        rows.append((name, " / ".join(sets), written(frame.worst()[1]), less, written(frame.gap()), wider))
    columns = ("choice", "blocks", "worst", "worst less that of the best", "gap", "gap less that of none")
    return Table("Chosen on one half of the documents, judged on the other: bits per byte", columns, tuple(rows))


def _places(trials: Trials) -> Table:
    ends = list(filter(trials.both_ends, trials.sets))
    chance = len(ends) / len(trials.sets)
    rule = gateway_set(trials.n_blocks, KEPT)
    rows: list[tuple[Cell, ...]] = []
    documents = dict(zip(("all", "first half", "second half"), (trials.every, *trials.halves), strict=True))
    for ranking in RANKINGS:
        for name, those in documents.items():
            order = trials.ranked(ranking, those)
            tops = [f"{sum(map(trials.both_ends, order[:top]))} of {len(order[:top])}" for top in TOP]
            first = min(order.index(each) for each in ends) + 1
            rows.append((ranking, name, _braced(order[0]), order.index(rule) + 1, first, *tops))
    columns = ("ranked by", "documents", "best", f"place of {_braced(rule)}", "first place with both ends")
    title = f"Places among {len(trials.sets)} sets; by chance {chance:.1%} of the best hold both ends"
    return Table(title, (*columns, *(f"both ends in the best {top}" for top in TOP)), tuple(rows))


def _sets(trials: Trials) -> Table:
    rows = []
    for place, each in enumerate(trials.ranked("worst", trials.every)[:SHOWN], 1):
        found = damages(trials.frames[each], trials.every)
        rows.append((place, _braced(each), round(float(found.max()), 4), round(float(np.ptp(found)), 4)))
    return Table("The best sets by worst language, all documents", ("place", "kept", "worst", "gap"), tuple(rows))


def _figure(trials: Trials) -> Figure:
    ends = {0, trials.n_blocks - 1}
    kinds = {name: [e for e in trials.sets if len(ends & set(e)) == k] for name, k in KINDS.items()}
    series = []
    nothing: list[Blocks] = [()]
    for name, sets in {**kinds, NONE: nothing}.items():
        found = [damages(trials.frames[each], trials.every) for each in sets]
        x, y = tuple(float(each.max()) for each in found), tuple(float(np.ptp(each)) for each in found)
        series.append(Series(name, x, y, labels=tuple(map(_braced, sets))))
    title = f"Three blocks kept, the others at {BITS} bits"
    return Figure(title, "worst language, bits per byte", "gap, bits per byte", tuple(series))
