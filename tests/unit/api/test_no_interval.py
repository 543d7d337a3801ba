"""A language with too few documents is shown without an interval and with the reason, by every verb."""

import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from fairbits.api.run import FinishedRun
from fairbits.api.sweep import Sweep
from fairbits.cli.run_command import next_steps, run_tables
from fairbits.comparison.comparison import COMPARE, Comparison, PolicyEntry
from fairbits.core.table import plain, render_tables
from fairbits.evaluation.document_scores import DocumentScores, TokenPercentiles
from fairbits.evaluation.gate import gate, junit
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.setting import EvaluationSetting, Identity
from fairbits.quantization.plan import Plan
from fairbits.reports.content import Report
from fairbits.reports.sources import SWEEP, Method, Sources

DOCUMENTS = {"eng_Latn": 30, "heb_Hebr": 30, "yor_Latn": 1}
REASON = "1 document; an interval needs at least 5"
NOTE = f"no interval for yor_Latn: {REASON}; left out of worst, best, mean and gap"
LEVEL = {"eng_Latn": 3.0, "heb_Hebr": 9.0, "yor_Latn": 20.0}


def drawn(documents: dict[str, int] = DOCUMENTS, *, seed: int = 0, factor: float = 1.0, flips: float = 4.0) -> Scores:
    """Returns scores with the given numbers of documents, whose divergence is around LEVEL·factor nats."""
    rng, count = np.random.default_rng(seed), sum(documents.values())
    mean = factor * np.repeat([LEVEL[code] for code in documents], list(documents.values()))
    ones = np.ones(count)
    table = DocumentScores(
        lang=np.repeat(list(documents), list(documents.values())),
        document=np.arange(count),
        tokens=100 * ones,
        bytes=400 * ones,
        nll_reference=400 * ones,
        nll_quantized=400 + mean + rng.normal(0, 1, count),
        kl=rng.gamma(mean**2, 1 / mean),
        flips=np.minimum(rng.poisson(flips, count), 100.0),
    )
    question = EvaluationSetting(
        "causal", "drawn", "evaluation", False, dict.fromkeys(documents, "0" * 64), 4096, 512, 0
    )
    models = Identity("small", "f" * 64, 1000), Identity("large", "e" * 64, 4000)
    percentiles = TokenPercentiles(kl_p99=0.25, kl_p50=0.1, kl_p95=0.2, kl_p99_9=0.3, margin_p50=0.0, margin_p1=-1.0)
    return Scores(*models, question, tuple(documents), table, dict.fromkeys(documents, percentiles))


def shown(*parts: RenderableType) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    for part in parts:
        console.print(part)
    text = console.export_text()
    assert max(map(cell_len, text.splitlines())) <= 80
    assert "nan" not in text
    assert "inf" not in text.replace("inflation", "")
    return text


def words(text: str) -> str:
    return " ".join(text.split())


def test_evaluate_shows_the_language_and_the_reason(tmp_path) -> None:
    scores = drawn()
    text = shown(render_tables(scores.tables()))
    (line,) = [row for row in text.splitlines() if row.startswith("Yoruba")]
    assert "(–)" in line
    assert NOTE in words(text)
    data = json.loads(json.dumps(scores.summary(), allow_nan=False))
    yoruba = data["languages"]["yor_Latn"]["divergence"]["bits_per_byte"]
    assert (yoruba["low"], yoruba["high"], yoruba["n"]) == (None, None, 1)
    assert yoruba["value"] > data["disparity"]["divergence"]["bits_per_byte"]["worst"]["high"]
    assert data["disparity"]["divergence"]["bits_per_byte"]["worst"]["language"] == "heb_Hebr"
    assert data["languages"]["yor_Latn"]["relative_perplexity"]["low"] is None
    assert NOTE in data["notes"]
    scores.save(tmp_path / "scores.json")
    assert Scores.load(tmp_path / "scores.json").interval_notes == scores.interval_notes == (NOTE,)


def test_flips_in_few_documents_do_not_end_evaluate() -> None:
    scores = drawn({"eng_Latn": 30, "heb_Hebr": 30})
    flips = np.zeros(60)
    flips[0] = 1.0
    rare = replace(scores, documents=replace(scores.documents, flips=flips))
    assert not rare.flips["eng_Latn"].bounded
    assert rare.flips["heb_Hebr"].bounded
    assert rare.interval_notes == ()
    assert rare.summary()["notes"] == ["changed tokens: no interval for eng_Latn: too few of their documents have any"]
    shown(render_tables(rare.tables()))


def test_without_any_interval_everything_is_shown_without() -> None:
    scores = drawn({"eng_Latn": 2, "yor_Latn": 1})
    text = words(shown(render_tables(scores.tables())))
    assert "no language has an interval, so worst, best, mean and gap have none either (eng_Latn: 2 documents;" in text
    disparity = json.loads(json.dumps(scores.summary(), allow_nan=False))["disparity"]["loss"]["bits_per_byte"]
    assert all(disparity[name]["low"] is None for name in ("worst", "best", "mean", "gap", "plain_gap", "deviation"))
    assert disparity["worst"]["language"] == "yor_Latn"
    assert disparity["ratio"] is None
    alone = drawn({"yor_Latn": 1})
    assert alone.disparity().gap is None
    shown(render_tables(alone.tables()))


@pytest.mark.parametrize("name", ["max_worst", "max_mean", "max_gap"])
def test_a_gate_never_passes_with_a_language_without_an_interval(name) -> None:
    verdict = gate(drawn(), **{name: 100.0})
    (check,) = verdict.checks
    assert (check.outcome, verdict.exit_code) == ("undecided", 1)
    assert f"there is no interval for yor_Latn ({REASON})" in check.reason
    assert verdict.notes == (NOTE,)
    assert REASON.encode() in junit(verdict)
    assert json.loads(json.dumps(verdict.as_data(), allow_nan=False))["checks"][0]["outcome"] == "undecided"


