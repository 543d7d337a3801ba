import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.stats import draws as draws_module
from fairbits.stats.frame import LanguageFrame


def records(damage=(0.02, 0.03, 0.06), *, documents=40, parallel=True, seed=0, noise=0.02):
    rng = np.random.default_rng(seed)
    size = len(damage) * documents
    lang = np.repeat([f"l{i}" for i in range(len(damage))], documents)
    document = np.tile(np.arange(documents), len(damage)) if parallel else np.arange(size)
    size_bytes = rng.integers(100, 400, size)
    reference = 0.7 * size_bytes
    delta = np.repeat(damage, documents) + rng.normal(0, noise, size)
    quantized = reference + np.log(2) * size_bytes * delta
    return {
        "lang": lang,
        "document": document,
        "reference": reference,
        "quantized": quantized,
        "tokens": size_bytes / 4,
        "size_bytes": size_bytes,
    }


def frame(**options):
    settings = {key: options.pop(key) for key in ("unit", "confidence", "resamples") if key in options}
    data = records(**options)
    lang, document = data.pop("lang"), data.pop("document")
    return LanguageFrame.from_nll(lang, document, **data, **{"resamples": 1000, **settings})


def test_damage_is_the_ratio_of_sums_in_each_unit():
    data = records()
    here = data["lang"] == "l1"
    delta = (data["quantized"] - data["reference"])[here].sum()
    bits = frame().language("l1").value
    nats = frame(unit="nats_per_token").language("l1").value
    assert bits == pytest.approx(delta / np.log(2) / data["size_bytes"][here].sum())
    assert nats == pytest.approx(delta / data["tokens"][here].sum())


def test_all_results_share_one_set_of_replicates():
    sample = frame()
    first = sample.replicates
    results = (sample.worst(), sample.best(), sample.mean(), sample.gap(), sample.ratio(), sample.spread())
    assert sample.replicates is first
    again = frame()
    assert results == (
        again.worst(),
        again.best(),
        again.mean(),
        again.gap(),
        again.ratio(),
        again.spread(),
    )


def test_worst_best_gap_ratio_mean_describe_the_languages():
    sample = frame()
    (worst, high), (best, low) = sample.worst(), sample.best()
    assert (worst, best) == ("l2", "l0")
    assert high.low < 0.06 < high.high
    assert low.low < 0.02 < low.high
    assert sample.gap().low < 0.04 < sample.gap().high
    assert sample.ratio().low < 3 < sample.ratio().high
    assert sample.mean().value == pytest.approx(np.mean([e.value for e in sample.by_language().values()]))
    assert sample.mean().n == 40
    assert frame(parallel=False).mean().n == 120


def test_extremes_are_pulled_towards_each_other():
    sample = frame(damage=[0.03] * 10)
    values = [e.value for e in sample.by_language().values()]
    assert sample.worst()[1].value < max(values)
    assert sample.best()[1].value > min(values)
    assert sample.gap().value < max(values) - min(values)
    assert not sample.gap().excludes(0)


def test_the_worst_is_never_below_the_mean_nor_the_best_above_it():
    lang, document = np.repeat(list("abcdefgh"), 20), np.arange(160)
    for seed in range(40):
        values = np.random.default_rng(seed).normal(1, 1, 160)
        found = LanguageFrame(lang, document, values=values, weights=np.ones(160), resamples=2000)
        assert found.best()[1].value <= found.mean().value <= found.worst()[1].value


def test_simultaneous_limits_contain_the_marginal_ones():
    sample = frame(damage=[0.01, 0.02, 0.03, 0.04])
    for lang, wide in sample.by_language(simultaneous=True).items():
        narrow = sample.by_language()[lang]
        assert wide.high - wide.low > narrow.high - narrow.low
        assert wide.value == narrow.value


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


