"""The results that come with the package, and the page docs/research/experiments.md made of them."""

from collections.abc import Iterator, Mapping

from fairbits_research.claims.claim import RECORDS, SETS, stored_records
from fairbits_research.experiments.result import RESULT, Answer, Result, ResultTable, cell_text, common_answer

Records = Mapping[str, Mapping[str, Result]]
"""Experiment -> set -> result."""
MARKS = {Answer.SUPPORTED: "✓", Answer.NOT_SUPPORTED: "✗", Answer.UNDECIDED: "?"}
FOLDED, LEFT_OUT = 14, 40
"""Tables with this many rows or more are folded, or left out."""


def all_records() -> dict[str, dict[str, Result]]:
    """Returns every result by experiment and set; sets in the order of the page."""
    results: dict[str, dict[str, Result]] = {}
    for where, data in stored_records():
        result = RESULT.parse(data, source=f"a stored result of {where}")
        results.setdefault(result.name, {})[where] = result
    return results


def overall_answer(results: Mapping[str, Result]) -> Answer:
    """Returns the common answer of the results of one experiment, undecided where they disagree."""
    return common_answer([results[where].answer for where in SETS if where in results])


def as_markdown(experiments: Mapping[str, str], records: Records) -> str:
    """Returns the page."""
    introduction = (RECORDS / "results-page.md").read_text(encoding="utf-8")
    lines = [*introduction.splitlines(), "", *_summary(records, experiments)]
    for number, name in enumerate((name for name in experiments if name in records), 1):
        lines += _experiment(number, records[name])
    return "\n".join(lines).rstrip() + "\n"


def _summary(records: Records, experiments: Mapping[str, str]) -> Iterator[str]:
    yield "| experiment | question | verdict | " + " | ".join(SETS) + " |"
    yield "|---|---|---|" + "---|" * len(SETS)
    for name, question in experiments.items():
        if name in records:
            results = records[name]
            answers = (results[where].answer.value if where in results else "–" for where in SETS)
            answer = overall_answer(results)
            yield f"| [{name}](#{name}) | {question} | {MARKS[answer]} {answer.value} | {' | '.join(answers)} |"
    yield ""


def _experiment(number: int, results: Mapping[str, Result]) -> Iterator[str]:
    first = next(iter(results.values()))
    yield from (
        f"## {first.name}",
        "",
        f"Experiment {number}: {first.title[0].lower()}{first.title[1:]}. **{first.question}**",
        "",
    )
    yield from (f"The documents predict: {first.predicted}", "")
    yield from (f"Command: `fairbits research {first.name}`", "")
    for where, result in results.items():
        yield from _one(where, result)


def _one(where: str, result: Result) -> Iterator[str]:
    subject = result.subject
    label = SETS[where]
    yield from (f"### {label[0].upper()}{label[1:]}", "")
    seeds = f"seed{'s' if len(subject.seeds) > 1 else ''} {', '.join(map(str, subject.seeds))}"
    yield f"{subject.languages} languages, {subject.documents:,} documents, {subject.tokens:,} tokens, {seeds}."
    yield from (
        "",
        f"Design: {result.design}",
        "",
        f"![{result.figure.title}](../assets/research/{where}-{result.name}.svg)",
        "",
    )
    for table in result.tables:
        yield from _table(table)
    yield from (
        f"{MARKS[result.answer]} **{result.answer.value}**: {result.verdict}",
        "",
        f"What this means for you: {result.meaning}",
        "",
    )
    if result.power:
        yield from (f"Power: {result.power}", "")
    for note in result.notes:
        yield from (f"Note: {note}", "")


def _table(table: ResultTable) -> Iterator[str]:
    if len(table.rows) >= LEFT_OUT:
        yield from (f"{table.title}: {len(table.rows)} rows, which the command prints.", "")
        return
    folded = len(table.rows) >= FOLDED
    if folded:
        yield from ('<details markdown="1">', f"<summary>{table.title}</summary>", "")
    else:
        yield from (f"{table.title}:", "")
    yield "| " + " | ".join(table.columns) + " |"
    yield "|" + "---|" * len(table.columns)
    for row in table.rows:
        yield "| " + " | ".join(map(cell_text, row)) + " |"
    yield from ("", "</details>", "") if folded else ("",)
