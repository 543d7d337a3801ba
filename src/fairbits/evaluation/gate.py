"""Gate: whether the damage of a release is certainly within given limits.

GateResult: the requirements of a gate, whether they are met, and the same as JUnit XML.

Limits of a gate: whether an estimate is certainly within one, certainly above it, or neither.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from fairbits.core.checks import in_range, instance, one_of
from fairbits.core.errors import InputError, count_of, printable
from fairbits.core.table import Shown, Table
from fairbits.core.units import MEASURE_LABELS, MEASURES, UNITS
from fairbits.core.version import __version__
from fairbits.evaluation.scores import Scores
from fairbits.stats.frame import LanguageFrame, interval_notes, why_none_over_languages
from fairbits.stats.intervals import Estimate

Outcome = Literal["pass", "fail", "undecided"]
NOT_IN_XML = re.compile("[\ufffe\uffff]")
"""Characters that `printable` keeps and XML forbids."""


@dataclass(frozen=True)
class Check:
    """One requirement, whether it is met, and the reason."""

    name: str
    outcome: Outcome
    reason: str
    limit: float | None = None
    estimate: Estimate | None = None


@dataclass(frozen=True, repr=False)
class GateResult(Shown):
    """All requirements of a gate; `improved` are the languages with significantly less damage than the baseline."""

    target: str
    measure: str
    unit: str
    checks: tuple[Check, ...]
    improved: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    signature: str = ""

    @property
    def passed(self) -> bool:
        """Whether every requirement is met; an undecided one is not."""
        return all(check.outcome == "pass" for check in self.checks)

    def __bool__(self) -> bool:
        """The same as `passed`, so that `if fairbits.gate(…):` releases nothing that fails."""
        return self.passed

    def tables(self) -> list[Table]:
        """Returns the requirements, and whether each of them is met."""
        measured = f"{MEASURE_LABELS[self.measure]} in {self.unit.replace('_', ' ')}"
        title = f"{'PASS' if self.passed else 'FAIL'}: {self.target}, {measured}"
        rows = tuple((check.name, check.outcome, check.reason) for check in self.checks)
        return [Table(title, ("requirement", "outcome", "reason"), rows, self.notes, left=(1, 2))]

    @property
    def exit_code(self) -> int:
        """0 if every requirement is met, else 1."""
        return 0 if self.passed else 1

    @property
    def reason(self) -> str:
        """One line: what failed and what is undecided, or that everything passed; then the measure."""
        missed = [check for outcome in ("fail", "undecided") for check in self.checks if check.outcome == outcome]
        if not missed:
            said = f"pass: {'; '.join(check.reason for check in self.checks)}"
        else:
            said = "; ".join(f"{check.outcome}: {check.reason}" for check in missed)
        return f"{said} (measured by {MEASURE_LABELS.get(self.measure, self.measure)})"

    def as_data(self) -> dict[str, Any]:
        """Returns the verdict for JSON."""
        return {
            "schema": "fairbits.verdict/2",
            "fairbits": __version__,
            "target": self.target,
            "passed": self.passed,
            "reason": self.reason,
            "measure": self.measure,
            "unit": self.unit,
            "checks": [vars(each) | {"estimate": each.estimate and each.estimate.to_dict()} for each in self.checks],
            "improved": list(self.improved),
            "notes": list(self.notes),
            "signature": self.signature,
        }


def junit(verdict: GateResult) -> bytes:
    """Returns the verdict as JUnit XML: one test case per requirement; an undecided one counts as a failure."""
    missed = [check for check in verdict.checks if check.outcome != "pass"]
    counts = {"tests": str(len(verdict.checks)), "failures": str(len(missed)), "errors": "0", "skipped": "0"}
    suite = ElementTree.Element("testsuite", {"name": "fairbits gate", **counts, "time": "0"})
    for check in verdict.checks:
        names = {"classname": _xml(verdict.target), "name": _xml(check.name), "time": "0"}
        case = ElementTree.SubElement(suite, "testcase", names)
        if check.outcome == "pass":
            ElementTree.SubElement(case, "system-out").text = _xml(check.reason)
        else:
            message = {"type": check.outcome, "message": _xml(check.reason)}
            ElementTree.SubElement(case, "failure", message).text = _xml(check.reason)
    found: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return found + b"\n"


def _xml(text: str) -> str:
    return NOT_IN_XML.sub("\ufffd", printable(text))


def limit_check(frame: LanguageFrame, name: str, limit: float) -> Check:
    """Returns the three-way decision on one limit."""
    what = name
    if name == "worst language":
        code, found = frame.worst()
        what = f"worst language ({code})"
    elif name == "mean":
        found = frame.mean()
    else:
        found = frame.gap()
    title = f"{name} at most {limit:g} {unit_of(frame)}"
    return decision(title, what, found, limit=limit, frame=frame, fails=name != "mean")


def decision(
    title: str, what: str, found: Estimate, *, limit: float, frame: LanguageFrame, fails: bool = False
) -> Check:
    """Returns a pass if the whole interval is at most the limit, a failure if it is above it, else neither.

    If languages without an interval are left out, it is undecided, unless the number is above the limit and could only
    be larger with them (`fails`).
    """
    measured = f"{what} {numbers_of(found)} {unit_of(frame)}"
    outcome, text = outcome_of(found, limit), text_of(frame)[0]
    if not found.bounded or (frame.without_interval and not (fails and outcome == "fail")):
        return Check(title, "undecided", f"not enough {text}: {measured}, and {no_interval(frame)}", limit, found)
    undecided = f"not enough {text}: {measured} may be on either side of {limit:g}"
    reason = {
        "pass": f"{measured} is at most {limit:g}",
        "fail": f"{measured} is above {limit:g}",
        "undecided": f"{undecided}; {amount_needed(frame, found, limit)}",
    }[outcome]
    return Check(title, outcome, reason, limit, found)


def outcome_of(found: Estimate, limit: float) -> Outcome:
    """Returns on which side of a limit an interval is."""
    return "pass" if found.high <= limit else "fail" if found.low > limit else "undecided"


def no_interval(frame: LanguageFrame) -> str:
    """Returns which language has no interval, and why; if all have one, why their statistic has none."""
    reasons = frame.without_interval
    if not reasons:
        return f"there is no interval, because {why_none_over_languages(frame)}"
    code, reason = next(iter(reasons.items()))
    more = f" and {count_of(len(reasons) - 1, 'more language')}" if len(reasons) > 1 else ""
    return f"there is no interval for {code} ({reason}){more}"


def amount_needed(frame: LanguageFrame, found: Estimate, limit: float) -> str:
    """Returns how much text would be enough to decide."""
    documents, times = int(frame.bounded.documents.min()), times_as_much(found, limit)
    text, units = text_of(frame)
    if times > 1000:
        return f"it is so close that no realistic amount of {text} would decide"
    needed = max(math.ceil(documents * times), documents + 1)
    return f"about {needed:,} {units} per language would be enough; there are {documents:,}"


def times_as_much(found: Estimate, limit: float) -> float:
    """Returns how many times as much text would be enough: (reach / room)², as the width of an interval is ∝ 1/√n."""
    reach, room = found.high - found.value, limit - found.value
    if room < 0:
        reach, room = found.value - found.low, -room
    return (reach / room) ** 2 if room > 0 else math.inf


def text_of(frame: LanguageFrame) -> tuple[str, str]:
    """Returns what a frame is measured on, and what that is counted in."""
    return ("items", "items") if frame.unit == "per_item" else ("text", "documents")


def unit_of(frame: LanguageFrame) -> str:
    """Returns the unit of a frame as people write it."""
    return frame.unit.replace("_", " ")


def numbers_of(found: Estimate) -> str:
    """Returns an estimate with its interval."""
    return f"{found.value:.3g} " + (f"[{found.low:.3g}, {found.high:.3g}]" if found.bounded else "(no interval)")


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
) -> GateResult:
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
        return GateResult(own.quantized.target, measure, unit, tuple(checks), notes=notes, signature=signature)
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
    return GateResult(own.quantized.target, measure, unit, tuple(checks), improved, notes, signature)


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
