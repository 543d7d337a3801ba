"""A claim of the founding documents, and what recomputing its evidence found."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

DOCUMENTS = {
    "000": "Theoretical framework",
    "001": "Refined theory (v2)",
    "002": "Mathematical summary",
    "003": "Derivation set-up",
    "004": "Formal proofs",
}


class Verdict(StrEnum):
    """What the evidence says of a claim."""

    HOLDS = "holds"
    CONDITIONAL = "holds under a condition"
    FAILS = "does not hold"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Finding:
    """The verdict, one sentence of explanation, the numbers behind it, and the command if a model was measured."""

    verdict: Verdict
    summary: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    command: str | None = None


@dataclass(frozen=True)
class Claim:
    """One claim: `statement` in our words, `derivation` of the correct version, `check` recomputes the evidence."""

    id: str
    statement: str
    derivation: str
    check: Callable[[], Finding]

    @property
    def document(self) -> str:
        """The number of the founding document."""
        return self.id.split("-")[0]


def claim(id: str, *, statement: str, derivation: str) -> Callable[[Callable[[], Finding]], Claim]:
    """Turns a function that recomputes evidence into the claim it decides."""

    def wrap(check: Callable[[], Finding]) -> Claim:
        return Claim(id, statement, derivation, check)

    return wrap


def judged(holds: bool, summary: str, /, *, condition: float = False, **numbers: float) -> Finding:
    """Returns a finding that holds (under a condition, if so) or fails; numbers are keyword arguments.

    `condition` is true or false; its type is float only so that a dictionary of numbers can be unpacked beside it.

    >>> judged(2 < 3, "two is less", two=2).verdict
    <Verdict.HOLDS: 'holds'>
    """
    verdict = (Verdict.CONDITIONAL if condition else Verdict.HOLDS) if holds else Verdict.FAILS
    return Finding(verdict, summary, {key: float(value) for key, value in numbers.items()})
