import json
from dataclasses import replace

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.core.units import MEASURES, UNITS
from fairbits.evaluation.divergence import DocumentSums
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.setting import EvaluationSetting, Identity
from fairbits.forward.windows import TokenizedText
from fairbits.stats.outcomes import share_estimate

DAMAGE = {"heb_Hebr": 9.0, "eng_Latn": 3.0, "fin_Latn": 6.0}


def test_damage_is_the_divergence_or_the_added_loss_in_each_unit(draw) -> None:
    scores = draw(DAMAGE)
    documents = scores.documents
    rows = documents.lang == "heb_Hebr"
    for measure, nats in (
        ("divergence", documents.kl[rows]),
        ("loss", (documents.nll_quantized - documents.nll_reference)[rows]),
    ):
        damage = {unit: scores.frame(unit, measure=measure).language("heb_Hebr").value for unit in UNITS}
        assert damage["bits_per_byte"] == pytest.approx(nats.sum() / np.log(2) / 16000)
        assert damage["nats_per_token"] == pytest.approx(nats.sum() / 4000)
        assert damage["nats_per_section"] == pytest.approx(nats.mean())
    assert scores.frame() is scores.frame("bits_per_byte", measure="divergence")
    assert scores.frame() is not scores.frame(measure="loss")
    with pytest.raises(InputError, match="measure is 'perplexity'"):
        scores.frame(measure="perplexity")


def test_other_numbers_of_a_language(draw) -> None:
    scores = draw(DAMAGE)
    documents = scores.documents
    rows = documents.lang == "heb_Hebr"
    added = scores.frame("nats_per_token", measure="loss").language("heb_Hebr")
    assert scores.relative_perplexity["heb_Hebr"].value == pytest.approx(np.exp(added.value) - 1)
    assert scores.relative_perplexity["heb_Hebr"].low == pytest.approx(np.expm1(added.low))
    assert scores.kl["heb_Hebr"].value == pytest.approx(documents.kl[rows].sum() / 4000)
    assert scores.flips["heb_Hebr"].value == pytest.approx(documents.flips[rows].sum() / 4000)
    before, after = (
        sum(nll[rows].tolist()) / np.log(2) / 16000 for nll in (documents.nll_reference, documents.nll_quantized)
    )
    words = scores.added_words["heb_Hebr"]
    assert words.value == pytest.approx(100 * (after / before - 1))
    assert 0 < words.low < words.value < words.high < 10
    assert set(scores.added_words) == set(DAMAGE)


def test_where_no_sure_token_changes_the_interval_is_that_of_the_tokens(draw) -> None:
    scores = draw(DAMAGE)
    documents = scores.documents
    sure, hebrew = np.full(len(documents.lang), 10.0), documents.lang == "heb_Hebr"
    flips = np.where(hebrew, 0.0, np.arange(len(sure)) % 3)
    changed = replace(documents, flips=documents.tokens * 1.0, sure=sure, sure_flips=flips)
    shares = replace(scores, documents=changed).sure_flips
    count = int(sure[hebrew].sum())
    assert shares["heb_Hebr"] == share_estimate(0, count)
    assert 0 < shares["heb_Hebr"].high < 4 / count
    assert shares["eng_Latn"].value == pytest.approx(flips[documents.lang == "eng_Latn"].mean() / 10)


def test_a_language_predicted_with_certainty_has_no_added_words(draw) -> None:
    scores = draw(DAMAGE)
    documents = scores.documents
    hebrew = documents.lang == "heb_Hebr"
    certain = replace(documents, nll_reference=np.where(hebrew, 0.0, documents.nll_reference))
    changed = replace(scores, documents=certain)
    assert set(changed.added_words) == set(DAMAGE) - {"heb_Hebr"}
    assert changed.summary()["languages"]["heb_Hebr"]["added_words"] is None
    assert "words took before" not in changed.meaning.sentence or changed.meaning.language != "heb_Hebr"


def test_percentiles_are_those_of_the_tokens_of_a_language() -> None:
    rng = np.random.default_rng(0)
    lang = np.array(["eng_Latn"] * 5 + ["heb_Hebr"] * 5)
    text = TokenizedText(("heb_Hebr", "eng_Latn"), lang, np.arange(10), np.full(10, 40.0), (), 0)
    documents = rng.integers(0, 10, 3000)
    kl = (rng.exponential(size=3000) * np.where(documents < 5, 1, 4)).astype(np.float32)
    sums = [np.bincount(documents).astype(float)] * 7
    margin = (rng.normal(size=3000) * np.where(documents < 5, 1, 4)).astype(np.float32)
    drawn = DocumentSums(*sums, token_kl=kl, token_margin=margin, token_document=documents)
    hashes = dict.fromkeys(text.languages, "0" * 64)
    question = EvaluationSetting("causal", "drawn", "evaluation", True, hashes, 4096, 512, 0)
    model = Identity("drawn", "0" * 64, 1)
    identity = {"quantized": model, "reference": model, "setting": question}
    scores = Scores.of(drawn, text, **identity)
    names = ("kl_p50", "kl_p95", "kl_p99", "kl_p99_9", "margin_p50", "margin_p1")
    for code, rows in (("eng_Latn", documents < 5), ("heb_Hebr", documents >= 5)):
        expected = [*np.quantile(kl[rows], [0.5, 0.95, 0.99, 0.999]), *np.quantile(margin[rows], [0.5, 0.01])]
        assert [getattr(scores.percentiles[code], name) for name in names] == pytest.approx(expected)


