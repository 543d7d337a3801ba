"""Languages for which no interval can be formed: the reasons, and the notes that state them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fairbits.errors import count_of
from fairbits.stats.intervals import Estimate
from fairbits.stats.resample import LEAST_DOCUMENTS

if TYPE_CHECKING:
    from fairbits.stats.frame import LanguageFrame

NAMED = 5
"""Languages that a note names at most."""


def few_documents(documents: int) -> str:
    """Returns the reason why a language with few documents has no interval.

    >>> few_documents(1)
    '1 document; an interval needs at least 5'
    """
    return f"{count_of(documents, 'document')}; an interval needs at least {LEAST_DOCUMENTS}"


def few_common(documents: int, common: int) -> str:
    """Returns the reason for a language with few of the documents that it is resampled with."""
    return f"it has {documents} of the {common} documents that it is resampled with, which is too few"


def few_varying(documents: int) -> str:
    """Returns the reason for a language whose interval is unbounded."""
    return f"its {documents} documents vary too little: the interval is unbounded"


def interval_notes(frame: "LanguageFrame", shown: Mapping[str, Estimate | None] | None = None) -> tuple[str, ...]:
    """Returns notes on the languages without an interval, and on `shown` statistics of all languages without one."""
    codes: dict[str, list[str]] = {}
    for code, reason in frame.without_interval.items():
        codes.setdefault(reason, []).append(code)
    reasons = "; ".join(f"{_listed(each)}: {reason}" for reason, each in codes.items())
    if len(frame.without_interval) == len(frame.languages):
        return (f"no language has an interval, so worst, best, mean and gap have none either ({reasons})",)
    notes = [
        f"no interval for {_listed(each)}: {reason}; left out of worst, best, mean and gap"
        for reason, each in codes.items()
    ]
    missing = [name for name, each in (shown or {}).items() if each is not None and not each.bounded]
    if missing:
        notes.append(f"no interval for {', '.join(missing)}: {why_none_over_languages(frame)}")
    return tuple(notes)


def why_none_over_languages(frame: "LanguageFrame") -> str:
    """Returns why a statistic of all languages has no interval."""
    if len(frame.languages) - len(frame.without_interval) < 2 <= len(frame.languages):
        return "fewer than 2 languages have an interval"
    return "there are too few documents per language for this many languages"


def _listed(codes: list[str]) -> str:
    """Returns the first codes, and how many more there are.

    >>> _listed(["a", "b"]), _listed(list("abcdefg"))
    ('a, b', 'a, b, c, d, e and 2 more')
    """
    more = len(codes) - NAMED
    return ", ".join(codes[:NAMED]) + (f" and {more} more" if more > 0 else "")
