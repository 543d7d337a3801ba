"""Result: what an experiment asked, what the founding documents predict, what came out, and the verdict."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from fairbits.artifacts import check_writable, write_files
from fairbits.errors import InputError, printable
from fairbits.stats import Estimate
from fairbits.version import __version__

SCHEMA = "fairbits.research/1"
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
    numbers: Mapping[str, float] = field(default_factory=dict)


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
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
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
        data: dict[str, Any] = _short({"schema": SCHEMA, "fairbits": __version__} | asdict(self))
        return data

    def as_bytes(self) -> bytes:
        """Returns the content of its file."""
        text = json.dumps(self.as_data(), ensure_ascii=False, indent=1, allow_nan=False)
        return "\n".join(map(printable, text.split("\n"))).encode() + b"\n"

    def save(self, path: str | Path) -> None:
        """Writes it; the same result gives the same bytes."""
        write_files({check_writable(path, example="result.json"): self.as_bytes()})

    @classmethod
    def load(cls, path: str | Path) -> "Result":
        """Returns the result of a file; every key must be known."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise InputError(f"{path} is no result ({problem}); write one with fairbits research --out") from None
        if not isinstance(data, dict) or data.pop("schema", None) != SCHEMA:
            raise InputError(f"{path} has not the schema {SCHEMA}: write it with fairbits research --out")
        try:
            del data["fairbits"]
            return cls.of(data)
        except (KeyError, TypeError, ValueError) as problem:
            raise InputError(f"{path} is damaged ({problem}); write it again with fairbits research --out") from None

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Result":
        """Returns the result that the data of a file hold."""
        figure = dict(data["figure"])
        numbers = ("x", "y", "low", "high", "labels")
        series = tuple(Series(each["name"], *(tuple(each[key]) for key in numbers)) for each in figure.pop("series"))
        subject = {**data["subject"], "seeds": tuple(data["subject"]["seeds"])}
        known = {
            "subject": Subject(**subject),
            "answer": Answer(data["answer"]),
            "tables": tuple(
                Table(t["title"], tuple(t["columns"]), tuple(map(tuple, t["rows"]))) for t in data["tables"]
            ),
            "figure": Figure(**figure, series=series),
            "judgements": tuple(Judgement(**{**j, "answer": Answer(j["answer"])}) for j in data["judgements"]),
            "notes": tuple(data["notes"]),
        }
        return cls(**{**data, **known})


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