@pytest.mark.parametrize("measure", MEASURES)
def test_disparity_names_worst_and_best_and_corrects_the_gap(draw, measure) -> None:
    disparity = draw(DAMAGE).disparity("nats_per_section", measure=measure)
    assert (disparity.worst[0], disparity.best[0]) == ("heb_Hebr", "eng_Latn")
    assert disparity.mean.low < 6 < disparity.mean.high
    assert disparity.gap.value < disparity.plain_gap.value
    assert disparity.gap.low < 6 < disparity.gap.high
    assert disparity.ratio.low < 3 < disparity.ratio.high
    assert disparity.deviation.low < 3 < disparity.deviation.high
    assert disparity.as_data()["worst"]["language"] == "heb_Hebr"


def test_there_is_no_ratio_to_nothing_and_no_gap_of_one_language(draw) -> None:
    nothing = draw({"heb_Hebr": 9.0, "eng_Latn": 0.0}).disparity(measure="loss")
    assert nothing.ratio is None
    assert "may be 0" in nothing.no_ratio
    alone = draw({"heb_Hebr": 9.0}).disparity()
    assert (alone.gap, alone.ratio, alone.deviation) == (None, None, None)
    json.dumps(alone.as_data(), allow_nan=False)


def test_sections_need_parallel_text(draw) -> None:
    scores = draw(DAMAGE, parallel=False)
    for by_unit in scores.summary()["disparity"].values():
        assert set(by_unit) == {"bits_per_byte", "nats_per_token"}
    with pytest.raises(InputError, match="not parallel"):
        scores.frame("nats_per_section")


def test_the_summary_has_everything_and_is_json(draw) -> None:
    scores = draw(DAMAGE)
    data = json.loads(json.dumps(scores.summary(), allow_nan=False))
    assert data["schema"] == "fairbits.summary/2"
    assert list(data["languages"]) == list(DAMAGE)
    hebrew = data["languages"]["heb_Hebr"]
    assert hebrew["documents"] == 40
    assert hebrew["tokens"] == 4000
    assert set(hebrew["added"]) == set(hebrew["divergence"]) == set(UNITS)
    assert hebrew["added"]["bits_per_byte"]["value"] == scores.frame(measure="loss").language("heb_Hebr").value
    assert hebrew["divergence"]["bits_per_byte"]["value"] == scores.frame().language("heb_Hebr").value
    assert hebrew["percentiles"]["margin_p1"] == -1.5
    assert hebrew["added_words"] == scores.added_words["heb_Hebr"].to_dict()
    assert {(measure, unit) for measure, by_unit in data["disparity"].items() for unit in by_unit} == {
        (measure, unit) for measure in MEASURES for unit in UNITS
    }
    assert data["disparity"]["loss"]["bits_per_byte"] == scores.disparity(measure="loss").as_data()
    assert data["question"]["asked"] == "every token, given those before it"


@pytest.mark.parametrize(("measure", "column"), [("divergence", "kl"), ("loss", "nll_quantized")])
def test_only_significantly_worse_languages_are_named(draw, measure, column) -> None:
    baseline = draw(DAMAGE)
    documents = baseline.documents
    shift = np.where(documents.lang == "fin_Latn", 2.0, 0.0) - np.where(documents.lang == "heb_Hebr", 2.0, 0.0)
    jitter = np.random.default_rng(3).normal(0, 0.5, len(shift))
    other = draw(DAMAGE)
    getattr(other.documents, column)[:] += shift + jitter
    worse = other.contrast(baseline, unit="nats_per_section", measure=measure).worse()
    assert set(worse) == {"fin_Latn"}
    assert worse["fin_Latn"].low < 2 < worse["fin_Latn"].high
    assert set(baseline.contrast(other, measure=measure).worse()) == {"heb_Hebr"}
    assert baseline.contrast(baseline, measure=measure).worse() == {}
    (unmoved,) = set(MEASURES) - {measure}
    assert other.contrast(baseline, measure=unmoved).worse() == {}


