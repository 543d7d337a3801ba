"""Gateway layers: every set of three blocks kept, all others rounded; are the first and the last block the best?"""

from collections.abc import Mapping, Sequence
from math import comb

import numpy as np

from fairbits.core.errors import InputError
from fairbits.quantization.allocation import gateway_set
from fairbits.stats.frame import LanguageFrame
from fairbits_research.experiments.gaps import LanguageGap, documents_needed
from fairbits_research.experiments.gateway_trials import (
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
    BlockChoice,
    GatewayTrials,
    language_damages,
    run_trials,
)
from fairbits_research.experiments.laboratory import Blocks, Laboratory
from fairbits_research.experiments.result import Answer, Cell, Figure, Judgement, Result, Series, Table, estimate_text

NAME, CLAIM = "gateway-layers", "004-26"
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
    places = {each: trials.rank_sets(each, trials.every).index(rule) + 1 for each in RANKINGS}
    regret = {name: frame.worst_minus(frames[BEST]) for name, frame in frames.items() if name not in (BEST, NONE)}
    n = len(trials.sets)
    because = (
        f"all of the {_top(trials)} best sets contain both ends in {sum(leads.values())} of {len(leads)} rankings (by "
        f"worst language and by gap, on either half of the documents), and {_braced(rule)} ranks {places['worst']} by "
        f"worst language and {places['gap']} by gap among {n} sets"
    )
    return Result(
        name=NAME,
        title="Gateway layers",
        question="Are the first and the last layer the ones to keep in high precision?",
        predicted="The best three layers to keep are {0, 9, 11} of 12, and the four best sets all contain {0, 11}.",
        design=_design(trials),
        subject=laboratory.subject(bits=[BITS], kept=KEPT, sets=n),
        answer=answer,
        verdict=f"{because[0].upper()}{because[1:]}.",
        meaning=(
            f"Keeping three blocks widens the gap between languages in {count_wider_gaps(trials)} of {n} sets. "
            f"Compared with the best set, the worst damage is larger by {estimate_text(regret[RULE])} bits per byte "
            f"with the documents' set, {estimate_text(regret[PROGRAM])} with the integer program and "
            f"{estimate_text(regret[PREDICTED])} with the predictor. Without trying all sets, the best choice is "
            f"{min(CHOSEN, key=lambda name: regret[name].value)}."
        ),
        tables=(_choices(trials, choices, frames), _places(trials), _sets(trials)),
        figure=_figure(trials),
        judgements=(Judgement(CLAIM, answer, because, {"sets": n, "rankings_led": sum(leads.values()), **places}),),
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
    """Returns the answer on the claim: supported by all rankings, not supported by none, else undecided.

    >>> gateway_answer([True, False, False, False]).value
    'undecided'
    """
    if all(leads):
        return Answer.SUPPORTED
    return Answer.UNDECIDED if any(leads) else Answer.NOT_SUPPORTED


def count_wider_gaps(trials: GatewayTrials) -> int:
    """Returns how many sets have a wider gap than no kept block."""
    before, *after = (np.ptp(language_damages(trials.frames[each], trials.every)) for each in ((), *trials.sets))
    return sum(bool(each > before) for each in after)


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


def _choices(trials: GatewayTrials, choices: Mapping[str, BlockChoice], frames: Mapping[str, LanguageFrame]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    none, best = LanguageGap.of(frames[NONE]), frames[BEST]
    for name, frame in frames.items():
        sets = dict.fromkeys(_braced(choices[name](half)) for half in trials.halves)
        less = "" if name == BEST else estimate_text(frame.worst_minus(best))
        wider = "" if name == NONE else estimate_text(LanguageGap.of(frame).minus(none))
        rows.append((name, " / ".join(sets), estimate_text(frame.worst()[1]), less, estimate_text(frame.gap()), wider))
    columns = ("choice", "blocks", "worst", "worst minus that of the best", "gap", "gap minus that of none")
    return Table("Chosen on one half of the documents, evaluated on the other: bits per byte", columns, tuple(rows))


def _places(trials: GatewayTrials) -> Table:
    ends = list(filter(trials.both_ends, trials.sets))
    chance = len(ends) / len(trials.sets)
    rule = gateway_set(trials.n_blocks, KEPT)
    rows: list[tuple[Cell, ...]] = []
    documents = dict(zip(("all", "first half", "second half"), (trials.every, *trials.halves), strict=True))
    for ranking in RANKINGS:
        for name, those in documents.items():
            order = trials.rank_sets(ranking, those)
            tops = [f"{sum(map(trials.both_ends, order[:top]))} of {len(order[:top])}" for top in TOP]
            first = min(order.index(each) for each in ends) + 1
            rows.append((ranking, name, _braced(order[0]), order.index(rule) + 1, first, *tops))
    columns = ("ranked by", "documents", "best", f"place of {_braced(rule)}", "first place with both ends")
    title = f"Places among {len(trials.sets)} sets; by chance {chance:.1%} of the best contain both ends"
    return Table(title, (*columns, *(f"both ends in the best {top}" for top in TOP)), tuple(rows))


def _sets(trials: GatewayTrials) -> Table:
    rows = []
    for place, each in enumerate(trials.rank_sets("worst", trials.every)[:SHOWN], 1):
        found = language_damages(trials.frames[each], trials.every)
        rows.append((place, _braced(each), round(float(found.max()), 4), round(float(np.ptp(found)), 4)))
    return Table("The best sets by worst language, all documents", ("place", "kept", "worst", "gap"), tuple(rows))


def _figure(trials: GatewayTrials) -> Figure:
    ends = {0, trials.n_blocks - 1}
    kinds = {name: [e for e in trials.sets if len(ends & set(e)) == k] for name, k in KINDS.items()}
    series = []
    nothing: list[Blocks] = [()]
    for name, sets in {**kinds, NONE: nothing}.items():
        found = [language_damages(trials.frames[each], trials.every) for each in sets]
        x, y = tuple(float(each.max()) for each in found), tuple(float(np.ptp(each)) for each in found)
        series.append(Series(name, x, y, labels=tuple(map(_braced, sets))))
    title = f"Three blocks kept, the others at {BITS} bits"
    return Figure(title, "worst language, bits per byte", "gap, bits per byte", tuple(series))
