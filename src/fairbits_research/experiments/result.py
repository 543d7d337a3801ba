"""Result: the question of an experiment, the prediction of the research notes, what was found, and the verdict."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fairbits.core.errors import InputError
from fairbits.core.files import check_writable, write_files
from fairbits.core.records import Count, Digest, Kind, Matching, Number, to_json
from fairbits.stats.intervals import Estimate

DIGITS = 4
"""Significant digits that a file keeps; further digits would differ from run to run."""

Cell = str | Number
Axes = Annotated[str, Matching("|x|y|xy", "'', x, y or xy")]


class Answer(StrEnum):
    """What an experiment says about a prediction."""

    SUPPORTED = "supported"
    NOT_SUPPORTED = "not supported"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Judgement:
    """What an experiment says about one claim: the answer, the reason as a clause without a full stop, and numbers."""

    claim: str
    answer: Answer
    because: str
    numbers: Mapping[str, Number] = field(default_factory=dict)


@dataclass(frozen=True)
class ResultTable:
    """Rows of a result; numbers stay numbers, an estimate is text with its interval (`estimate_text`)."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        """Checks that every row has a cell for every column."""
        odd = next((row for row in self.rows if len(row) != len(self.columns)), None)
        if odd is not None:
            raise InputError(f"a row of {self.title!r:.60} has {len(odd)} cells; it must have {len(self.columns)}")


@dataclass(frozen=True)
class Series:
    """Points of a figure that belong together, with intervals where there are any."""

    name: str
    x: tuple[Number, ...]
    y: tuple[Number, ...]
    low: tuple[Number, ...] = ()
    high: tuple[Number, ...] = ()
    labels: tuple[str, ...] = ()

    @classmethod
    def of_estimates(
        cls, name: str, x: Iterable[float], estimates: Iterable[Estimate], labels: Iterable[str] = ()
    ) -> "Series":
        """Returns points with intervals."""
        y, low, high = zip(*((e.value, e.low, e.high) for e in estimates), strict=True)
        return cls(name, tuple(x), y, low, high, tuple(labels))

    def __post_init__(self) -> None:
        """Checks that every point has all of its numbers."""
        sizes = {name: len(getattr(self, name)) for name in ("x", "y", "low", "high", "labels")}
        odd = [name for name, size in sizes.items() if size != len(self.x) and (size or name == "y")]
        if odd:
            raise InputError(f"{odd[0]} of {self.name!r:.60} has {sizes[odd[0]]} entries; it must have {len(self.x)}")


@dataclass(frozen=True)
class ResultFigure:
    """A picture: `lines` joins the points of a series, `log` names the axes that are logarithmic ("x", "y", "xy")."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    lines: bool = False
    log: Axes = ""


