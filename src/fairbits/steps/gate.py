"""The gate of a release: does the damage stay below given limits, beyond doubt?"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal
from xml.etree import ElementTree

from fairbits import __version__
from fairbits.checks import in_range, instance, one_of
from fairbits.errors import InputError, printable
from fairbits.evaluation.scores import SIGNIFICANT, UNITS, Scores
from fairbits.stats import Estimate, LanguageFrame

Outcome = Literal["pass", "fail", "undecided"]
NOT_IN_XML = re.compile("[\ufffe\uffff]")
"""What `printable` lets through and XML does not."""


@dataclass(frozen=True)
class Check:
    """One requirement, whether it is met, and the sentence that says why."""

    name: str
    outcome: Outcome
    reason: str
    limit: float | None = None
    estimate: Estimate | None = None


@dataclass(frozen=True)
class Verdict:
    """All requirements of a gate; `improved` are the languages that lose less than under the baseline, beyond doubt."""

    target: str
    unit: str
    checks: tuple[Check, ...]
    improved: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every requirement is met; an undecided one is not."""
        return all(check.outcome == "pass" for check in self.checks)

    @property
    def exit_code(self) -> int:
        """0 if every requirement is met, else 1."""
        return 0 if self.passed else 1

    @property
    def reason(self) -> str:
        """One line: what failed and what is undecided, or that all is well."""
        missed = [check for outcome in ("fail", "undecided") for check in self.checks if check.outcome == outcome]
        if not missed:
            return f"pass: {'; '.join(check.reason for check in self.checks)}"
        return "; ".join(f"{check.outcome}: {check.reason}" for check in missed)

    def as_data(self) -> dict[str, Any]:
        """Returns the verdict for JSON."""
        return {
            "schema": "fairbits.verdict/1",
            "fairbits": __version__,
            "target": self.target,
            "passed": self.passed,
            "reason": self.reason,
            "unit": self.unit,
            "checks": [vars(each) | {"estimate": each.estimate and each.estimate.to_dict()} for each in self.checks],
            "improved": list(self.improved),
            "notes": list(self.notes),
        }


def gate(
    scores: Scores,
    *,
    max_worst: float | None = None,
    max_mean: float | None = None,
    max_gap: float | None = None,
    unit: str = "bits_per_byte",
    against: Scores | None = None,
) -> Verdict:
    """Returns whether the added loss keeps within limits, and whether it is no worse than that of a baseline.

    A limit is kept if the whole interval is at most the limit, exceeded if the whole interval is above it; else the
    text does not decide. A baseline fails what is worse beyond doubt: languages by a two-sided paired contrast with
    Holm's correction, worst and mean by their paired intervals.
    """
    instance("scores", scores, Scores)
    one_of("unit", unit, UNITS)
    limits = {"worst language": max_worst, "mean": max_mean, "gap": max_gap}
    given = {name: in_range(f"the limit of the {name}", limit) for name, limit in limits.items() if limit is not None}
    if not given and against is None:
        raise InputError("no limit is given; give max_worst, max_mean or max_gap, or a baseline")
    frame = scores.frame(unit)
    checks = [_against_limit(frame, name, limit) for name, limit in given.items()]
    if against is None:
        return Verdict(scores.quantized.target, unit, tuple(checks), notes=scores.notes)
    compared, improved = _against_baseline(scores, against, unit)
    notes = scores.notes
    if scores.reference.fingerprint != against.reference.fingerprint:
        notes += (f"the baseline was made from another model, {against.reference.target}: losses added to two models",)
    return Verdict(scores.quantized.target, unit, (*checks, *compared), improved, notes)


def junit(verdict: Verdict) -> bytes:
    """Returns the verdict as JUnit XML: a test case per requirement; what is undecided counts as a failure."""
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


def _against_limit(frame: LanguageFrame, name: str, limit: float) -> Check:
    """Returns the three-way decision on one limit."""
    what = name
    if name == "worst language":
        code, found = frame.worst()
        what = f"worst language ({code})"
    elif name == "mean":
        found = frame.mean()
    else:
        found = frame.gap()
    shown = f"{what} {_numbers(found)} {frame.unit.replace('_', ' ')}"
    title = f"{name} at most {limit:g} {frame.unit.replace('_', ' ')}"
    if found.high <= limit:
        return Check(title, "pass", f"{shown} is at most {limit:g}", limit, found)
    if found.low > limit:
        return Check(title, "fail", f"{shown} is above {limit:g}", limit, found)
    reason = f"not enough text: {shown} may lie on either side of {limit:g}; {_more(frame, found, limit)}"
    return Check(title, "undecided", reason, limit, found)


def _more(frame: LanguageFrame, found: Estimate, limit: float) -> str:
    """Returns how much text would decide, as an interval is as wide as 1/√n: n' = n·(reach of the interval / room)²."""
    reach, room = found.high - found.value, limit - found.value
    if room < 0:
        reach, room = found.value - found.low, -room
    documents = int(frame.replicates.documents.min())
    times = (reach / room) ** 2 if room > 0 else math.inf
    if times > 1000:
        return "it lies so near that no amount of text would decide"
    needed = max(math.ceil(documents * times), documents + 1)
    return f"about {needed:,} documents per language would decide, and there are {documents:,}"


def _against_baseline(scores: Scores, baseline: Scores, unit: str) -> tuple[list[Check], tuple[str, ...]]:
    contrast = scores.contrast(baseline, unit=unit)
    mine, theirs = scores.frame(unit), baseline.frame(unit)
    sure = {code: each for code, each in contrast.differences.items() if contrast.p_holm[code] < SIGNIFICANT}
    worse = sorted((code for code, each in sure.items() if each.value > 0), key=lambda code: -sure[code].value)
    if worse:
        named = ", ".join(f"{code} by {_numbers(sure[code])} (p {contrast.p_holm[code]:.2g})" for code in worse)
        outcome: Outcome = "fail"
        reason = f"worse than the baseline: {named}"
    else:
        outcome, reason = "pass", f"none of {len(contrast.p)} languages is worse than under the baseline"
    checks = [Check("no language worse than under the baseline", outcome, reason)]
    checks += _totals({"mean": mine.minus(theirs).mean(), "worst language": mine.worst_minus(theirs)})
    return checks, tuple(sorted(code for code, each in sure.items() if each.value < 0))


def _totals(differences: dict[str, Estimate]) -> Iterator[Check]:
    for name, found in differences.items():
        outcome: Outcome = "fail" if found.low > 0 else "pass"
        word = "above" if outcome == "fail" else "not above"
        reason = f"{name} is {word} that of the baseline (difference {_numbers(found)})"
        yield Check(f"{name} not worse than under the baseline", outcome, reason, 0.0, found)


def _numbers(found: Estimate) -> str:
    return f"{found.value:.3g} [{found.low:.3g}, {found.high:.3g}]"


def _xml(text: str) -> str:
    return NOT_IN_XML.sub("\ufffd", printable(text))
