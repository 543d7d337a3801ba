"""The results that come with the package are all there, and the page says what they say."""

import json
from pathlib import Path

from fairbits.core.version import __version__
from fairbits_research.claims.all_claims import all_claims
from fairbits_research.claims.claim import RECORDS, SETS, stored_judgements
from fairbits_research.experiments.all_experiments import TRAINED
from fairbits_research.experiments.result import EXPERIMENTS, Answer, Result
from fairbits_research.experiments.stored_results import all_records, as_markdown, overall_answer

DOCS = Path(__file__).parents[4] / "docs"
FOUND = all_records()


def test_every_experiment_was_done_on_what_comes_with_the_package() -> None:
    assert set(FOUND) == set(EXPERIMENTS)
    for name, results in FOUND.items():
        assert ("declaration" in results) == (name != TRAINED), name
        assert all(result.name == name for result in results.values())


def test_files_are_as_results_write_them() -> None:
    assert {path.name for path in RECORDS.iterdir() if path.is_dir()} <= set(SETS)
    for path in RECORDS.glob("*/*.json"):
        stored = path.read_bytes()
        version = f'"fairbits": "{json.loads(stored)["fairbits"]}"'.encode()
        written = Result.load(path).as_bytes().replace(f'"fairbits": "{__version__}"'.encode(), version)
        assert written == stored, path


def test_every_result_is_complete() -> None:
    for results in FOUND.values():
        for result in results.values():
            subject = result.subject
            assert subject.languages >= 8
            assert subject.documents >= 5 * subject.languages
            assert subject.seeds
            assert result.tables
            assert result.figure.series
            assert result.verdict.endswith(".")
            assert result.meaning.endswith(".")
            assert result.answer is not Answer.UNDECIDED or result.power, f"{result.name}: what would decide it?"
            assert not any(judgement.because.endswith(".") for judgement in result.judgements)


def test_judged_claims_exist_and_are_told_by_theory() -> None:
    claims = {claim.id: claim for claim in all_claims()}
    for id, judgements in stored_judgements().items():
        finding = claims[id].check()
        assert finding.command == f"fairbits research {judgements[0].experiment}", id
        assert all(judgement.because in finding.summary for judgement in judgements)


def test_the_page_is_current_and_its_figures_are_there() -> None:
    page = (DOCS / "research" / "experiments.md").read_text(encoding="utf-8")
    assert page == as_markdown(EXPERIMENTS, FOUND), "run `make docs`"
    for name, results in FOUND.items():
        for where in results:
            assert (DOCS / "assets" / "research" / f"{where}-{name}.svg").is_file()


def test_sets_that_disagree_decide_nothing() -> None:
    for results in FOUND.values():
        answers = {result.answer for result in results.values()}
        assert overall_answer(results) is (answers.pop() if len(answers) == 1 else Answer.UNDECIDED)


def test_the_terminal_shows_them(capsys) -> None:
    from fairbits.cli.terminal import out
    from fairbits_research.research_command import experiment_list, result_panel

    result = FOUND["bounds"]["declaration"]
    out.print(experiment_list(EXPERIMENTS, FOUND))
    out.print(result_panel(result))
    shown = capsys.readouterr().out
    assert overall_answer(FOUND["bounds"]).value in shown
    assert " ".join(result.verdict.split()) in " ".join(shown.split())


def test_the_page_on_what_was_measured_counts_them() -> None:
    answers = [overall_answer(results) for results in FOUND.values()]
    against, for_it, open_ones = (
        answers.count(answer) for answer in (Answer.NOT_SUPPORTED, Answer.SUPPORTED, Answer.UNDECIDED)
    )
    verb = "does" if for_it == 1 else "do"
    sentence = (
        f"of {len(answers)} experiments {against} do not support the prediction, {for_it} {verb}, {open_ones} are"
    )
    assert f"{sentence} undecided" in (DOCS / "results.md").read_text(encoding="utf-8")
