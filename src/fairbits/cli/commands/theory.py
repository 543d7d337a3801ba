"""The verb `theory` on the command line."""

from typing import Annotated

import typer

from fairbits.cli.options import Json, flag
from fairbits.cli.terminal import out, print_json, stages
from fairbits.errors import InputError


def theory(
    claim: Annotated[str | None, typer.Option(help="Explain one claim, such as 004-13.", metavar="ID")] = None,
    as_json: Json = False,
    markdown: Annotated[bool, flag("--markdown", help="Print the page docs/theory.md.")] = False,
) -> None:
    """Recompute the verdict on every claim of the founding documents.

    Examples:
      fairbits theory
      fairbits theory --claim 000-07
      fairbits theory --json > claims.json
    """
    from fairbits.cli.tables.theory import claim_panel, claims_table  # heavy: only when the verb runs
    from fairbits.science.claims import all_claims, find_claim
    from fairbits.science.claims.page import as_data, as_markdown

    if as_json and markdown:
        raise InputError("--json and --markdown were both given; choose one")
    claims = all_claims() if claim is None else [find_claim(claim)]
    results = {}
    with stages("recomputing claims") as show:
        for each in claims:
            results[each] = each.check()
            show("recomputing claims", len(results), len(claims))
    if as_json:
        print_json(as_data(results))
    elif markdown:
        typer.echo(as_markdown(results), nl=False)
    elif claim is None:
        out.print(claims_table(results))
    else:
        out.print(claim_panel(claims[0], results[claims[0]]))
