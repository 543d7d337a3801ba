import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.stats.frame import LanguageFrame


def test_damage_is_the_ratio_of_sums_in_each_unit(make_frame, make_records):
    data = make_records()
    here = data["lang"] == "l1"
    delta = data["nats"][here].sum()
    bits = make_frame().language("l1").value
    nats = make_frame(unit="nats_per_token").language("l1").value
    assert bits == pytest.approx(delta / np.log(2) / data["size_bytes"][here].sum())
    assert nats == pytest.approx(delta / data["tokens"][here].sum())


def test_all_results_share_one_set_of_replicates(make_frame):
    sample = make_frame()
    first = sample.replicates
    results = (sample.worst(), sample.best(), sample.mean(), sample.gap(), sample.ratio(), sample.spread())
    assert sample.replicates is first
    again = make_frame()
    assert results == (
        again.worst(),
        again.best(),
        again.mean(),
        again.gap(),
        again.ratio(),
        again.spread(),
    )


def test_worst_best_gap_ratio_mean_describe_the_languages(make_frame):
    sample = make_frame()
    (worst, high), (best, low) = sample.worst(), sample.best()
    assert (worst, best) == ("l2", "l0")
    assert high.low < 0.06 < high.high
    assert low.low < 0.02 < low.high
    assert sample.gap().low < 0.04 < sample.gap().high
    assert sample.ratio().low < 3 < sample.ratio().high
    assert sample.mean().value == pytest.approx(np.mean([e.value for e in sample.by_language().values()]))
    assert sample.mean().n == 40
    assert make_frame(parallel=False).mean().n == 120


def test_simultaneous_limits_contain_the_marginal_ones(make_frame):
    sample = make_frame(damage=[0.01, 0.02, 0.03, 0.04])
    for lang, wide in sample.by_language(simultaneous=True).items():
        narrow = sample.by_language()[lang]
        assert wide.high - wide.low > narrow.high - narrow.low
        assert wide.value == narrow.value


def test_identical_models_have_no_damage_and_a_point_interval(make_records):
    sample = LanguageFrame.from_nats(**make_records() | {"nats": np.zeros(120)}, resamples=500)
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


def test_ratio_refuses_a_best_language_that_may_be_undamaged(make_frame):
    with pytest.raises(InputError, match=r"may be 0.*report gap\(\)"):
        make_frame(damage=[0.0, 0.05]).ratio()
    with pytest.raises(InputError, match="may be 0"):
        make_frame(damage=[-0.05, 0.05]).ratio()


def test_contrast_is_paired_and_adjusted(make_frame):
    plain, gentle = make_frame(seed=0), make_frame(damage=(0.02, 0.02, 0.02), seed=0)
    result = plain.contrast(gentle)
    assert result.differences["l2"].value == pytest.approx(0.04)
    assert result.differences["l2"].excludes(0)
    assert result.p_holm["l2"] >= result.p["l2"]
    assert result.p["l0"] == 1.0
    reverse = gentle.contrast(plain)
    assert reverse.differences["l2"].value == pytest.approx(-0.04)


def test_contrast_refuses_other_documents_units_and_sizes(make_frame):
    sample = make_frame()
    with pytest.raises(InputError, match=r"differ in documents \(0 only here, 30 only"):
        sample.contrast(make_frame(documents=50))
    with pytest.raises(InputError, match="units"):
        sample.contrast(make_frame(unit="nats_per_token"))
    heavier = LanguageFrame(
        sample.lang, sample.document, values=sample.values, weights=2 * sample.weights, resamples=500
    )
    with pytest.raises(InputError, match="sizes must agree"):
        sample.contrast(heavier)


def test_too_few_languages_or_weights_are_refused_when_used(make_frame):
    with pytest.raises(InputError, match="at least 2"):
        make_frame(damage=[0.03]).gap()
    assert make_frame(damage=[0.03]).worst()[0] == "l0"
    lang = np.repeat(["a", "b"], 20)
    weights = np.repeat([1.0, 0.0], 20)
    with pytest.raises(InputError, match="weights of b sum to 0"):
        LanguageFrame(lang, np.arange(40), values=np.ones(40), weights=weights).mean()


def test_unknown_language_names_those_that_exist(make_frame):
    with pytest.raises(InputError, match="'heb' is not in the frame; it has l0, l1, l2"):
        make_frame().language("heb")


def test_a_section_is_a_document_whatever_its_size(make_frame, make_records):
    data = make_records()
    here = data["lang"] == "l1"
    delta = data["nats"][here]
    assert make_frame(unit="nats_per_section").language("l1").value == pytest.approx(delta.mean())


def test_differences_are_a_frame_of_their_own(make_frame):
    before, after = make_frame(), make_frame(damage=(0.03, 0.03, 0.05), seed=0)
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


def spaced_frame(languages: int = 3, documents: int = 20) -> LanguageFrame:
    rng = np.random.default_rng(0)
    lang = np.repeat([f"l{i:02}" for i in range(languages)], documents)
    values = rng.normal(np.repeat(np.arange(languages) + 2.0, documents), 0.5)
    document = np.tile(np.arange(documents), languages)
    return LanguageFrame(lang, document, values=values, weights=np.full(len(lang), 100.0), resamples=200)


def test_the_table_is_short_and_worst_first() -> None:
    frame = spaced_frame()
    lines = repr(frame).splitlines()
    assert lines[0] == "Damage in bits per byte with 95% intervals over documents"
    assert [line.split()[0] for line in lines[2:5]] == ["l02", "l01", "l00"]
    assert f"{frame.by_language()['l02'].value:.4f}" in lines[2]
    assert lines[5].startswith("worst l02 ")
    assert "<table" in frame._repr_html_()
    assert len(repr(spaced_frame(40)).splitlines()) < 16


def test_one_language_and_few_documents() -> None:
    assert "gap" not in repr(spaced_frame(1))
    frame = spaced_frame(2, documents=2)
    assert " – " in repr(frame)
    assert frame.to_pandas()["damage_low"].isna().all()


def test_pandas_and_figure_have_the_numbers_of_the_frame() -> None:
    frame = spaced_frame()
    table, expected = frame.to_pandas(), frame.by_language()
    assert list(table.index) == ["l02", "l01", "l00"]
    for code, row in table.iterrows():
        estimate = expected[code]
        assert (row.damage, row.damage_low, row.damage_high, row.documents) == (
            estimate.value,
            estimate.low,
            estimate.high,
            estimate.n,
        )
    trace = frame.plot().to_dict()["data"][0]
    assert trace["text"] == ["l02", "l01", "l00"]
    assert trace["x"] == table["damage"].tolist()


@pytest.mark.parametrize("weight", [127.0, 51.0, 1000 / 3])
def test_copies_of_one_document_do_not_seem_to_vary(weight: float) -> None:
    values = np.array([0.0, 0, 0, 0, 1, 2, 0, 0, 0])  # many resamples hold one of the two, or copies of it
    frame = LanguageFrame(
        np.full(9, "fra_Latn"), np.arange(9), values=values, weights=np.full(9, weight), unit="ratio", least=0.0
    )
    assert not frame.by_language()["fra_Latn"].bounded
