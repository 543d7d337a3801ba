"""The statements of the research notes, sentence by sentence: a verdict on each, and the command that runs it.

A claim decides most of them, a stored experiment, or a part of one, some. Definitions, algorithms and deliverables,
which the code carries out, have their verdict in `assets/statements.csv`. docs/research/sections.md is made of these.
"""

import csv
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from itertools import groupby
from typing import Any

from fairbits_research.claims.claim import (
    DOCUMENTS,
    RECORDS,
    SETS,
    VERDICTS,
    Claim,
    Finding,
    Verdict,
    listed,
    stored_records,
)
from fairbits_research.experiments.result import EXPERIMENTS


class Standing(StrEnum):
    """What became of a statement."""

    AS_WRITTEN = "as written"
    CORRECTED = "corrected"
    REFUTED = "refuted"
    UNDECIDED = "undecided"
    UNTESTABLE = "cannot be tested here"


STANDINGS = {
    Verdict.HOLDS: Standing.AS_WRITTEN,
    Verdict.CONDITIONAL: Standing.CORRECTED,
    Verdict.FAILS: Standing.REFUTED,
    Verdict.UNDECIDED: Standing.UNDECIDED,
}
"""The verdict on a claim -> what becomes of the statements that it decides."""
SIGNS = dict(zip(Standing, "✓✓✗??", strict=True))
OUTPUT_PAGE = "on-gemma-3-270m.md"
"""What commands print on Gemma-3-270M, each under its name."""
COMMANDS = ("inspect", "screen", "audit", "laaciq", "auto", "keep", "gateway", "compare")
NOT_SHOWN = (
    "mediation",
    "own-thresholds",
    "layer-ablation",
    "outliers",
    "calibration-language",
    "price-of-sharing",
    "null-controls",
    "training-choices",
)
SHOWN = frozenset({*COMMANDS, *EXPERIMENTS}.difference(NOT_SHOWN))
"""The names on that page."""
MEASURED_BY = "measured by "
"""How the verdict of a statement begins that a stored experiment decides: `measured by EXPERIMENT[: PART]`."""


@dataclass(frozen=True)
class Statement:
    """One statement of a note; `verdict` is empty where the claim decides, `why` explains a verdict.

    `measured by probes` is the verdict where the stored results of that experiment decide, and `measured by
    gateway-assumptions: the last block` where a row of its table of answers does.
    """

    document: str
    section: str
    kind: str
    statement: str
    claim: str
    command: str
    verdict: str
    why: str

    @property
    def place(self) -> str:
        """The note and its section."""
        return f"{self.document} {self.section}"


@dataclass(frozen=True)
class Judged:
    """A statement with its verdict and the reason for it."""

    statement: Statement
    standing: Standing
    why: str

    @property
    def mark(self) -> str:
        """The verdict in a table."""
        return f"{SIGNS[self.standing]} {self.standing.value}"


@cache
def all_statements() -> tuple[Statement, ...]:
    """Returns every statement, in the order of the notes."""
    with (RECORDS / "statements.csv").open(encoding="utf-8", newline="") as file:
        return tuple(Statement(**row) for row in csv.DictReader(file))


def judge_statement(statement: Statement, finding: Finding | None) -> Judged:
    """Returns one statement with its verdict: that of its row, else that of its claim, whose finding this is."""
    if statement.verdict.startswith(MEASURED_BY):
        return _measured(statement, *statement.verdict.removeprefix(MEASURED_BY).split(": "))
    if statement.verdict:
        return Judged(statement, Standing(statement.verdict), statement.why)
    if finding is None:
        raise ValueError(f"{statement.place}: neither a verdict nor a claim decides {statement.statement!r}")
    if finding.missing:
        return Judged(statement, Standing.UNTESTABLE, f"the weights of {listed(finding.missing)} could not be had here")
    return Judged(statement, STANDINGS[finding.verdict], finding.summary)