def test_what_is_above_a_limit_without_that_language_fails() -> None:
    outcome = {name: gate(drawn(), **{name: 0.0}).checks[0].outcome for name in ("max_worst", "max_gap", "max_mean")}
    assert outcome == {"max_worst": "fail", "max_gap": "fail", "max_mean": "undecided"}  # the mean may be lower with it


def test_a_gate_without_any_interval() -> None:
    few = drawn({"eng_Latn": 2, "yor_Latn": 1})
    verdict = gate(few, max_worst=100.0, max_mean=100.0, max_gap=0.0)
    assert [check.outcome for check in verdict.checks] == ["undecided"] * 3
    assert "yor_Latn lost 0." in verdict.reason
    assert "limit 100, but there is no interval for eng_Latn" in verdict.reason
    assert "(2 documents; an interval needs at least 5) and 1 more language" in verdict.reason
    data = json.loads(json.dumps(verdict.as_data(), allow_nan=False))
    assert all(check["estimate"]["high"] is None for check in data["checks"])
    for options in ({}, {"max_worse": 100.0}):
        assert [check.outcome for check in gate(few, against=few, **options).checks] == ["undecided"] * 3


def test_a_gate_against_a_baseline() -> None:
    scores, other = drawn(factor=1.0), drawn(seed=1, factor=2.0)
    for options in ({}, {"max_worse": 100.0}):
        verdict = gate(scores, against=other, **options)
        assert [check.outcome for check in verdict.checks] == ["undecided"] * 3
        assert all("yor_Latn" in check.reason for check in verdict.checks)
    worse = gate(other, against=scores)
    assert [check.outcome for check in worse.checks] == ["fail"] * 3
    assert gate(scores, against=other).improved == ("eng_Latn", "heb_Hebr")


def entry(policy: str, *scores: Scores) -> PolicyEntry:
    plan = Plan(policy, {}, "./model", "0" * 64, "llama", (), 1000)
    frames = tuple(seed_scores.frame() for seed_scores in scores)
    return PolicyEntry(policy, 4, (plan,) * len(scores), frames, (1.0,) * len(scores))


@pytest.mark.parametrize("documents", [DOCUMENTS, {"eng_Latn": 30, "yor_Latn": 2}, {"eng_Latn": 2, "yor_Latn": 1}])
def test_compare(documents, tmp_path) -> None:
    entries = entry("rtn", drawn(documents)), entry("gptq", drawn(documents, seed=1, factor=0.5))
    comparison = Comparison("./model", "0" * 64, {"group": 128, "text": "drawn"}, "divergence", entries, "rtn")
    text = words(shown(render_tables(comparison.tables())))
    assert "yor_Latn: " in text
    assert "an interval needs at least 5" in text
    comparison.save(tmp_path / "compare.json")
    saved = COMPARE.read(tmp_path / "compare.json")
    assert not saved.entries[0].damage["yor_Latn"].bounded
    assert saved.contrasts[0].languages["yor_Latn"].p == 1
    assert saved.contrasts[0].mean.bounded == (max(documents.values()) > 4)


@pytest.mark.parametrize("documents", [DOCUMENTS, {"eng_Latn": 30, "yor_Latn": 2}, {"eng_Latn": 2, "yor_Latn": 1}])
def test_sweep(documents, tmp_path) -> None:
    frames = {bits: drawn(documents, factor=4.0 ** (2 - bits)).frame() for bits in (2, 3, 4)}
    sweep = Sweep(
        model="./model",
        fingerprint="0" * 64,
        policy="mse",
        settings={"group": 128, "text": "drawn"},
        measure="divergence",
        frames=frames,
        sizes=dict.fromkeys(frames, 1_000_000),
        threshold=0.01,
        max_kappa=8.0,
    )
    text = words(shown(render_tables(sweep.tables())))
    assert "yor_Latn: " in text
    assert sweep.widths["yor_Latn"].text(sweep.bits).endswith("[<2, >4]")
    sweep.save(tmp_path / "sweep.json")
    saved = SWEEP.read(tmp_path / "sweep.json")
    assert not saved.damage["yor_Latn"]["2"].bounded
    assert saved.damage["eng_Latn"]["2"].bounded == (documents["eng_Latn"] > 4)
    assert any(REASON in note or "2 documents" in note for note in saved.notes)


@pytest.mark.parametrize("documents", [DOCUMENTS, {"eng_Latn": 2, "yor_Latn": 1}])
def test_report_and_run_table(documents, tmp_path) -> None:
    scores, other = drawn(documents), drawn(documents, seed=1, factor=2.0)
    report = Report.from_sources(Sources((Method("own", scores), Method("rtn", other))))
    rows = {row["code"]: row["methods"][0]["damage"] for row in json.loads(report.json())["languages"]}
    assert rows["yor_Latn"]["divergence_bits_per_byte"]["low"] is rows["yor_Latn"]["changed_of_100"]["low"] is None
    card = report.markdown()
    assert "(no interval) |" in card
    assert "an interval needs at least 5" in card
    page = report.html()
    assert "an interval needs at least 5" in page
    assert ("<b>no interval</b>" in page) == (documents is not DOCUMENTS)
    assert math.inf not in report.content["headline"]["worst"]["quantized"].values()
    run = FinishedRun(tmp_path, "own", scores, {"rtn": other}, report, {}, ())
    text = shown(render_tables(run_tables(run)))
    assert "(–)" in text
    assert "an interval needs at least 5" in words(text)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(*map(plain, next_steps(run)))
    assert "gate" not in console.export_text()  # there is no limit that this model certainly meets
