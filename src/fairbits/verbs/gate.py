"""Gate: whether the damage of a release is certainly within given limits."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fairbits.checks import in_range, instance, one_of
from fairbits.errors import InputError
from fairbits.measure.scores.scores import Scores
from fairbits.stats import Estimate, LanguageFrame
from fairbits.stats.no_interval import interval_notes
from fairbits.units import MEASURES, UNITS
from fairbits.verbs.limits import (
    amount_needed,
    decision,
    limit_check,
    no_interval,
    numbers_of,
    outcome_of,
    times_as_much,
    unit_of,
)
from fairbits.verbs.verdict import Check, Verdict


def gate(
    scores: Scores | str | Path,
    *,
    max_worst: float | None = None,
    max_mean: float | None = None,
    max_gap: float | None = None,
    measure: str = "divergence",
    unit: str = "bits_per_byte",
    against: Scores | str | Path | None = None,
    max_worse: float | None = None,
) -> Verdict:
    """Returns whether the damage is within limits, and whether it is no worse than that of a baseline.

    Scores are the result of `evaluate`, or its path. The damage is the divergence from the reference model, or the
    added loss with `measure="loss"`. A limit is met if the whole interval is at most the limit and exceeded if the
    whole interval is above it; otherwise the text cannot decide. `max_worse` is such a limit for the difference from
    the baseline of every language, of the mean and of the worst language. Without it only a significantly worse result
    fails: languages by a two-sided paired contrast with Holm's correction, mean and worst by their paired intervals.
    Little text then proves little, and the verdict says how much worse languages may be. A language without an interval
    may be on either side of any limit, so nothing that it belongs to passes.
    """
    one_of("measure", measure, MEASURES)
    one_of("unit", unit, UNITS)
    limits = {"worst language": max_worst, "mean": max_mean, "gap": max_gap, "difference": max_worse}
    given = {
        name: in_range(f"the limit of the {name}", limit, least=0)
        for name, limit in limits.items()
        if limit is not None
    }
    worse = given.pop("difference", None)
    if worse is not None and against is None:
        raise InputError(f"max_worse is {worse:g}, but there is no baseline; give one with against")
    if not given and against is None:
        raise InputError(
            "there is no limit; give --max-worst, --max-mean, --max-gap or --against (in Python max_worst …)"
        )
    own = _scores("scores", scores)
    frame, signature = own.frame(unit, measure=measure), str(own.signature(measure))
    notes = (*own.notes, *interval_notes(frame))
    checks = [limit_check(frame, name, limit) for name, limit in given.items()]
    if against is None:
        return Verdict(own.quantized.target, measure, unit, tuple(checks), notes=notes, signature=signature)
    baseline = _scores("the baseline", against)
    own.check_same_text(baseline)
    theirs = baseline.frame(unit, measure=measure)
    if worse is None:
        checks += _checks_of_significance(frame, theirs)
    else:
        checks += _checks_of_margin(frame, theirs, limit=worse)
    if own.reference.fingerprint != baseline.reference.fingerprint:
        other = baseline.reference.target
        notes += (f"the baseline was made from another model, {other}: each is compared with its own reference",)
    improved = tuple(sorted(_worse(theirs, frame)))
    return Verdict(own.quantized.target, measure, unit, tuple(checks), improved, notes, signature)


def _scores(name: str, given: Scores | str | Path) -> Scores:
    return Scores.load(given) if isinstance(given, str | Path) else instance(name, given, Scores)


def _checks_of_margin(mine: LanguageFrame, theirs: LanguageFrame, *, limit: float) -> Iterator[Check]:
    """Yields the three-way decisions on the difference of all languages, of the mean and of the worst language.

    Simultaneous limits decide whether a language fails, because one failure is enough; its own upper limit decides
    whether it passes, because all must pass.
    """
    paired = mine.minus(theirs)
    together = paired.by_language(simultaneous=True)
    found = {
        code: replace(each, low=min(each.low, together[code].low)) if together[code].bounded else each
        for code, each in paired.by_language().items()
    }
    outcomes = {
        code: outcome_of(each, limit) if together[code].bounded or each.high <= limit else "undecided"
        for code, each in found.items()
    }
    title = f"every language at most {limit:g} {unit_of(mine)} worse than the baseline"
    worst = max(found, key=lambda code: found[code].high)
    failed = [code for code, outcome in outcomes.items() if outcome == "fail"]
    undecided = [code for code, outcome in outcomes.items() if outcome == "undecided"]
    if failed:
        yield Check(title, "fail", f"worse by more than {limit:g}: {_list(found, failed)}", limit, found[worst])
    elif paired.without_interval:
        yield Check(title, "undecided", f"not enough text: {no_interval(paired)}", limit, found[worst])
    elif undecided:
        hardest = max(undecided, key=lambda code: times_as_much(found[code], limit))
        may = f"not enough text: the difference may be on either side of {limit:g} in {_list(found, undecided)}"
        yield Check(title, "undecided", f"{may}; {amount_needed(paired, found[hardest], limit)}", limit, found[worst])
    else:
        reason = f"none of {len(found)} languages is more than {limit:g} worse, at most {_list(found, [worst])}"
        yield Check(title, "pass", reason, limit, found[worst])
    for name, each in _totals(mine, theirs).items():
        own = f"{name} at most {limit:g} {unit_of(mine)} worse than the baseline"
        frame = _incomplete(paired, mine, theirs)
        yield decision(own, f"difference of the {name}", each, limit=limit, frame=frame)


def _checks_of_significance(mine: LanguageFrame, theirs: LanguageFrame) -> Iterator[Check]:
    """Yields a failure for what is significantly worse, and for all else how much worse it may be."""
    worse, paired = _worse(mine, theirs), mine.minus(theirs)
    incomplete = _incomplete(paired, mine, theirs)
    title = "no language significantly worse than the baseline"
    if worse:
        codes = sorted(worse, key=lambda code: -worse[code].value)
        yield Check(title, "fail", f"worse than the baseline: {_list(worse, codes)}")
    else:
        found = paired.by_language()
        code = max(found, key=lambda code: found[code].high)
        if paired.without_interval:
            yield Check(title, "undecided", f"not enough text: {no_interval(paired)}", estimate=found[code])
        else:
            least = _at_most(code, found[code], unit_of(mine))
            reason = f"none of {len(found)} languages is significantly worse; {least}"
            yield Check(title, "pass", reason, estimate=found[code])
    for name, each in _totals(mine, theirs).items():
        title = f"{name} not significantly worse than the baseline"
        if each.low > 0:
            yield Check(title, "fail", f"{name} is worse than the baseline by {numbers_of(each)}", 0.0, each)
        elif not each.bounded or incomplete.without_interval:
            yield Check(
                title,
                "undecided",
                f"not enough text: {name} {numbers_of(each)}, and {no_interval(incomplete)}",
                0.0,
                each,
            )
        else:
            reason = f"{name} is not significantly worse; {_at_most('it', each, unit_of(mine))}"
            yield Check(title, "pass", reason, 0.0, each)


def _incomplete(*frames: LanguageFrame) -> LanguageFrame:
    """Returns the first of the frames that has languages without an interval; the first of all if none has."""
    return next((frame for frame in frames if frame.without_interval), frames[0])


def _worse(mine: LanguageFrame, theirs: LanguageFrame) -> dict[str, Estimate]:
    """Returns the languages that are significantly more damaged, and by how much."""
    return {code: each for code, each in mine.contrast(theirs).significant().items() if each.value > 0}


def _totals(mine: LanguageFrame, theirs: LanguageFrame) -> dict[str, Estimate]:
    return {"mean": mine.minus(theirs).mean(), "worst language": mine.worst_minus(theirs)}


def _at_most(what: str, found: Estimate, unit: str) -> str:
    """Returns how much worse something may still be."""
    if found.high <= 0:
        return f"{what} differs by {numbers_of(found)} {unit}"
    return f"{what} could still be up to {found.high:.3g} {unit} worse"


def _list(found: dict[str, Estimate], codes: Sequence[str]) -> str:
    return ", ".join(f"{code} by {numbers_of(found[code])}" for code in codes)
