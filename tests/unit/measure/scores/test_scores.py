import json

import numpy as np
import pytest

from fairbits.errors import InputError
from fairbits.measure.passes.text import Text
from fairbits.measure.scores.answers import Answers
from fairbits.measure.scores.scores import Scores

DAMAGE = {"heb_Hebr": 9.0, "eng_Latn": 3.0, "fin_Latn": 6.0}


def test_damage_is_the_added_loss_in_each_unit(draw) -> None:
    scores = draw(DAMAGE)
    rows = scores.documents.lang == "heb_Hebr"
    added = (scores.documents.nll_quantized - scores.documents.nll_reference)[rows]
    found = {unit: scores.frame(unit).language("heb_Hebr") for unit in ("bits_per_byte", "nats_per_token")}
    assert found["bits_per_byte"].value == pytest.approx(added.sum() / np.log(2) / 16000)
    assert found["nats_per_token"].value == pytest.approx(added.sum() / 4000)
    assert scores.frame("nats_per_section").language("heb_Hebr").value == pytest.approx(added.mean())
    assert scores.relative_perplexity["heb_Hebr"].value == pytest.approx(np.exp(added.sum() / 4000) - 1)
    assert scores.relative_perplexity["heb_Hebr"].low == pytest.approx(np.expm1(found["nats_per_token"].low))
    assert scores.kl["heb_Hebr"].value == pytest.approx(scores.documents.kl[rows].sum() / 4000)
    assert scores.flips["heb_Hebr"].value == pytest.approx(scores.documents.flips[rows].sum() / 4000)


def test_the_99th_percentile_is_that_of_the_tokens_of_a_language() -> None:
    rng = np.random.default_rng(0)
    lang = np.array(["eng_Latn"] * 5 + ["heb_Hebr"] * 5)
    text = Text(("heb_Hebr", "eng_Latn"), lang, np.arange(10), np.full(10, 40.0), (), 0)
    documents = rng.integers(0, 10, 3000)
    kl = (rng.exponential(size=3000) * np.where(documents < 5, 1, 4)).astype(np.float32)
    sums = [np.bincount(documents).astype(float)] * 5
    drawn = Answers(*sums, token_kl=kl, token_document=documents)
    identity = {"quantized": None, "reference": None, "question": None}
    found = Scores.of(drawn, text, **identity)
    assert found.kl_p99["eng_Latn"] == pytest.approx(np.quantile(kl[documents < 5], 0.99))
    assert found.kl_p99["heb_Hebr"] == pytest.approx(np.quantile(kl[documents >= 5], 0.99))


def test_disparity_names_worst_and_best_and_corrects_the_gap(draw) -> None:
    found = draw(DAMAGE).disparity("nats_per_section")
    assert (found.worst[0], found.best[0]) == ("heb_Hebr", "eng_Latn")
    assert found.mean.low < 6 < found.mean.high
    assert found.gap.value < found.plain_gap.value
    assert found.gap.low < 6 < found.gap.high
    assert found.ratio.low < 3 < found.ratio.high
    assert found.deviation.low < 3 < found.deviation.high
    assert found.as_data()["worst"]["language"] == "heb_Hebr"


def test_there_is_no_ratio_to_nothing_and_no_gap_of_one_language(draw) -> None:
    nothing = draw({"heb_Hebr": 9.0, "eng_Latn": 0.0}).disparity()
    assert nothing.ratio is None
    assert "may be 0" in nothing.no_ratio
    alone = draw({"heb_Hebr": 9.0}).disparity()
    assert (alone.gap, alone.ratio, alone.deviation) == (None, None, None)
    json.dumps(alone.as_data(), allow_nan=False)


def test_sections_need_parallel_text(draw) -> None:
    scores = draw(DAMAGE, parallel=False)
    assert set(scores.summary()["disparity"]) == {"bits_per_byte", "nats_per_token"}
    with pytest.raises(InputError, match="not parallel"):
        scores.frame("nats_per_section")


def test_the_summary_has_everything_and_is_json(draw) -> None:
    data = json.loads(json.dumps(draw(DAMAGE).summary(), allow_nan=False))
    assert data["schema"] == "fairbits.summary/1"
    assert list(data["languages"]) == list(DAMAGE)
    own = data["languages"]["heb_Hebr"]
    assert own["documents"] == 40
    assert own["tokens"] == 4000
    assert set(own["added"]) == {"bits_per_byte", "nats_per_token", "nats_per_section"}
    assert data["question"]["asked"] == "every token, given those before it"


def test_only_languages_that_are_worse_beyond_doubt_are_named(draw) -> None:
    baseline = draw(DAMAGE)
    documents = baseline.documents
    shift = np.where(documents.lang == "fin_Latn", 2.0, 0.0) - np.where(documents.lang == "heb_Hebr", 2.0, 0.0)
    jitter = np.random.default_rng(3).normal(0, 0.5, len(shift))
    other = draw(DAMAGE)
    other.documents.nll_quantized[:] += shift + jitter
    worse = other.worse_than(baseline, unit="nats_per_section")
    assert set(worse) == {"fin_Latn"}
    assert worse["fin_Latn"].low < 2 < worse["fin_Latn"].high
    assert set(baseline.worse_than(other)) == {"heb_Hebr"}
    assert baseline.worse_than(baseline) == {}


def test_other_text_is_no_baseline(draw) -> None:
    scores = draw(DAMAGE)
    with pytest.raises(InputError, match=r"different text \(hashes"):
        scores.worse_than(draw({"heb_Hebr": 9.0}))
    with pytest.raises(InputError, match="different tokens"):
        scores.worse_than(draw(DAMAGE, tokens=99))


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
            del data["kl_p99"]
        case "unknown column":
            documents["loss"] = documents["kl"]
        case "short column":
            documents["kl"].pop()
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


@pytest.mark.parametrize("content", ['{"schema": "fairbits.scores/2"}', "[]", "{", "\udcff"])
def test_what_is_no_file_of_scores_is_refused(tmp_path, content) -> None:
    path = tmp_path / "scores.json"
    path.write_text(content, errors="surrogateescape")
    with pytest.raises(InputError, match="fairbits evaluate --out"):
        Scores.load(path)
    with pytest.raises(InputError, match="it must be a file of scores"):
        Scores.load(tmp_path / "missing.json")
