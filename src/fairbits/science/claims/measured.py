"""What the experiments of `fairbits research` found of a claim: their results come with the package."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fairbits.errors import InputError
from fairbits.science.claims.claim import Finding, Verdict

RECORDS = Path(__file__).parents[2] / "assets" / "research"
"""One directory per set of results, one file per experiment."""
SETS = {
    "declaration": "the embedded model and the declaration",
    "training-text": "the embedded model and its training text",
    "second-model": "a second model and its training text",
    "trained-for-it": "models trained for it and text kept apart from them",
}
"""Directory -> what was experimented on, in the order in which results are told."""
VERDICTS = {
    "supported": Verdict.HOLDS,
    "not supported": Verdict.FAILS,
    "undecided": Verdict.UNDECIDED,
}


class Judgement(NamedTuple):
    """What one experiment says of one claim; `where` is the set, `experiment` its name."""

    where: str
    experiment: str
    answer: str
    because: str
    numbers: dict[str, float]


def measured(claim: str, summary: str, /, **numbers: float) -> Finding:
    """Returns what experiments found of a claim: what all of them say, else that it is undecided.

    `summary` and the numbers are what the documents' own data say.
    """
    found = judgements().get(claim, ())
    if not found:
        raise InputError(f"no experiment has judged claim {claim}; the files in {RECORDS} are not all there")
    verdicts = {VERDICTS[each.answer] for each in found}
    verdict = verdicts.pop() if len(verdicts) == 1 else Verdict.UNDECIDED
    said = "; ".join(f"{SETS[each.where]}: {each.because}" for each in found)
    values = {name: float(value) for name, value in numbers.items()}
    for each in found:
        values |= {f"{name}, {each.where.replace('-', ' ')}": float(value) for name, value in each.numbers.items()}
    return Finding(verdict, f"{summary}; {said}", values, f"fairbits research {found[0].experiment}")


@cache
def judgements() -> dict[str, tuple[Judgement, ...]]:
    """Returns the judgements of all experiments, by claim."""
    found: dict[str, tuple[Judgement, ...]] = {}
    for where, data in records():
        for each in data["judgements"]:
            told = Judgement(where, data["name"], each["answer"], each["because"], each["numbers"])
            found[each["claim"]] = (*found.get(each["claim"], ()), told)
    return found


def records() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the set and the content of every file of results, set by set."""
    for where in SETS:
        for path in sorted((RECORDS / where).glob("*.json")):
            yield where, json.loads(path.read_text(encoding="utf-8"))
