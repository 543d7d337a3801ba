"""Records of documents: what is refused, which languages have no interval, and that these do not spoil the others."""

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.stats import draws as draws_module
from fairbits.stats.frame import LanguageFrame, interval_notes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lang": np.arange(120)}, "vector of language codes"),
        ({"lang": np.array([], dtype=str)}, "vector of language codes"),
        ({"document": np.arange(119)}, "must agree"),
        ({"document": np.zeros(120, dtype=int)}, "document 0 occurs twice in l0"),
        ({"document": np.arange(120) / 2}, "vector of ids"),
        ({"values": np.full(120, np.nan)}, "NaN"),
        ({"values": np.ones((120, 1))}, "dimension"),
        ({"weights": -np.ones(120)}, "at least 0"),
        ({"unit": "perplexity"}, "unit"),
        ({"confidence": 95}, "confidence"),
        ({"resamples": 10}, "resamples"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_records_are_refused(change, message, make_records):
    data = make_records()
    good = {key: data[key] for key in ("lang", "document")} | {
        "values": data["nats"],
        "weights": data["size_bytes"],
    }
    with pytest.raises(InputError, match=message):
        LanguageFrame(**(good | change))


def test_the_records_cannot_be_changed(make_frame):
    sample = make_frame()
    with pytest.raises(ValueError, match="read-only"):
        sample.values[0] = 1.0


def test_document_ids_may_be_text_and_order_does_not_matter(make_records):
    data = make_records()
    order = np.random.default_rng(1).permutation(120)
    text = np.array([f"doc{i:03}" for i in data["document"]])
    whole = LanguageFrame(data["lang"], data["document"], values=data["nats"], weights=data["tokens"])
    shuffled = LanguageFrame(
        data["lang"][order],
        text[order],
        values=data["nats"][order],
        weights=data["tokens"][order],
    )
    assert whole.gap().low == pytest.approx(shuffled.gap().low)


def test_partly_parallel_documents_are_linked():
    lang = np.repeat(["a", "b", "c"], 30)
    document = np.concatenate([np.arange(30), np.arange(10, 40), np.arange(100, 130)])
    rng = np.random.default_rng(2)
    sample = LanguageFrame(lang, document, values=rng.normal(size=90), weights=np.ones(90), resamples=500)
    assert sample.replicates.correlation[0, 1] != 0
    assert sample.replicates.correlation[0, 2] == 0
    assert sample.replicates.clusters == 70


def test_parallel_documents_keep_their_pairing():
    rng = np.random.default_rng(0)
    shared = rng.normal(0, 1, 60)
    lang = np.repeat(["a", "b"], 60)
    values = np.concatenate([shared, shared + 0.1 + rng.normal(0, 0.01, 60)])
    joint = LanguageFrame(lang, np.tile(np.arange(60), 2), values=values, weights=np.ones(120))
    apart = LanguageFrame(lang, np.arange(120), values=values, weights=np.ones(120))
    assert joint.gap().excludes(0)
    assert not apart.gap().excludes(0)
    assert joint.gap().high - joint.gap().low < 0.05 * (apart.gap().high - apart.gap().low)


@pytest.mark.parametrize("parallel", [True, False])
def test_ten_thousand_resamples_are_drawn_at_once_and_once_only(parallel, count_calls, monkeypatch, make_frame):
    """Python takes hardly more calls for 10,000 resamples than for 1,000: NumPy does the work, in half a second."""
    drawn = []
    draw = draws_module.replicate
    monkeypatch.setattr(draws_module, "replicate", lambda *args, **kwargs: (drawn.append(1), draw(*args, **kwargs))[1])

    def calls(resamples):
        sample = make_frame(damage=np.linspace(0.02, 0.05, 20), documents=200, parallel=parallel, resamples=resamples)
        return count_calls(lambda: (sample.by_language(), sample.worst(), sample.best(), sample.mean(), sample.gap()))

    calls(1000)  # what is loaded or kept at the first call is not counted
    assert calls(10_000) < min(1.1 * calls(1000), 12_000)
    assert len(drawn) == 3  # once in each of the three


def unbounded(value: float = 1.0) -> tuple[list[str], list[float]]:
    """Returns a language of 8 documents of which one is damaged: many resamples hold only undamaged ones."""
    return ["flat"] * 8, [0.0] * 7 + [value]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("few", [1, 2, 4])
def test_few_documents_leave_the_others_as_they_are(few, shared, make_uneven_frame):
    whole, alone = (
        make_uneven_frame({"a": 20, "b": 20, "few": few}, shared=shared),
        make_uneven_frame({"a": 20, "b": 20}, shared=shared),
    )
    estimates = whole.by_language()
    assert list(estimates) == ["a", "b", "few"]
    assert {code: estimates[code] for code in "ab"} == alone.by_language()
    assert not estimates["few"].bounded
    assert estimates["few"].n == few
    assert estimates["few"].value == pytest.approx(whole.values[whole.lang == "few"].mean())
    assert whole.language("few") == estimates["few"]
    for name in ("worst", "best", "mean", "gap", "plain_gap", "ratio", "spread", "mean_p"):
        assert getattr(whole, name)() == getattr(alone, name)()
    noun = "document" if few == 1 else "documents"
    assert whole.without_interval == {"few": f"{few} {noun}; an interval needs at least 5"}
    assert interval_notes(whole) == (
        f"no interval for few: {few} {noun}; an interval needs at least 5; left out of worst, best, mean and gap",
    )
    assert alone.without_interval == {}
    assert interval_notes(alone) == ()


def test_an_unbounded_interval_is_no_interval(make_uneven_frame):
    codes, values = unbounded()
    base = make_uneven_frame({"a": 20, "b": 20})
    whole = LanguageFrame(
        np.concatenate([base.lang, codes]),
        np.arange(48),
        values=np.concatenate([base.values, values]),
        weights=np.ones(48),
        resamples=1000,
    )
    assert whole.without_interval == {"flat": "its 8 documents vary too little: the interval is unbounded"}
    assert whole.language("flat").value == 0.125
    assert (whole.best()[0], whole.worst()[0]) == ("a", "b")
    assert "flat" in whole.replicates.languages
    assert "flat" not in whole.bounded.languages
    assert not whole.by_language(simultaneous=True)["flat"].bounded
    assert whole.by_language(simultaneous=True)["a"].bounded


def test_few_of_many_linked_documents_have_no_interval():
    lang = np.array(["a"] * 400 + ["b"] * 5)
    document = np.concatenate([np.arange(400), np.arange(5)])
    values = np.random.default_rng(0).normal(size=405)
    frame = LanguageFrame(lang, document, values=values, weights=np.ones(405))
    assert frame.without_interval == {"b": "it has 5 of the 400 documents that it is resampled with, which is too few"}
    alone = LanguageFrame(lang[:400], document[:400], values=values[:400], weights=np.ones(400))
    assert frame.by_language()["a"] == alone.by_language()["a"]


def test_if_no_language_has_an_interval_nothing_has(make_uneven_frame):
    frame = make_uneven_frame({"a": 1, "b": 2, "c": 4})
    values = {code: estimate.value for code, estimate in frame.by_language().items()}
    assert (frame.worst()[0], frame.best()[0]) == ("c", "a")
    results = {
        "worst": frame.worst()[1],
        "best": frame.best()[1],
        "mean": frame.mean(),
        "gap": frame.gap(),
        "plain_gap": frame.plain_gap(),
        "spread": frame.spread(),
    }
    assert not any(estimate.bounded for estimate in results.values())
    assert results["worst"].value == values["c"]
    assert results["mean"].value == pytest.approx(np.mean(list(values.values())))
    assert results["gap"].value == results["plain_gap"].value == pytest.approx(values["c"] - values["a"])
    assert frame.mean_p() == 1.0
    with pytest.raises(InputError, match="the ratio is unbounded"):
        frame.ratio()
    (note,) = interval_notes(frame, results)
    assert note.startswith("no language has an interval, so worst, best, mean and gap have none either (a: 1 document;")


def test_one_language_with_an_interval_leaves_a_plain_gap(make_uneven_frame):
    frame = make_uneven_frame({"a": 20, "b": 2})
    values = {code: estimate.value for code, estimate in frame.by_language().items()}
    assert frame.worst()[0] == "a"
    assert frame.worst()[1].bounded
    assert frame.mean().bounded
    assert not frame.gap().bounded
    assert not frame.spread().bounded
    assert frame.gap().value == pytest.approx(values["b"] - values["a"])
    assert interval_notes(frame, {"gap": frame.gap(), "ratio": None})[-1] == (
        "no interval for gap: fewer than 2 languages have an interval"
    )


def test_many_languages_with_few_documents_each_have_intervals_and_their_worst_has_none(make_uneven_frame):
    frame = make_uneven_frame({f"l{i:02}": 5 for i in range(60)})
    assert frame.without_interval == {}
    assert frame.mean().bounded
    assert not frame.worst()[1].bounded
    assert interval_notes(frame, {"worst": frame.worst()[1], "mean": frame.mean()}) == (
        "no interval for worst: there are too few documents per language for this many languages",
    )
    assert not any(estimate.bounded for estimate in frame.by_language(simultaneous=True).values())


def test_a_note_names_a_few_of_many_languages(make_uneven_frame):
    (note,) = interval_notes(make_uneven_frame({"a": 20, "b": 20} | {f"l{i}": 2 for i in range(9)}))
    assert note.startswith("no interval for l0, l1, l2, l3, l4 and 4 more: 2 documents;")


def test_what_cannot_be_tested_is_not_significant_and_not_counted(make_uneven_frame):
    one, other = (
        make_uneven_frame({"a": 20, "b": 20, "few": 2}, seed=1),
        make_uneven_frame({"a": 20, "b": 20, "few": 2}, seed=2),
    )
    raised = LanguageFrame(one.lang, one.document, values=one.values + 5, weights=one.weights, resamples=1000)
    contrast = raised.contrast(other)
    assert (contrast.p["few"], contrast.p_holm["few"]) == (1.0, 1.0)
    assert contrast.p_holm["a"] == 2 * contrast.p["a"]  # Holm over two languages
    assert set(contrast.significant()) == {"a", "b"}
    assert not contrast.differences["few"].bounded
    assert contrast.differences["few"].value == pytest.approx(5, abs=1)
    assert raised.worst_minus(other) == _without(raised).worst_minus(_without(other))


def test_differences_of_frames_without_any_interval(make_uneven_frame):
    one, other = make_uneven_frame({"a": 1, "b": 2}, seed=1), make_uneven_frame({"a": 1, "b": 2}, seed=2)
    assert one.contrast(other).significant() == {}
    assert not one.worst_minus(other).bounded
    assert one.worst_minus(other).value == pytest.approx(one.worst()[1].value - other.worst()[1].value)


def _without(frame: LanguageFrame) -> LanguageFrame:
    rows = frame.lang != "few"
    records = {name: getattr(frame, name)[rows] for name in ("lang", "document", "values", "weights")}
    return LanguageFrame(**records, resamples=1000)
