"""Every claim is decided by its own evidence, and the page docs/research/theory.md says what the code says."""

import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from fairbits.core.errors import InputError
from fairbits_research.claims.all_claims import all_claims, find_claim
from fairbits_research.claims.claim import DOCUMENTS, StoredJudgement, Verdict, from_experiments, judge
from fairbits_research.claims.claim_page import as_data, as_markdown, count_words
from fairbits_research.experiments.result import EXPERIMENTS

DOCS = Path(__file__).parents[4] / "docs"
PAGE = DOCS / "research" / "theory.md"
COUNTS = {"000": 33, "001": 25, "002": 15, "003": 13, "004": 34}
CLAIMS = all_claims()


@pytest.fixture(scope="module")
def results():
    return {claim: claim.check() for claim in CLAIMS}


def test_every_claim_of_every_document_is_there_once() -> None:
    for document, count in COUNTS.items():
        assert [claim.id for claim in CLAIMS if claim.document == document] == [
            f"{document}-{number:02}" for number in range(1, count + 1)
        ]


@pytest.mark.long
def test_at_least_80_claims_are_decided_without_a_model(results) -> None:
    assert sum(finding.command is None for finding in results.values()) >= 80
    assert all(finding.numbers for finding in results.values())


@pytest.mark.long
def test_other_pages_count_them(results) -> None:
    counts = count_words(results.values()).replace(f"{len(CLAIMS)} claims: ", "")
    assert f"of {len(CLAIMS)} claims {counts} |" in (DOCS / "results.md").read_text()
    tally = Counter(finding.verdict for finding in results.values())
    undecided = tally[Verdict.UNDECIDED]
    faq = f"Of their {len(CLAIMS)} claims, {tally[Verdict.FAILS]} do not hold and {undecided} are undecided"
    assert faq in (DOCS / "faq.md").read_text()


@pytest.mark.long
def test_claims_that_take_a_model_name_the_experiment(results) -> None:
    """And only an experiment can leave a claim undecided."""
    for claim, finding in results.items():
        assert finding.command is None or finding.command.removeprefix("fairbits research ") in EXPERIMENTS, claim.id
        assert finding.command is not None or finding.verdict is not Verdict.UNDECIDED, claim.id


def test_a_claim_that_no_experiment_judged_is_no_finding() -> None:
    with pytest.raises(InputError, match="no experiment has judged claim 009-99"):
        from_experiments("009-99", "nothing")


def test_sets_that_disagree_leave_a_claim_undecided(monkeypatch) -> None:
    one = StoredJudgement("declaration", "bounds", "embedded:tiny", "supported", "it does", {"n": 3})
    other = StoredJudgement("second-model", "bounds", "build/llama", "not supported", "it does not", {"n": 4})
    monkeypatch.setattr(
        "fairbits_research.claims.claim.stored_judgements", lambda: {"009-01": (one,), "009-02": (one, other)}
    )
    assert from_experiments("009-01", "x").verdict is Verdict.HOLDS
    both = from_experiments("009-02", "x", before=1.0)
    assert both.verdict is Verdict.UNDECIDED
    assert both.numbers == {"before": 1.0, "n, declaration": 3.0, "n, second model": 4.0}


def test_a_claim_about_other_models_is_undecided_until_one_of_them_is_measured(monkeypatch) -> None:
    ours = StoredJudgement("declaration", "bounds", "embedded:tiny", "not supported", "it does not", {"n": 3})
    theirs = ours._replace(model="google/mt5-small")
    monkeypatch.setattr(
        "fairbits_research.claims.claim.stored_judgements",
        lambda: {"009-01": (ours,), "009-02": (theirs,), "009-03": (ours, theirs)},
    )
    other = from_experiments("009-01", "x", about=("mT5", "GPT-2"), before=1.0)
    assert other.verdict is Verdict.UNDECIDED
    assert "undecided because the claim is about mT5 and GPT-2, not measured here" in other.summary
    assert "it does not" in other.summary
    assert other.numbers == {"before": 1.0, "n, declaration": 3.0}
    assert from_experiments("009-01", "x").verdict is Verdict.FAILS
    assert from_experiments("009-02", "x", about=("mT5",)).verdict is Verdict.FAILS
    assert from_experiments("009-03", "x", about=("mT5",)).verdict is Verdict.UNDECIDED


@pytest.mark.long
def test_claims_about_other_models_are_not_decided_by_the_embedded_one(results) -> None:
    about = {claim.id for claim, finding in results.items() if "because the claim is about" in finding.summary}
    assert about == {"000-09", "000-14", "001-04", "001-10", "001-18", "004-26"}
    assert all(finding.verdict is Verdict.UNDECIDED for claim, finding in results.items() if claim.id in about)


@pytest.mark.long
def test_numbers_are_finite_and_texts_complete(results) -> None:
    for claim, finding in results.items():
        assert all(math.isfinite(value) for value in finding.numbers.values()), claim.id
        assert claim.statement.endswith(".")
        assert claim.derivation.endswith((".", ".)"))
        assert not finding.summary.endswith(".")


def numbers_and_words(text: str) -> tuple[list[float], list[str]]:
    pattern = r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
    return [float(token) for token in re.findall(pattern, text)], re.sub(pattern, "#", text).split()


@pytest.mark.long
def test_page_is_current(results) -> None:
    """Words must be equal; numbers may differ by what another processor's rounding can do."""
    (now, words), (stored, stored_words) = numbers_and_words(as_markdown(results)), numbers_and_words(PAGE.read_text())
    assert words == stored_words, "run `make docs`"
    assert now == pytest.approx(stored, rel=0.02, abs=1e-6), "run `make docs`"


@pytest.mark.long
def test_the_table_of_all_claims_fits_the_terminal(results, command, monkeypatch) -> None:
    decided_claims = [replace(claim, check=lambda finding=finding: finding) for claim, finding in results.items()]
    monkeypatch.setattr("fairbits_research.claims.all_claims", lambda: decided_claims)
    monkeypatch.setenv("NO_COLOR", "1")
    code, printed, _ = command("theory")
    assert code == 0
    assert "120 claims" in printed
    assert "004-34" in printed
    assert "\x1b[" not in printed
    assert max(cell_len(line) for line in printed.splitlines()) <= 80


@pytest.mark.long
def test_data_holds_every_claim(results) -> None:
    data = as_data(results)
    assert len(data["claims"]) == sum(data["counts"].values()) == len(CLAIMS)
    assert {row["document"] for row in data["claims"]} == set(DOCUMENTS.values())


def test_a_verdict_follows_its_condition() -> None:
    assert judge(True, "x", n=1).verdict is Verdict.HOLDS
    assert judge(True, "x", condition=True).verdict is Verdict.CONDITIONAL
    assert judge(False, "x", condition=True).verdict is Verdict.FAILS


@pytest.mark.parametrize("id", ["", "004", "004-99", "x"])
def test_unknown_ids_are_refused_with_those_that_exist(id) -> None:
    with pytest.raises(InputError, match="there is no claim"):
        find_claim(id)