def test_document_ids_may_be_text_and_order_does_not_matter():
    data = records()
    order = np.random.default_rng(1).permutation(120)
    text = np.array([f"doc{i:03}" for i in data["document"]])
    whole = LanguageFrame(data["lang"], data["document"], values=data["quantized"], weights=data["tokens"])
    shuffled = LanguageFrame(
        data["lang"][order],
        text[order],
        values=data["quantized"][order],
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


def test_identical_models_have_no_damage_and_a_point_interval():
    data = records()
    lang, document = data.pop("lang"), data.pop("document")
    data["quantized"] = data["reference"]
    sample = LanguageFrame.from_nll(lang, document, **data, resamples=500)
    assert sample.language("l0").to_dict() == {"value": 0, "low": 0, "high": 0, "n": 40, "confidence": 0.95}
    assert sample.gap().value == sample.mean().value == sample.spread().value == 0
    assert sample.contrast(sample).p == dict.fromkeys(("l0", "l1", "l2"), 1.0)


def test_damage_proportional_to_size_has_no_rounding_noise():
    sizes = np.random.default_rng(0).integers(50, 900, 80)
    sample = LanguageFrame(
        np.repeat(["a", "b"], 40), np.arange(80), values=sizes * np.repeat([0.1, 0.3], 40), weights=sizes
    )
    assert sample.gap().value == pytest.approx(0.2)
    assert sample.gap().high - sample.gap().low < 1e-12
    assert sample.ratio().value == pytest.approx(3)


def test_ratio_refuses_a_best_language_that_may_be_undamaged():
    with pytest.raises(InputError, match=r"may be 0.*report gap\(\)"):
        frame(damage=[0.0, 0.05]).ratio()
    with pytest.raises(InputError, match="may be 0"):
        frame(damage=[-0.05, 0.05]).ratio()


def test_contrast_is_paired_and_adjusted():
    plain, gentle = frame(seed=0), frame(damage=(0.02, 0.02, 0.02), seed=0)
    result = plain.contrast(gentle)
    assert result.differences["l2"].value == pytest.approx(0.04)
    assert result.differences["l2"].excludes(0)
    assert result.p_holm["l2"] >= result.p["l2"]
    assert result.p["l0"] == 1.0
    reverse = gentle.contrast(plain)
    assert reverse.differences["l2"].value == pytest.approx(-0.04)
    wide = plain.contrast(gentle, simultaneous=True)
    assert wide.differences["l1"].value == result.differences["l1"].value


def test_contrast_refuses_other_documents_units_and_sizes():
    sample = frame()
    with pytest.raises(InputError, match=r"differ in documents \(0 only here, 30 only"):
        sample.contrast(frame(documents=50))
    with pytest.raises(InputError, match="units"):
        sample.contrast(frame(unit="nats_per_token"))
    heavier = LanguageFrame(
        sample.lang, sample.document, values=sample.values, weights=2 * sample.weights, resamples=500
    )
    with pytest.raises(InputError, match="sizes must agree"):
        sample.contrast(heavier)


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
def test_bad_records_are_refused(change, message):
    data = records()
    good = {key: data[key] for key in ("lang", "document")} | {
        "values": data["quantized"] - data["reference"],
        "weights": data["size_bytes"],
    }
    with pytest.raises(InputError, match=message):
        LanguageFrame(**(good | change))


def test_too_few_languages_or_weights_are_refused_when_used():
    with pytest.raises(InputError, match="at least 2"):
        frame(damage=[0.03]).gap()
    assert frame(damage=[0.03]).worst()[0] == "l0"
    lang = np.repeat(["a", "b"], 20)
    weights = np.repeat([1.0, 0.0], 20)
    with pytest.raises(InputError, match="weights of b sum to 0"):
        LanguageFrame(lang, np.arange(40), values=np.ones(40), weights=weights).mean()


def test_unknown_language_names_those_that_exist():
    with pytest.raises(InputError, match="'heb' is not in the frame; it holds l0, l1, l2"):
        frame().language("heb")


def test_the_records_cannot_be_changed():
    sample = frame()
    with pytest.raises(ValueError, match="read-only"):
        sample.values[0] = 1.0


@pytest.mark.parametrize("parallel", [True, False])
def test_ten_thousand_resamples_are_drawn_at_once_and_once_only(parallel, count_calls, monkeypatch):
    """Python takes hardly more calls for 10,000 resamples than for 1,000: NumPy does the work, in half a second."""
    drawn = []
    draw = draws_module.replicate
    monkeypatch.setattr(draws_module, "replicate", lambda *args, **kwargs: (drawn.append(1), draw(*args, **kwargs))[1])

    def calls(resamples):
        sample = frame(damage=np.linspace(0.02, 0.05, 20), documents=200, parallel=parallel, resamples=resamples)
        return count_calls(lambda: (sample.by_language(), sample.worst(), sample.best(), sample.mean(), sample.gap()))

    calls(1000)  # what is loaded or kept at the first call is not counted
    assert calls(10_000) < min(1.1 * calls(1000), 12_000)
    assert len(drawn) == 3  # once in each of the three


def test_a_section_is_a_document_whatever_its_size():
    data = records()
    here = data["lang"] == "l1"
    delta = (data["quantized"] - data["reference"])[here]
    assert frame(unit="nats_per_section").language("l1").value == pytest.approx(delta.mean())


def test_the_plain_gap_is_the_range_of_the_estimates():
    sample = frame(damage=(0.03, 0.03, 0.03, 0.03))
    values = [each.value for each in sample.by_language().values()]
    assert sample.plain_gap().value == pytest.approx(max(values) - min(values))
    assert sample.gap().value < sample.plain_gap().value
    assert (sample.gap().low, sample.gap().high) == (sample.plain_gap().low, sample.plain_gap().high)


def test_the_worst_of_two_frames_is_compared_by_the_same_documents():
    before, after = frame(damage=(0.02, 0.06)), frame(damage=(0.10, 0.06))
    found = after.worst_minus(before)
    assert found.value == pytest.approx(after.worst()[1].value - before.worst()[1].value, abs=1e-3)  # of other draws
    assert 0 < found.low < 0.04 < found.high  # another language is the worst now
    raised = LanguageFrame(before.lang, before.document, values=before.values + before.weights, weights=before.weights)
    exact = raised.worst_minus(before)  # whichever language is the worst, it has lost 1 more
    assert exact.low == pytest.approx(1.0)
    assert exact.high == pytest.approx(1.0)
    assert before.worst_minus(before).high == 0


def test_a_worst_that_may_be_many_is_not_called_lower():
    tied, alone = frame(damage=(0.05,) * 8), frame(damage=(0.05, *(0.01,) * 7))
    assert max(each.value for each in tied.by_language().values()) > 0.052  # noise lifts the largest of many
    found = alone.worst_minus(tied)
    assert found.low < 0 <= found.high


def test_differences_are_a_frame_of_their_own():
    before, after = frame(), frame(damage=(0.03, 0.03, 0.05), seed=0)
    difference = after.minus(before)
    assert difference.mean().value == pytest.approx(after.mean().value - before.mean().value)
    assert difference.by_language() == after.contrast(before).differences


def test_p_of_the_mean_is_that_of_the_language_if_there_is_one() -> None:
    rng = np.random.default_rng(4)
    for shift in (0.0, 0.2, 0.5, 3.0):
        lang, document = np.full(30, "heb_Hebr"), np.arange(30)
        one = LanguageFrame(lang, document, values=rng.normal(shift, 1, 30), weights=np.ones(30), resamples=1999)
        nothing = LanguageFrame(lang, document, values=np.zeros(30), weights=np.ones(30), resamples=1999)
        assert one.mean_p() == pytest.approx(one.contrast(nothing).p["heb_Hebr"])


def test_p_of_the_mean_and_its_interval_agree() -> None:
    rng = np.random.default_rng(5)
    decided = []
    for shift in np.linspace(0, 0.6, 13):
        lang, document = np.repeat(["eng_Latn", "fin_Latn", "heb_Hebr"], 30), np.tile(np.arange(30), 3)
        frame = LanguageFrame(lang, document, values=rng.normal(shift, 1, 90), weights=np.ones(90), resamples=1999)
        decided.append(frame.mean_p() < 0.05)
        assert decided[-1] == frame.mean().excludes(0.0)
    assert 0 < sum(decided) < len(decided)
    assert LanguageFrame(lang, document, values=np.zeros(90), weights=np.ones(90)).mean_p() == 1.0
