"""Result: what an experiment asked, what the founding documents predict, what came out, and the verdict."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from fairbits.artifacts import check_writable, write_files
from fairbits.records import Kind, Number, to_json
from fairbits.stats import Estimate

DIGITS = 4
"""Significant digits that a file keeps: more would differ from run to run."""

Cell = str | float | int


class Answer(StrEnum):
    """What an experiment says of a prediction."""

    SUPPORTED = "supported"
    NOT_SUPPORTED = "not supported"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Judgement:
    """What an experiment says of one claim: the answer, why in one clause without a full stop, and the numbers."""

    claim: str
    answer: Answer
    because: str
    numbers: Mapping[str, Number] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """Rows of a result; numbers stay numbers, an estimate is written with its interval (`written`)."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Series:
    """Points of a figure that belong together, with intervals where there are any."""

    name: str
    x: tuple[Number, ...]
    y: tuple[Number, ...]
    low: tuple[Number, ...] = ()
    high: tuple[Number, ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure:
    """A picture: `lines` joins the points of a series, `log` names the axes that are logarithmic ("x", "y", "xy")."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    lines: bool = False
    log: str = ""


@dataclass(frozen=True)
class Subject:
    """What was experimented on: model, text and how much of it, seeds."""

    model: str
    fingerprint: str
    text: str
    languages: int
    documents: int
    tokens: int
    seeds: tuple[int, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """One experiment.

    `answer` and `verdict`, one sentence, are on what the documents predict; `meaning` is what it means for a user.
    `power` says what more data would decide, where the answer is undecided.
    """

    name: str
    title: str
    question: str
    predicted: str
    design: str
    subject: Subject
    answer: Answer
    verdict: str
    meaning: str
    tables: tuple[Table, ...]
    figure: Figure
    judgements: tuple[Judgement, ...] = ()
    power: str = ""
    notes: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Returns all of it for JSON, numbers with four significant digits."""
        data: dict[str, Any] = _short(RESULT.stamp(asdict(self)))
        return data

    def as_bytes(self) -> bytes:
        """Returns the content of its file."""
        return to_json(self.as_data())

    def save(self, path: str | Path) -> None:
        """Writes it; the same result gives the same bytes."""
        write_files({check_writable(path, example="result.json"): self.as_bytes()})

    @classmethod
    def load(cls, path: str | Path) -> "Result":
        """Returns the result of a file; every key must be known."""
        return RESULT.read(path)


RESULT = Kind("fairbits.research/1", "a result", "fairbits research --out", Result)


def written(estimate: Estimate) -> str:
    """Returns an estimate with its interval, to four decimals or three significant digits.

    >>> written(Estimate(0.03214, 0.0288, 0.0359, 40)), written(Estimate(41.23, 38.0, 44.0, 40))
    ('0.0321 [0.0288, 0.0359]', '41.2 [38, 44]')
    """
    return "{} [{}, {}]".format(*map(brief, (estimate.value, estimate.low, estimate.high)))


def brief(number: float) -> str:
    """Returns a number as tables show it.

    >>> brief(0.03214), brief(41.23), brief(1.5e-7), brief(12000.0), brief(0.0)
    ('0.0321', '41.2', '1.5e-07', '12000', '0')
    """
    if number == 0 or abs(number) >= 1000:
        return f"{number + 0.0:.0f}"
    return f"{number:.4f}" if 0.001 <= abs(number) < 1 else f"{number:.3g}"


def cell_text(cell: Cell) -> str:
    """Returns a cell of a table as text.

    >>> cell_text(0.03214), cell_text(3), cell_text("eng_Latn")
    ('0.0321', '3', 'eng_Latn')
    """
    return brief(cell) if isinstance(cell, float) else str(cell)


def above(estimate: Estimate, limit: float) -> Answer:
    """Returns whether a quantity is above a limit: supported, not supported, or undecided if the interval holds it.

    >>> above(Estimate(0.6, 0.5, 0.7, 20), 0.4).value
    'supported'
    """
    if not estimate.excludes(limit):
        return Answer.UNDECIDED
    return Answer.SUPPORTED if estimate.value > limit else Answer.NOT_SUPPORTED


def below(estimate: Estimate, limit: float) -> Answer:
    """Returns whether a quantity is below a limit."""
    return turned(above(estimate, limit))


def turned(answer: Answer) -> Answer:
    """Returns the answer to the opposite question."""
    opposite = {Answer.SUPPORTED: Answer.NOT_SUPPORTED, Answer.NOT_SUPPORTED: Answer.SUPPORTED}
    return opposite.get(answer, answer)


def together(answers: Sequence[Answer]) -> Answer:
    """Returns what several experiments say together: what all say, else undecided.

    >>> together([Answer.SUPPORTED, Answer.UNDECIDED]).value
    'undecided'
    """
    first, *others = answers
    return first if all(each == first for each in others) else Answer.UNDECIDED


def every(answers: Iterable[Answer]) -> Answer:
    """Returns whether all parts of a prediction hold: supported if each is, not supported if one is not.

    >>> every([Answer.SUPPORTED, Answer.NOT_SUPPORTED, Answer.UNDECIDED]).value
    'not supported'
    """
    found = set(answers)
    return next(each for each in (Answer.NOT_SUPPORTED, Answer.UNDECIDED, Answer.SUPPORTED) if each in found)


def _short(value: Any) -> Any:
    """Rounds every float to DIGITS significant digits, and turns what is no JSON into what is."""
    if isinstance(value, Mapping):
        return {str(key): _short(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_short(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
