"""Gate: whether the damage of a release is certainly within limits, and the result as JSON and JUnit XML.

A limit is met if the whole confidence interval is at most the limit and exceeded if the whole interval is above it.
Otherwise it is undecided, and the reason says how much text would decide.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from fairbits.core.checks import in_range, instance, one_of
from fairbits.core.errors import InputError, count_of, printable
from fairbits.core.table import Shown, Table
from fairbits.core.units import MEASURE_LABELS, MEASURES, UNITS
from fairbits.core.version import __version__
from fairbits.evaluation.language_groups import EXAMPLE, NamedGroups
from fairbits.evaluation.meaning import SUGGESTED, Meaning
from fairbits.evaluation.measurement import BOUND
from fairbits.evaluation.profiles import PROFILES
from fairbits.evaluation.scores import Scores
from fairbits.stats.frame import Contrast, LanguageFrame, interval_notes, why_none_over_languages, worst_first
from fairbits.stats.intervals import Estimate

CHANGED = "change in any language"  # how the name of a check on first choices ends
TASKS = "tasks: "  # how the name of a check on the answers of tasks begins
WRONG = "are in another language than their prompt"
Outcome = Literal["pass", "fail", "undecided"]
NOT_IN_XML = re.compile("[\ufffe\uffff]")  # characters that `printable` keeps and XML forbids


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
    meaning: Meaning | None = None
    profile: str | None = None

    @property
    def passed(self) -> bool:
        """Whether every requirement is met; an undecided one is not."""
        return all(check.outcome == "pass" for check in self.checks)

    def __bool__(self) -> bool:
        """The same as `passed`, so that `if fairbits.gate(…):` releases nothing that fails."""
        return self.passed

    def tables(self) -> list[Table]:
        measured = "" if self.only_changes else f", {MEASURE_LABELS[self.measure]} in {self.unit.replace('_', ' ')}"
        title = f"{'PASS' if self.passed else 'FAIL'}: {self.target}{measured}"
        rows = tuple((check.name, check.outcome, check.reason) for check in self.checks)
        return [Table(title, ("requirement", "outcome", "reason"), rows, self.notes, left=(1, 2))]

    @property
    def exit_code(self) -> int:
        return 0 if self.passed else 1

    @property
    def reason(self) -> str:
        """One line: what failed and what is undecided, or that everything passed; then the measure, if one has it."""
        missed = [check for outcome in ("fail", "undecided") for check in self.checks if check.outcome == outcome]
        if not missed:
            reasons = f"pass: {'; '.join(check.reason for check in self.checks)}"
        else:
            reasons = "; ".join(f"{check.outcome}: {check.reason}" for check in missed)
        if self.only_changes:
            return reasons
        return f"{reasons} (measured by {MEASURE_LABELS.get(self.measure, self.measure)})"

    @property
    def only_changes(self) -> bool:
        """Whether all limits are on first choices or answers, so that neither measure nor unit matters."""
        return all(
            check.name.endswith(CHANGED) or WRONG in check.name or check.name.startswith(TASKS) for check in self.checks
        )

    def as_data(self) -> dict[str, Any]:
        return {
            "schema": "fairbits.verdict/2",
            "fairbits": __version__,
            "target": self.target,
            "passed": self.passed,
            "reason": self.reason,
            "measure": self.measure,
            "unit": self.unit,
            "checks": [
                vars(check) | {"estimate": check.estimate and check.estimate.to_dict()} for check in self.checks
            ],
            "improved": list(self.improved),
            "notes": list(self.notes),
            "signature": self.signature,
            "profile": self.profile,
            "meaning": None if self.meaning is None else self.meaning.as_data(),
        }


def junit(result: GateResult) -> bytes:
    """Returns the result as JUnit XML: one test case per requirement; an undecided one counts as a failure."""
    missed = [check for check in result.checks if check.outcome != "pass"]
    counts = {"tests": str(len(result.checks)), "failures": str(len(missed)), "errors": "0", "skipped": "0"}
    suite = ElementTree.Element("testsuite", {"name": "fairbits gate", **counts, "time": "0"})
    for check in result.checks:
        names = {"classname": _xml(result.target), "name": _xml(check.name), "time": "0"}
        case = ElementTree.SubElement(suite, "testcase", names)
        if check.outcome == "pass":
            ElementTree.SubElement(case, "system-out").text = _xml(check.reason)
        else:
            message = {"type": check.outcome, "message": _xml(check.reason)}
            ElementTree.SubElement(case, "failure", message).text = _xml(check.reason)
    document: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _xml(text: str) -> str:
    return NOT_IN_XML.sub("\ufffd", printable(text))


def check_limits(max_worst: float | None, max_mean: float | None, max_gap: float | None) -> dict[str, float]:
    """Returns the limits that the user gave, by what they limit."""
    limits = {"worst language": max_worst, "mean": max_mean, "gap": max_gap}
    return {
        name: in_range(f"the limit of the {name}", limit, least=0)
        for name, limit in limits.items()
        if limit is not None
    }


def limit_check(frame: LanguageFrame, name: str, limit: float, *, unit: str | None = None) -> Check:
    """Returns the decision on one limit; `unit` is what is lost, by default the unit of the frame."""
    if name == "worst language":
        code, estimate = frame.worst()
        subject = f"{code} lost"
    elif name == "mean":
        subject, estimate = "the mean language lost", frame.mean()
    else:
        subject, estimate = "languages differ by", frame.gap()
    title = f"{name} at most {limit:g} {readable_unit(frame)}"
    measured = f"{subject} {format_estimate(estimate, unit or readable_unit(frame))}"
    return decide(title, measured, estimate, limit=limit, frame=frame, grows=name != "mean")


def decide(
    title: str, measured: str, estimate: Estimate, *, limit: float, frame: LanguageFrame, grows: bool = False
) -> Check:
    """Returns a pass if the whole interval is at most the limit, a failure if it is above it, else neither."""
    outcome = side_of_limit(estimate, limit)
    if not estimate.bounded or (frame.without_interval and not (grows and outcome == "fail")):
        return Check(title, "undecided", f"{measured}, limit {limit:g}, but {no_interval(frame)}", limit, estimate)
    reason = f"{measured}, limit {limit:g}"
    if outcome == "undecided":
        reason = f"{reason}. {amount_needed(frame, estimate, limit)}"
    return Check(title, outcome, reason, limit, estimate)


def changed_check(scores: Scores, limit: float) -> Check:
    """Returns the decision on how many of 100 first choices change in the language where most do."""
    uncertain = {} if scores.measurement is None else scores.measurement.undecided
    return changes_check(scores.changed_frame, limit, what=scores.meaning.what, uncertain=uncertain)


def changes_check(frame: LanguageFrame, limit: float, *, what: str, uncertain: Mapping[str, float]) -> Check:
    """Returns the same of the share of first choices that change; `uncertain` ones count as changed, and may not be."""
    count, flips = len(frame.languages), frame.by_language()
    code, share = frame.worst()
    changed = share.transform(lambda x: 100 * x)
    title = f"at most {limit:g} of 100 {what} {CHANGED}"
    measured = f"{code}: {changed.value:.3g} of 100 {what} change"
    if changed.bounded:
        corrected = f", corrected for the choice of the worst of {count}" if count > 1 else ""
        measured += f" ({100 * changed.confidence:g} % interval {changed.low:.3g} to {changed.high:.3g}{corrected})"
    check = decide(title, measured, changed, limit=limit, frame=frame, grows=True)
    if check.outcome == "fail" and uncertain:
        most = {c: 100 * uncertain.get(c, 0.0) for c in flips}
        if not any(share.bounded and 100 * share.low - most[c] > limit for c, share in flips.items()):
            words = "in some of these the names of tokens do not tell whether they change"
            return replace(check, outcome="undecided", reason=f"{check.reason}, but {words} (up to {most[code]:.3g})")
    others = {c: share.transform(lambda x: 100 * x) for c, share in flips.items() if c != code and share.bounded}
    alike = [c for c in worst_first(others) if side_of_limit(others[c], limit) == check.outcome]
    if check.outcome == "pass" or not alike:
        return check
    also = "Also over the limit" if check.outcome == "fail" else "Also undecided"
    return replace(check, reason=f"{check.reason}. {also}: {', '.join(alike)}")


def wrong_language_check(scores: Scores, limit: float) -> Check:
    """Returns the decision on how many of 100 answers quantization adds in another language than the prompt."""
    generated = scores.generated
    if generated is None:
        raise InputError(
            f"the scores of {scores.quantized.target} have no generated text; measure it with fairbits evaluate "
            "--generate 200"
        )
    frame = generated.added["wrong"]
    code, share = frame.worst()
    added, after = share.transform(lambda x: 100 * x), generated.share("wrong", "quantized", code)
    missing = [lang for lang in scores.languages if lang not in generated.languages]
    but = f" but {', '.join(missing)}, which were not measured" if missing else ""
    title = f"at most {limit:g} more of 100 answers {WRONG} in any language{but}"
    measured = f"{code}: {format_estimate(added, f'more of 100 answers {WRONG}')}, {100 * after.value:.3g} in all"
    return decide(title, measured, added, limit=limit, frame=frame, grows=True)


def ratio_check(scores: Scores, limit: float, *, measure: str, unit: str) -> Check:
    """Returns the decision on how many times as much the worst group of languages loses as the best."""
    damage, frame = scores.group_damage(unit, measure=measure), scores.frame(unit, measure=measure)
    if damage is None:
        raise InputError(f"{scores.quantized.target} has no groups of languages; name them with --groups '{EXAMPLE}'")
    title = f"worst group at most {limit:g} times the best"
    ratio, values = damage.worst_over_best, {name: mean.value for name, mean in damage.means.items()}
    worst, best = max(values, key=values.__getitem__), min(values, key=values.__getitem__)
    if ratio is None:
        return Check(title, "undecided", f"{worst} and {best} cannot be divided: {damage.no_ratio}", limit)
    measured = f"{worst} lost {format_estimate(ratio, f'times as much as {best}')}, limit {limit:g}"
    if damage.left_out:
        reason = f"{measured}, but there is no interval for {', '.join(damage.left_out)}"
        return Check(title, "undecided", reason, limit, ratio)
    outcome = side_of_limit(ratio, limit)
    if outcome == "undecided":
        measured += f". {amount_needed(frame, ratio.transform(math.log), math.log(limit))}"
    return Check(title, outcome, measured, limit, ratio)


def side_of_limit(estimate: Estimate, limit: float) -> Outcome:
    """Returns on which side of a limit an interval is."""
    return "pass" if estimate.high <= limit else "fail" if estimate.low > limit else "undecided"


def no_interval(frame: LanguageFrame) -> str:
    """Returns which language has no interval, and why; if all have one, why their statistic has none."""
    reasons = frame.without_interval
    if not reasons:
        return f"there is no interval, because {why_none_over_languages(frame)}"
    code, reason = next(iter(reasons.items()))
    more = f" and {count_of(len(reasons) - 1, 'more language')}" if len(reasons) > 1 else ""
    return f"there is no interval for {code} ({reason}){more}"


def amount_needed(frame: LanguageFrame, estimate: Estimate, limit: float) -> str:
    """Returns how much text would be enough to decide."""
    documents, times = int(frame.bounded.documents.min()), times_as_much(estimate, limit)
    text, units = ("items", "items") if frame.unit == "per_item" else ("text", "documents")
    if times > 1000:
        return f"It is so close that no realistic amount of {text} would decide"
    needed = max(math.ceil(documents * times), documents + 1)
    return f"About {needed:,} {units} per language would decide; {documents:,} were measured"


def times_as_much(estimate: Estimate, limit: float) -> float:
    """Returns how many times as much text would be enough: (reach / room)², as the width of an interval is ∝ 1/√n."""
    reach, room = estimate.high - estimate.value, limit - estimate.value
    if room < 0:
        reach, room = estimate.value - estimate.low, -room
    return (reach / room) ** 2 if room > 0 else math.inf


def significance_checks(
    contrast: Contrast, totals: Mapping[str, Estimate], frame: LanguageFrame, *, than: str = "", unit: str | None = None
) -> Iterator[Check]:
    """Yields a failure for what is significantly worse, else how much worse it may be."""
    worse, differences = contrast.worse(), contrast.differences
    unit = unit or readable_unit(frame)
    widest = max(differences, key=lambda code: differences[code].high)
    title = f"no language significantly worse{than}"
    if worse:
        codes = sorted(worse, key=lambda code: -worse[code].value)
        reason = f"significantly worse{than}: {_list(worse, codes, unit)}"
        yield Check(title, "fail", reason, estimate=worse[codes[0]])
    elif not all(difference.bounded for difference in differences.values()):
        yield Check(title, "undecided", no_interval(frame), estimate=differences[widest])
    else:
        bound = _at_most(widest, differences[widest], unit)
        reason = f"none of {len(differences)} languages is significantly worse; {bound}"
        yield Check(title, "pass", reason, estimate=differences[widest])
    for name, total in totals.items():
        title = f"{name} not significantly worse{than}"
        if total.low > 0:
            yield Check(title, "fail", f"{name} is worse{than} by {format_estimate(total, unit)}", 0.0, total)
        elif not total.bounded or frame.without_interval:
            measured = f"{name} is worse by {format_estimate(total, unit)}"
            yield Check(title, "undecided", f"{measured}, but {no_interval(frame)}", 0.0, total)
        else:
            reason = f"{name} is not significantly worse; {_at_most('it', total, unit)}"
            yield Check(title, "pass", reason, 0.0, total)


def readable_unit(frame: LanguageFrame) -> str:
    """Returns the unit of a frame as people write it."""
    return frame.unit.replace("_", " ")


def format_estimate(estimate: Estimate, unit: str) -> str:
    """Returns an estimate with its unit and its interval, if it has one."""
    value = f"{estimate.value:.3g} {unit}"
    if not estimate.bounded:
        return value
    return f"{value} ({100 * estimate.confidence:g} % interval {estimate.low:.3g} to {estimate.high:.3g})"


def gate(
    scores: Scores | str | Path,
    *,
    profile: str | None = None,
    max_changed: float | None = None,
    max_wrong_language: float | None = None,
    max_worst: float | None = None,
    max_mean: float | None = None,
    max_gap: float | None = None,
    measure: str = "divergence",
    unit: str = "bits_per_byte",
    against: Scores | str | Path | None = None,
    max_worse: float | None = None,
    groups: NamedGroups | None = None,
    max_ratio: float | None = None,
) -> GateResult:
    """Returns whether the damage is within limits, and whether it is not worse than a baseline's.

    Scores are the result of `evaluate`, or its path. `max_changed` limits how many of 100 tokens may have another first
    choice than in the reference model, in every language; 10 is a good limit to start with. `max_wrong_language` limits
    how many of 100 generated answers quantization adds in another language than the prompt. `profile` (strict, standard
    or loose) stands for both (`PROFILES`), for the second only if the scores have answers. For the other limits, the
    damage is the divergence from the reference model, or the added loss with `measure="loss"`. A limit is met if the
    whole interval is at most the limit and exceeded if the whole interval is above it. `max_worse` is such a limit for
    the difference from the baseline of every language, of the mean and of the worst language. Without it only a
    significantly worse result fails: languages by a two-sided paired contrast with Holm's correction, mean and worst by
    their paired intervals. `max_ratio` limits how many times as much the worst group of languages may lose as the best;
    `groups` replace those of the scores.
    """
    one_of("measure", measure, MEASURES)
    one_of("unit", unit, UNITS)
    quantized = _scores("scores", scores)
    unread: tuple[str, ...] = ()
    if profile is not None:
        chosen = PROFILES[one_of("profile", profile, tuple(PROFILES))]
        max_changed = chosen.changed if max_changed is None else max_changed
        if max_wrong_language is None and quantized.generated is not None:
            max_wrong_language = chosen.wrong_language
        elif quantized.generated is None:
            unread = (f"{profile}: the language of answers was not measured; fairbits evaluate --generate 200 does",)
        if max_changed > chosen.changed or (max_wrong_language or 0) > chosen.wrong_language:
            raise InputError(f"the profile {profile} has stricter limits than these; leave the profile or them out")
    limits = check_limits(max_worst, max_mean, max_gap)
    if max_worse is not None:
        in_range("the limit of the difference", max_worse, least=0)
        if against is None:
            raise InputError(f"max_worse is {max_worse:g}, but there is no baseline; give one with against")
    for name, share in (("max_changed", max_changed), ("max_wrong_language", max_wrong_language)):
        if share is not None:
            in_range(name, share, least=0, most=100)
    if max_ratio is not None:
        in_range("the limit of the ratio", max_ratio, least=1)
    elif groups is not None:
        raise InputError("groups are only for a limit on their ratio; give --max-ratio, or leave --groups out")
    if not limits and against is None and max_ratio is None and max_changed is None and max_wrong_language is None:
        raise InputError(
            f"there is no limit; --max-changed {SUGGESTED:g} is a good limit to start with: at most {SUGGESTED:g} of "
            "100 tokens change in any language (in Python max_changed). Others are --profile, --max-worst, --max-mean, "
            "--max-gap, --max-ratio and --against"
        )
    quantized = quantized if groups is None else quantized.with_groups(groups)
    only_bounds = measure == "divergence" and quantized.kl_kind == BOUND
    if only_bounds and (max_gap is not None or max_ratio is not None):
        raise InputError(
            f"the KL divergence of {quantized.quantized.target} is a lower bound. Gaps and ratios of bounds do not say "
            'how the languages differ: use --measure loss (in Python measure="loss") or --max-changed'
        )
    frame, signature = quantized.frame(unit, measure=measure), str(quantized.signature(measure))
    notes = (*quantized.notes, *interval_notes(frame), *unread)
    checks = [] if max_changed is None else [changed_check(quantized, max_changed)]
    checks += [] if max_wrong_language is None else [wrong_language_check(quantized, max_wrong_language)]
    damage = [limit_check(frame, name, limit) for name, limit in limits.items()]
    checks += [_of_bound(check) for check in damage] if only_bounds else damage
    if max_ratio is not None:
        checks.append(ratio_check(quantized, max_ratio, measure=measure, unit=unit))
    improved: tuple[str, ...] = ()
    if against is not None:
        baseline = _scores("the baseline", against)
        quantized.check_comparable(baseline, measure=measure)
        theirs = baseline.frame(unit, measure=measure)
        paired = frame.minus(theirs)
        totals = {"mean": paired.mean(), "worst language": frame.worst_minus(theirs)}
        # statistics of all languages are incomplete if one of the frames has languages without an interval
        incomplete = next((part for part in (paired, frame, theirs) if part.without_interval), paired)
        if max_worse is None:
            contrast = paired.contrast_with_zero()
            checks += significance_checks(contrast, totals, incomplete, than=" than the baseline")
        else:
            checks += _margin_checks(paired, totals, incomplete, limit=max_worse)
        if quantized.reference.fingerprint != baseline.reference.fingerprint:
            target = baseline.reference.target
            notes += (f"the baseline was made from another model, {target}: each is compared with its own reference",)
        improved = tuple(sorted(theirs.contrast(frame).worse()))
    named, meaning = quantized.quantized.name, quantized.meaning
    return GateResult(named, measure, unit, tuple(checks), improved, notes, signature, meaning, profile)


def _of_bound(check: Check) -> Check:
    """Returns the decision on a lower bound: it can be above a limit, but not show that the true value is below it."""
    if check.outcome != "pass":
        return check
    reason = f"{check.reason}, but this KL is a lower bound, and the true one may be above the limit"
    return replace(check, outcome="undecided", reason=reason)


def _scores(name: str, scores: Scores | str | Path) -> Scores:
    return Scores.load(scores) if isinstance(scores, str | Path) else instance(name, scores, Scores)


def _margin_checks(
    paired: LanguageFrame, totals: Mapping[str, Estimate], incomplete: LanguageFrame, *, limit: float
) -> Iterator[Check]:
    """Yields the decisions on the difference of all languages, of the mean and of the worst language.

    Simultaneous limits decide whether a language fails, because one failure is enough; its own upper limit decides
    whether it passes, because all must pass.
    """
    together, unit = paired.by_language(simultaneous=True), readable_unit(paired)
    differences = {
        code: replace(alone, low=min(alone.low, together[code].low)) if together[code].bounded else alone
        for code, alone in paired.by_language().items()
    }
    sides = {
        code: side_of_limit(difference, limit)
        for code, difference in differences.items()
        if together[code].bounded or difference.high <= limit
    }
    title = f"every language at most {limit:g} {unit} worse than the baseline"
    failed = [code for code in differences if sides.get(code) == "fail"]
    undecided = [code for code in differences if sides.get(code, "undecided") == "undecided"]
    worst = max(differences, key=lambda code: differences[code].high)
    outcome: Outcome = "undecided"
    if failed:
        outcome, reason = "fail", f"worse by more than {limit:g}: {_list(differences, failed, unit)}"
    elif paired.without_interval:
        reason = no_interval(paired)
    elif undecided:
        hardest = max(undecided, key=lambda code: times_as_much(differences[code], limit))
        reason = f"not certain to be at most {limit:g} worse: {_list(differences, undecided, unit)}. "
        reason += amount_needed(paired, differences[hardest], limit)
    else:
        most = _list(differences, [worst], unit)
        outcome, reason = "pass", f"none of {len(differences)} languages is more than {limit:g} worse, at most {most}"
    yield Check(title, outcome, reason, limit, differences[worst])
    for name, total in totals.items():
        title = f"{name} at most {limit:g} {unit} worse than the baseline"
        measured = f"{name} is worse by {format_estimate(total, unit)}"
        yield decide(title, measured, total, limit=limit, frame=incomplete)


def _at_most(subject: str, estimate: Estimate, unit: str) -> str:
    if estimate.high <= 0:
        return f"{subject} differs by {format_estimate(estimate, unit)}"
    return f"{subject} could still be up to {estimate.high:.3g} {unit} worse"


def _list(differences: Mapping[str, Estimate], codes: Sequence[str], unit: str) -> str:
    return ", ".join(f"{code} by {format_estimate(differences[code], unit)}" for code in codes)