@dataclass(frozen=True)
class ExperimentSubject:
    """What an experiment was run on: model, text and its size, seeds."""

    model: str
    fingerprint: Digest
    text: str
    languages: Count
    documents: Count
    tokens: Count
    seeds: tuple[Count, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """One experiment.

    `answer` and `verdict`, one sentence, concern the prediction of the documents; `meaning` is what follows for a user.
    `power` says how much more data would decide, where the answer is undecided.
    """

    name: str
    title: str
    question: str
    predicted: str
    design: str
    subject: ExperimentSubject
    answer: Answer
    verdict: str
    meaning: str
    tables: tuple[ResultTable, ...]
    figure: ResultFigure
    judgements: tuple[Judgement, ...] = ()
    power: str = ""
    notes: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Returns the result for JSON, numbers to four significant digits."""
        data: dict[str, Any] = _short(RESULT.stamp(asdict(self)))
        return data

    def as_bytes(self) -> bytes:
        """Returns the content of its file; the same result gives the same bytes."""
        return to_json(self.as_data())

    def save(self, path: str | Path) -> None:
        """Writes it."""
        write_files({check_writable(path, example="result.json"): self.as_bytes()})

    @classmethod
    def load(cls, path: str | Path) -> "Result":
        """Returns the result of a file; every key must be known."""
        return RESULT.read(path)


@cache
def descriptions() -> dict[str, dict[str, str]]:
    """Returns what every experiment asks: its short question for the list, title, question and prediction."""
    text = Path(__file__).parents[1].joinpath("assets/experiments.toml").read_text(encoding="utf-8")
    experiments = tomllib.loads(text)
    return {name: {key: " ".join(words.split()) for key, words in entry.items()} for name, entry in experiments.items()}


EXPERIMENTS: Mapping[str, str] = {name: texts["short"] for name, texts in descriptions().items()}
"""Name -> the tested prediction as a question, in the order of the page."""
EVERY = "all"


def describe(name: str, **measured: Any) -> Result:
    """Returns the result of an experiment from its measurements; what it asks is in the list of experiments."""
    asked: dict[str, Any] = {key: text for key, text in descriptions()[name].items() if key != "short"}
    return Result(name=name, **asked, **measured)


RESULT = Kind("fairbits.research/1", "a result", "fairbits research --out", Result)


def estimate_text(estimate: Estimate) -> str:
    """Returns an estimate with its interval, to four decimals or three significant digits.

    >>> estimate_text(Estimate(0.03214, 0.0288, 0.0359, 40)), estimate_text(Estimate(41.23, 38.0, 44.0, 40))
    ('0.0321 [0.0288, 0.0359]', '41.2 [38, 44]')
    """
    if not estimate.bounded:
        return f"{number_text(estimate.value)} (no interval)"
    return "{} [{}, {}]".format(*map(number_text, (estimate.value, estimate.low, estimate.high)))


ROUNDING = 1e-12
"""Numbers below are what rounding in float64 leaves of 0."""


def number_text(number: float) -> str:
    """Returns a number as tables show it.

    >>> [number_text(number) for number in (0.03214, 41.23, 1.5e-7, 12000.0, 2e-17)]
    ['0.0321', '41.2', '1.5e-07', '12000', '0']
    """
    if abs(number) < ROUNDING or abs(number) >= 1000:
        return f"{round(number) + 0}"
    return f"{number:.4f}" if 0.001 <= abs(number) < 1 else f"{number:.3g}"


def cell_text(cell: Cell) -> str:
    """Returns a cell of a table as text."""
    return number_text(cell) if isinstance(cell, float) else str(cell)


def is_above(estimate: Estimate, limit: float) -> Answer:
    """Returns whether a quantity is above a limit; undecided if its interval contains the limit."""
    if not estimate.excludes(limit):
        return Answer.UNDECIDED
    return Answer.SUPPORTED if estimate.value > limit else Answer.NOT_SUPPORTED


def is_below(estimate: Estimate, limit: float) -> Answer:
    """Returns whether a quantity is below a limit; undecided if its interval contains the limit."""
    if not estimate.excludes(limit):
        return Answer.UNDECIDED
    return Answer.SUPPORTED if estimate.value < limit else Answer.NOT_SUPPORTED


def common_answer(answers: Sequence[Answer]) -> Answer:
    """Returns the answer that several experiments share, undecided where they differ."""
    return answers[0] if len(set(answers)) == 1 else Answer.UNDECIDED


def all_of(answers: Iterable[Answer]) -> Answer:
    """Returns whether all parts of a prediction hold: supported if each is, not supported if one is not."""
    parts = set(answers)
    return next(answer for answer in (Answer.NOT_SUPPORTED, Answer.UNDECIDED, Answer.SUPPORTED) if answer in parts)


def estimate_numbers(name: str, estimate: Estimate) -> dict[str, float]:
    """Returns an estimate as numbers of a judgement."""
    return {name: estimate.value, "low": estimate.low, "high": estimate.high}


def sentence(clause: str) -> str:
    """Returns a clause with a capital first letter."""
    return clause[0].upper() + clause[1:]


def _short(value: Any) -> Any:
    """Returns the value with floats rounded to DIGITS significant digits, and as types that JSON has."""
    if isinstance(value, Mapping):
        return {str(key): _short(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_short, value))
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
