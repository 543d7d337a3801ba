"""The command `theory`: all claims of the research notes, one of them explained, or statements with their commands."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fairbits.cli.options import Json, flag
from fairbits.cli.terminal import out, print_json, stages
from fairbits.core.errors import InputError
from fairbits_research.claims.claim import DOCUMENTS, Claim, Finding, Verdict
from fairbits_research.claims.statements import Judged, Standing


def theory(
    claim: Annotated[str | None, typer.Option(help="Explain one claim, such as 004-13.", metavar="ID")] = None,
    find: Annotated[
        str | None,
        typer.Option(help="Show the statements with these words, and the command that runs each.", metavar="WORDS"),
    ] = None,
    statements: Annotated[
        bool, flag("--statements", help="Show every statement: section, verdict, and the command that runs it.")
    ] = False,
    as_json: Json = False,
    markdown: Annotated[
        bool,
        flag("--markdown", help="Print docs/research/theory.md; with --statements, docs/research/sections.md."),
    ] = False,
) -> None:
    """Recompute the verdict on every claim of these research notes.

    Examples:
      fairbits theory
      fairbits theory --claim 000-07
      fairbits theory --find "effective kurtosis"
      fairbits theory --statements
    """
    from fairbits_research.claims import statements as notes
    from fairbits_research.claims.all_claims import all_claims, find_claim
    from fairbits_research.claims.claim_page import as_data, as_markdown

    options = {"--claim": claim is not None, "--find": find is not None, "--statements": statements}
    chosen = [name for name, used in options.items() if used]
    if len(chosen) > 1 or (as_json and markdown) or (markdown and find is not None):
        both = [*chosen, *(["--json"] if as_json else []), *(["--markdown"] if markdown else [])]
        raise InputError(f"{' and '.join(both)} were given; give one of them")
    claims = {listed.id: listed for listed in (all_claims() if claim is None else [find_claim(claim)])}
    searched = notes.all_statements() if find is None else notes.find_statements(find, claims)
    if not searched:
        raise InputError(
            f"no statement has all of the words {find!r:.60}; try fewer, or `fairbits theory --statements`"
        )
    if find is not None:
        claims = {id: claims[id] for id in claims if any(statement.claim == id for statement in searched)}
    results = {}
    with stages("recomputing claims") as show:
        for claim_to_check in claims.values():
            results[claim_to_check] = claim_to_check.check()
            show("recomputing claims", len(results), len(claims))
    if statements or find is not None:
        findings = {checked.id: finding for checked, finding in results.items()}
        judged = [notes.judge_statement(statement, findings.get(statement.claim)) for statement in searched]
        if markdown:
            typer.echo(notes.as_markdown(judged), nl=False)
        elif as_json:
            print_json(notes.as_data(judged))
        else:
            out.print(statements_list(judged))
    elif as_json:
        print_json(as_data(results))
    elif markdown:
        typer.echo(as_markdown(results), nl=False)
    elif claim is None:
        out.print(claims_table(results))
    else:
        out.print(claim_panel(*next(iter(results.items()))))


STYLES = {Verdict.HOLDS: "green", Verdict.CONDITIONAL: "yellow", Verdict.FAILS: "red", Verdict.UNDECIDED: "cyan"}
SHORT = {
    Verdict.HOLDS: "holds",
    Verdict.CONDITIONAL: "conditional",
    Verdict.FAILS: "fails",
    Verdict.UNDECIDED: "undecided",
}


STANDING_STYLES = {
    Standing.AS_WRITTEN: "green",
    Standing.CORRECTED: "yellow",
    Standing.REFUTED: "red",
    Standing.UNDECIDED: "cyan",
    Standing.UNTESTABLE: "cyan",
}


def statements_list(judged: Sequence[Judged]) -> Group:
    """Returns each statement with its place in the notes, its verdict and the command that runs it."""
    from fairbits_research.claims.statements import count_standings

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for item in judged:
        statement = item.statement
        place = f"{statement.document} §{statement.section}"
        table.add_row(Text(place, style="bold"), Text(statement.statement))
        claim = f" ({statement.claim})" if statement.claim else ""
        why = f": {item.why}" if statement.why or item.standing is Standing.UNTESTABLE else ""
        table.add_row("", Text(f"{item.mark}{claim}{why}", style=STANDING_STYLES[item.standing]))
        table.add_row("", Text(statement.command, style="dim"))
    return Group(table, Text(), Text(count_standings(judged), style="bold"))


def claims_table(results: Mapping[Claim, Finding]) -> Group:
    """Returns one row per claim, grouped by document, and the number of claims per verdict."""
    from fairbits_research.claims.claim_page import MARKS, count_words

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("id", no_wrap=True)
    table.add_column("claim", ratio=5)
    table.add_column("verdict", no_wrap=True)
    table.add_column("evidence", ratio=5)
    document = None
    for claim, finding in results.items():
        if claim.document != document:
            document = claim.document
            table.add_row("", Text(f"\n{document} · {DOCUMENTS[document]}", style="bold"), "", "")
        verdict = Text(f"{MARKS[finding.verdict]} {SHORT[finding.verdict]}", style=STYLES[finding.verdict])
        evidence = finding.summary if finding.command is None else f"{finding.summary} → {finding.command}"
        table.add_row(claim.id, claim.statement, verdict, evidence)
    return Group(table, Text(), Text(count_words(results.values()), style="bold"))


def claim_panel(claim: Claim, finding: Finding) -> Panel:
    """Returns one claim explained: statement, verdict, numbers, derivation."""
    from fairbits_research.claims.claim_page import MARKS, brief_number, number_words

    style = STYLES[finding.verdict]
    numbers = Table(box=None, show_header=False, pad_edge=False)
    for name, value in finding.numbers.items():
        numbers.add_row(number_words(name), brief_number(value))
    parts: list[RenderableType] = [
        Text(claim.statement, style="bold"),
        Text(f"\n{MARKS[finding.verdict]} {finding.verdict.value}: {finding.summary}.", style=style),
    ]
    if finding.command:
        parts.append(Text(f"measured by: {finding.command}", style=style))
    parts += [Text(), numbers, Text(f"\n{claim.derivation}")]
    title = f"{claim.id} · {DOCUMENTS[claim.document]}"
    return Panel(Group(*parts), title=title, title_align="left", width=100)
