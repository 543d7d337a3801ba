"""The command `theory`: a table of all claims of the research notes, or one of them explained."""

from collections.abc import Mapping
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


def theory(
    claim: Annotated[str | None, typer.Option(help="Explain one claim, such as 004-13.", metavar="ID")] = None,
    as_json: Json = False,
    markdown: Annotated[bool, flag("--markdown", help="Print the page docs/research/theory.md.")] = False,
) -> None:
    """Recompute the verdict on every claim of the research notes.

    Examples:
      fairbits theory
      fairbits theory --claim 000-07
      fairbits theory --json > claims.json
    """
    from fairbits_research.claims.all_claims import all_claims, find_claim
    from fairbits_research.claims.claim_page import as_data, as_markdown

    if as_json and markdown:
        raise InputError("--json and --markdown were both given; choose one")
    claims = all_claims() if claim is None else [find_claim(claim)]
    results = {}
    with stages("recomputing claims") as show:
        for claim_to_check in claims:
            results[claim_to_check] = claim_to_check.check()
            show("recomputing claims", len(results), len(claims))
    if as_json:
        print_json(as_data(results))
    elif markdown:
        typer.echo(as_markdown(results), nl=False)
    elif claim is None:
        out.print(claims_table(results))
    else:
        out.print(claim_panel(claims[0], results[claims[0]]))


STYLES = {Verdict.HOLDS: "green", Verdict.CONDITIONAL: "yellow", Verdict.FAILS: "red", Verdict.UNDECIDED: "cyan"}
SHORT = {
    Verdict.HOLDS: "holds",
    Verdict.CONDITIONAL: "conditional",
    Verdict.FAILS: "fails",
    Verdict.UNDECIDED: "undecided",
}


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
