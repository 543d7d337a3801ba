"""The results that come with the package, set by set."""

from collections.abc import Mapping

from fairbits.science.claims.measured import SETS, records
from fairbits.science.experiments.result import Answer, Result, together

Records = Mapping[str, Mapping[str, Result]]
"""Experiment -> set -> result."""


def all_records() -> dict[str, dict[str, Result]]:
    """Returns every result by experiment and set; sets in the order in which they are told."""
    found: dict[str, dict[str, Result]] = {}
    for where, data in records():
        result = Result.of({key: value for key, value in data.items() if key not in ("schema", "fairbits")})
        found.setdefault(result.name, {})[where] = result
    return found


def overall(results: Mapping[str, Result]) -> Answer:
    """Returns what the results of one experiment say together."""
    return together([results[where].answer for where in SETS if where in results])