def test_other_text_is_no_baseline(draw) -> None:
    scores = draw(DAMAGE)
    with pytest.raises(InputError, match=r"different text \(hashes"):
        scores.contrast(draw({"heb_Hebr": 9.0}))
    with pytest.raises(InputError, match="different tokens"):
        scores.contrast(draw(DAMAGE, tokens=99))


def test_a_file_gives_the_same_scores_and_the_same_bytes(draw, tmp_path) -> None:
    scores = draw(DAMAGE, target="a\x1b[2Jb\n\ufffe")
    scores.save(tmp_path / "scores.json")
    written = (tmp_path / "scores.json").read_bytes()
    assert b"\x1b" not in written
    back = Scores.load(tmp_path / "scores.json")
    assert back.as_bytes() == written == draw(DAMAGE, target="a\x1b[2Jb\n\ufffe").as_bytes()
    assert back.quantized == scores.quantized
    assert back.summary() == scores.summary()
    assert len(written.splitlines()) < 50


def damaged(data: dict, change: str) -> None:
    documents = data["documents"]
    match change:
        case "unknown key":
            data["summary"] = {}
        case "missing key":
            del data["percentiles"]
        case "unknown column":
            documents["loss"] = documents["kl"]
        case "short column":
            documents["kl"].pop()
        case "negative percentile":
            data["percentiles"]["heb_Hebr"]["kl_p95"] = -0.1
        case "unknown percentile":
            data["percentiles"]["heb_Hebr"]["kl_p42"] = 0.1
        case "negative loss":
            documents["nll_reference"][0] = -1.0
        case "text for a number":
            documents["flips"][0] = "many"
        case "half a document":
            documents["document"][0] = 0.5
        case "a language of its own":
            documents["lang"][0] = "deu_Latn"
        case "a number for a model":
            data["quantized"]["target"] = 5
        case "another task":
            data["question"]["task"] = "guessing"
        case "no list":
            data["notes"] = "none"


@pytest.mark.parametrize(
    "change",
    [
        *("unknown key", "missing key", "unknown column", "short column", "negative loss", "text for a number"),
        *("negative percentile", "unknown percentile"),
        *("half a document", "a language of its own", "a number for a model", "another task", "no list"),
    ],
)
def test_a_damaged_file_is_refused(draw, tmp_path, change) -> None:
    data = json.loads(draw(DAMAGE).as_bytes())
    damaged(data, change)
    path = tmp_path / "scores.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"scores.json is damaged: .*; write it again"):
        Scores.load(path)


@pytest.mark.parametrize("content", ['{"schema": "fairbits.scores/3"}', "[]", "{", "\udcff"])
def test_what_is_no_file_of_scores_is_refused(tmp_path, content) -> None:
    path = tmp_path / "scores.json"
    path.write_text(content, errors="surrogateescape")
    with pytest.raises(InputError, match="fairbits evaluate --out"):
        Scores.load(path)
    with pytest.raises(InputError, match="it must be a file of scores"):
        Scores.load(tmp_path / "missing.json")


def test_flips_where_the_reference_is_sure(draw, tmp_path) -> None:
    scores = draw(DAMAGE)
    assert scores.sure_flips == {}
    assert scores.meaning.sure is None
    documents = scores.documents
    sure = np.where(documents.lang == "fin_Latn", 0.0, documents.tokens / 2)
    counted = replace(documents, sure=sure, sure_flips=np.minimum(documents.flips // 3, sure))
    found = replace(scores, documents=counted)
    rows = documents.lang == "heb_Hebr"
    assert set(found.sure_flips) == {"heb_Hebr", "eng_Latn"}
    assert found.sure_flips["heb_Hebr"].value == pytest.approx((documents.flips[rows] // 3).sum() / 2000)
    found.save(tmp_path / "scores.json")
    assert Scores.load(tmp_path / "scores.json").sure_flips == found.sure_flips
    everywhere = replace(found, documents=replace(counted, sure=documents.tokens, sure_flips=documents.flips))
    assert everywhere.sure_flips == everywhere.flips
    assert "Where the reference is sure, " in everywhere.meaning.sentence
    for changed, problem in (
        ({"sure": None}, "one of sure and sure_flips is missing"),
        ({"sure": sure + 0.5}, "it must be a whole number"),
        ({"sure": documents.tokens + 1}, r"sure.0 is 101; it must be at most its tokens, 100"),
        ({"sure": documents.tokens, "sure_flips": documents.flips + 1}, "it must be at most its flips"),
        ({"sure": 0 * sure, "sure_flips": documents.flips}, "it must be at most its sure"),
    ):
        with pytest.raises(InputError, match=problem):
            replace(counted, **changed)
