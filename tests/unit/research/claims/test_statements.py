import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fairbits.cli import app
from fairbits_research.claims.all_claims import all_claims
from fairbits_research.claims.claim import CLAIMS, Finding, Verdict
from fairbits_research.claims.statements import (
    MEASURED_BY,
    OUTPUT_PAGE,
    Standing,
    Statement,
    all_statements,
    as_markdown,
    commands_by_claim,
    find_statements,
    judge_statement,
)
from fairbits_research.experiments.result import EXPERIMENTS

ROW = {"document": "000", "section": "1.1", "kind": "claim", "statement": "s", "command": "fairbits theory", "why": ""}
CONTEXT = typer.main.get_command(app)


def test_every_statement_is_listed_and_has_a_verdict_or_a_claim():
    statements = all_statements()
    assert len(statements) == 218
    allowed = {"", *(standing.value for standing in Standing)}
    others = {statement.verdict for statement in statements} - allowed
    assert {other.removeprefix(MEASURED_BY).split(": ")[0] for other in others} <= set(EXPERIMENTS)
    assert not [s for s in statements if not s.verdict and s.claim not in CLAIMS]
    assert not [s for s in statements if s.verdict and not s.why]


def test_every_claim_decides_a_statement_and_has_a_command():
    assert {claim.id for claim in all_claims()} == {s.claim for s in all_statements() if s.claim}


@pytest.mark.parametrize("command", sorted({statement.command for statement in all_statements()}))
def test_commands_parse(command, tmp_path, monkeypatch):
    """A flag that does not exist, an unknown policy option or a missing argument raises here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "DIR").mkdir()
    program, name, *arguments = shlex.split(command)
    assert program == "fairbits"
    parsed = CONTEXT.commands[name].make_context(name, arguments, parent=CONTEXT.make_context("fairbits", [name]))
    if name == "research":
        assert parsed.params["name"] in EXPERIMENTS


def test_a_command_with_an_unknown_flag_does_not_parse():
    with pytest.raises(Exception, match="No such option"):
        CONTEXT.commands["audit"].make_context("audit", ["MODEL", "--nonsense"])


@pytest.mark.parametrize(
    ("verdict", "missing", "standing"),
    [
        (Verdict.HOLDS, (), Standing.AS_WRITTEN),
        (Verdict.CONDITIONAL, (), Standing.CORRECTED),
        (Verdict.FAILS, (), Standing.REFUTED),
        (Verdict.UNDECIDED, (), Standing.UNDECIDED),
        (Verdict.UNDECIDED, ("mT5",), Standing.UNTESTABLE),
    ],
)
def test_the_claim_decides_where_the_row_does_not(verdict, missing, standing):
    finding = Finding(verdict, "because", missing=missing)
    judged = judge_statement(Statement(**ROW, claim="000-01", verdict=""), finding)
    assert judged.standing is standing
    assert judged.why == ("the weights of mT5 could not be had here" if missing else "because")


def test_the_row_decides_where_it_has_a_verdict():
    judged = judge_statement(Statement(**ROW | {"why": "it runs"}, claim="", verdict="as written"), None)
    assert (judged.mark, judged.why) == ("✓ as written", "it runs")


def test_a_statement_without_claim_and_verdict_is_an_error():
    with pytest.raises(ValueError, match="neither a verdict nor a claim"):
        judge_statement(Statement(**ROW, claim="", verdict=""), None)


def test_words_find_statements_in_any_order_and_case():
    found_codes = {statement.claim for statement in find_statements("kurtosis EFFECTIVE", CLAIMS)}
    assert "000-12" in found_codes
    assert not find_statements("kurtosis xyzzy", CLAIMS)


def test_claims_have_commands_that_take_a_model():
    assert any(command.startswith("fairbits laaciq MODEL") for command in commands_by_claim()["000-22"])


def test_the_page_has_a_row_for_every_statement():
    judged = [judge_statement(statement, Finding(Verdict.FAILS, "no")) for statement in all_statements()]
    page = as_markdown(judged)
    assert page.count("\n| ") == 218 + page.count("\n| statement |") + page.count("\n| verdict |") + 5
    assert "COUNTS" not in page


def test_find_on_the_command_line():
    result = CliRunner().invoke(app, ["theory", "--find", "effective kurtosis definition"])
    assert result.exit_code == 0, result.output
    assert "fairbits audit MODEL" in result.output
    assert "000 §2.3" in result.output


def test_words_that_find_nothing_are_an_error():
    result = CliRunner().invoke(app, ["theory", "--find", "xyzzy"])
    assert result.exit_code == 2


def test_the_page_links_outputs_that_are_there():
    research = Path(__file__).parents[4] / "docs/research"
    headings = set(re.findall(r"^## (.+)$", (research / OUTPUT_PAGE).read_text(encoding="utf-8"), re.MULTILINE))
    linked = set(re.findall(rf"\({OUTPUT_PAGE}#(.+?)\)", (research / "sections.md").read_text(encoding="utf-8")))
    assert len(linked) > 10
    assert linked <= headings