def _measured(statement: Statement, experiment: str, part: str | None = None) -> Judged:
    """Returns a statement with the common verdict of the stored results, undecided where they disagree."""
    answers = {}
    for where, data in stored_records():
        if data["name"] == experiment:
            rows = [row for table in data["tables"] for row in table["rows"] if row[0] == part and len(row) == 2]
            answers[where] = data["answer"] if part is None else rows[0][1]
    verdicts = {VERDICTS[answer] for answer in answers.values()}
    verdict = verdicts.pop() if len(verdicts) == 1 else Verdict.UNDECIDED
    parts = [
        f"{answer}: {'; '.join(SETS[where] for where in answers if answers[where] == answer)}"
        for answer in dict.fromkeys(answers.values())
    ]
    return Judged(statement, STANDINGS[verdict], f"{statement.why}. {'. '.join(parts)}")


def find_statements(words: str, claims: Mapping[str, Claim]) -> list[Statement]:
    """Returns the statements that hold all of the words, in their own text or in that of their claim."""
    wanted = words.casefold().split()
    return [s for s in all_statements() if all(word in _searched(s, claims.get(s.claim)) for word in wanted)]


def _searched(statement: Statement, claim: Claim | None) -> str:
    texts = [statement.place, statement.statement, statement.kind, statement.command, statement.why, statement.claim]
    texts += [] if claim is None else [claim.statement, claim.derivation]
    return " ".join(texts).casefold()


@cache
def commands_by_claim() -> dict[str, tuple[str, ...]]:
    """Returns the commands on a model for each claim, in the order of the statements that it decides."""
    commands: dict[str, tuple[str, ...]] = {}
    for statement in all_statements():
        if statement.claim and "fairbits theory" not in statement.command:
            earlier = commands.get(statement.claim, ())
            commands[statement.claim] = tuple(dict.fromkeys((*earlier, statement.command)))
    return commands


def count_standings(judged: Sequence[Judged]) -> str:
    """Returns the number of statements per verdict, in words."""
    tally = Counter(item.standing for item in judged)
    parts = [f"{tally[standing]} {standing.value}" for standing in Standing if tally[standing]]
    return f"{len(judged)} statements: {', '.join(parts)}"


def as_data(judged: Sequence[Judged]) -> dict[str, Any]:
    """Returns the statements and their verdicts for JSON."""
    tally = Counter(item.standing for item in judged)
    return {
        "counts": {standing.value: tally[standing] for standing in Standing},
        "statements": [asdict(item.statement) | {"verdict": item.standing.value, "why": item.why} for item in judged],
    }


def as_markdown(judged: Sequence[Judged]) -> str:
    """Returns the page docs/research/sections.md."""
    page = (RECORDS / "sections-page.md").read_text(encoding="utf-8")
    lines = [*page.replace("COUNTS", f"**{count_standings(judged)}**").splitlines(), ""]
    for document, of_document in groupby(judged, key=lambda item: item.statement.document):
        lines += [f"## Note {document}: {DOCUMENTS[document].lower()}", ""]
        for section, items in groupby(of_document, key=lambda item: item.statement.section):
            lines += _section(section, list(items))
    return "\n".join(lines).rstrip() + "\n"


def _section(section: str, items: Sequence[Judged]) -> Iterator[str]:
    yield from (f"### {items[0].statement.document} {section}", "")
    yield from ("| statement | run it | output | verdict | evidence |", "|---|---|---|---|---|")
    for item in items:
        statement = item.statement
        link = f"[{statement.claim}](theory.md#{statement.claim})" if statement.claim else ""
        why = item.why if statement.why or item.standing is Standing.UNTESTABLE else ""
        evidence = ": ".join(filter(None, (link, _cell(why))))
        name = output_name(statement.command)
        output = f"[{name}]({OUTPUT_PAGE}#{name})" if name in SHOWN else ""
        yield f"| {_cell(statement.statement)} | `{_cell(statement.command)}` | {output} | {item.mark} | {evidence} |"
    yield ""


def output_name(command: str) -> str:
    """Returns the name under which a page shows what a command prints.

    >>> output_name("fairbits research probes --model MODEL"), output_name("fairbits plan MODEL --policy gateway")
    ('probes', 'gateway')
    """
    _, name, *words = shlex.split(command)
    if name == "plan":
        return "keep" if "--keep" in words else words[words.index("--policy") + 1]
    return words[0] if name == "research" else name


def _cell(text: str) -> str:
    """Returns text that does not end a cell of a table in Markdown."""
    return text.replace("|", "\\|")
