"""Limits of a gate: whether an estimate is certainly within one, certainly above it, or neither."""

import math

from fairbits.errors import count_of
from fairbits.stats import Estimate, LanguageFrame
from fairbits.stats.no_interval import why_none_over_languages
from fairbits.verbs.verdict import Check, Outcome


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
