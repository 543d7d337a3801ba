"""A claim of the research notes, and the finding on it: computed here, or measured by experiments."""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fairbits.core.errors import InputError
from fairbits.core.records import read_object

DOCUMENTS = {
    "000": "Theoretical framework",
    "001": "Refined theory (v2)",
    "002": "Mathematical summary",
    "003": "Derivation set-up",
    "004": "Formal proofs",
}
RECORDS = Path(__file__).parents[1] / "assets"
"""The results of `fairbits research` that come with the package: a directory per set, a file per experiment."""
SETS = {
    "declaration": "the embedded model and the declaration",
    "inserted": "the embedded model with inserted outliers and the declaration",
    "training-text": "the embedded model and text of its training corpus",
    "second-model": "a second model and text of its training corpus",
    "gemma-3-270m": "Gemma-3-270M and LibreOffice help",
    "trained-for-it": "models trained for it and held-out text",
}
"""Directory of RECORDS -> the model and text of the set, in the order of the page."""


class Verdict(StrEnum):
    """What the evidence says about a claim."""

    HOLDS = "holds"
    CONDITIONAL = "holds under a condition"
    FAILS = "does not hold"
    UNDECIDED = "undecided"


VERDICTS = {"supported": Verdict.HOLDS, "not supported": Verdict.FAILS, "undecided": Verdict.UNDECIDED}
"""The answer of an experiment -> the verdict on the claim."""


@dataclass(frozen=True)
class Finding:
    """The verdict, one sentence of explanation, the numbers that decide it, and the command if a model was measured.

    `missing` names the models that an undecided claim is about, where they were not measured.
    """

    verdict: Verdict
    summary: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    command: str | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """One claim: `statement` in our words, `derivation` of the correct version, `check` recomputes the evidence."""

    id: str
    statement: str
    derivation: str
    check: Callable[[], Finding]

    @property
    def document(self) -> str:
        """The number of the research note."""
        return self.id.split("-")[0]


CLAIMS: dict[str, Claim] = {}
"""Every claim whose module was imported, by id; see `all_claims`."""


class StoredJudgement(NamedTuple):
    """What one stored result says about one claim; `where` is its set, `model` the model that was measured."""

    where: str
    experiment: str
    model: str
    answer: str
    because: str
    numbers: dict[str, float]


def claim(id: str) -> Callable[[Callable[[], Finding]], Claim]:
    """Returns the decorator that turns a function which recomputes evidence into a claim, stated by its docstring."""

    def wrap(check: Callable[[], Finding]) -> Claim:
        CLAIMS[id] = Claim(id, " ".join((check.__doc__ or "").split()), derivations()[id], check)
        return CLAIMS[id]

    return wrap


@cache
def derivations() -> dict[str, str]:
    """Returns the derivation of the correct version of every claim, by id."""
    texts = tomllib.loads((RECORDS / "derivations.toml").read_text(encoding="utf-8"))
    return {id: " ".join(text.split()) for id, text in texts.items()}


def judge(holds: bool, summary: str, /, *, condition: float = False, **numbers: float) -> Finding:
    """Returns the finding that a claim holds, holds under a condition, or fails; numbers are keyword arguments.

    `condition` is true or false; its type is float only so that a dictionary of numbers can be unpacked next to it.
    """
    verdict = (Verdict.CONDITIONAL if condition else Verdict.HOLDS) if holds else Verdict.FAILS
    return Finding(verdict, summary, {key: float(value) for key, value in numbers.items()})


def from_experiments(claim: str, summary: str, /, *, about: Sequence[str] = (), **numbers: float) -> Finding:
    """Returns the finding of the experiments on a claim: their common verdict, or undecided where they disagree.

    `summary` and the numbers are what the documents' own data say. `about` names the models of a claim that is about
    these models only. It is undecided unless each experiment measured one of them: what another model shows is
    evidence and not a verdict.
    """
    judgements = stored_judgements().get(claim, ())
    if not judgements:
        raise InputError(f"no experiment has judged claim {claim}; files are missing in {RECORDS}: reinstall fairbits")
    verdicts = {VERDICTS[judgement.answer] for judgement in judgements}
    elsewhere = bool(about) and not all(_is_any_of(judgement.model, about) for judgement in judgements)
    verdict = verdicts.pop() if len(verdicts) == 1 and not elsewhere else Verdict.UNDECIDED
    evidence = "; ".join(f"{SETS[judgement.where]}: {judgement.because}" for judgement in judgements)
    if elsewhere:
        start = f"undecided because the claim is about {listed(about)}, not measured here"
        evidence = f"{start}. Evidence from others: {evidence}"
    values = {name: float(value) for name, value in numbers.items()}
    for judgement in judgements:
        values |= {
            f"{name}, {judgement.where.replace('-', ' ')}": float(value) for name, value in judgement.numbers.items()
        }
    command, missing = f"fairbits research {judgements[0].experiment}", tuple(about) if elsewhere else ()
    return Finding(verdict, f"{summary}; {evidence}", values, command, missing)


def with_measurements(claim: str, finding: Finding, what: str) -> Finding:
    """Returns a finding that was computed, with what experiments measured of the same claim; its verdict stays."""
    judgements = stored_judgements().get(claim, ())
    if not judgements:
        return finding
    evidence = "; ".join(f"{SETS[judgement.where]}: {judgement.because}" for judgement in judgements)
    return replace(
        finding,
        summary=f"{finding.summary}; {what}: {evidence}",
        command=f"fairbits research {judgements[0].experiment}",
    )


def _is_any_of(model: str, names: Sequence[str]) -> bool:
    """Returns whether a model's directory or Hub id names one of these models."""
    return any(name.lower().replace(" ", "-") in model.lower() for name in names)


def listed(names: Sequence[str]) -> str:
    """Returns names as a list in words.

    >>> listed(["mT5"]), listed(["Command R", "Command R+", "Aya 23"])
    ('mT5', 'Command R, Command R+ and Aya 23')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


@cache
def stored_judgements() -> dict[str, tuple[StoredJudgement, ...]]:
    """Returns the judgements of all stored results, by claim."""
    judgements: dict[str, tuple[StoredJudgement, ...]] = {}
    for where, data in stored_records():
        for stored in data["judgements"]:
            source = where, data["name"], data["subject"]["model"]
            judgement = StoredJudgement(*source, stored["answer"], stored["because"], stored["numbers"])
            judgements[stored["claim"]] = (*judgements.get(stored["claim"], ()), judgement)
    return judgements


def stored_records() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the set and the content of every stored result, set by set."""
    for where in SETS:
        for path in sorted((RECORDS / where).glob("*.json")):
            yield where, read_object(path)
