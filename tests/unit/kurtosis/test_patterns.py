import json

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.kurtosis.checklist import published_statistics
from fairbits.kurtosis.patterns import Pattern, kappa_influence
from fairbits.models.weight_moments import Moments, kappa_mixture
from fairbits.stats.frame import LanguageFrame
from fairbits_research.theory.bounds import total_variation
from fairbits_research.theory.effective_kurtosis import kappa_weighted

PARTS = (
    Moments(1, 0.1, 4.0, 0.5, 40.0),
    Moments(1, 0.0, 1.0, 0.0, 2.0),
    Moments(1, -0.3, 0.5, -0.2, 0.0),
    Moments(1, 0.0, 2.0, 0.0, 7.0),
)
KAPPA = np.array([part.kappa for part in PARTS])


def records(languages=("zho", "eng", "heb"), *, documents=12, blocks=4, parallel=True, seed=0):
    rng = np.random.default_rng(seed)
    size = len(languages) * documents
    tokens = rng.integers(50, 400, size).astype(float)
    level = rng.lognormal(0, 0.5, (len(languages), blocks)).repeat(documents, axis=0)
    return {
        "lang": np.repeat(languages, documents),
        "document": np.tile(np.arange(documents), len(languages)) if parallel else np.arange(size),
        "sums": level * tokens[:, None] * rng.lognormal(0, 0.2, (size, blocks)),
        "tokens": tokens,
    }


def pattern(**options):
    data = records(**options)
    return Pattern(data.pop("lang"), data.pop("document"), **data, resamples=500)


def changed(**changes):
    data = records() | changes
    return Pattern(data.pop("lang"), data.pop("document"), **data)


def test_languages_keep_their_order_and_shares_are_ratios_of_sums():
    data, language_pattern = records(), pattern()
    assert language_pattern.languages == ("zho", "eng", "heb")
    here = data["lang"] == "heb"
    total = data["sums"][here].sum(axis=0)
    np.testing.assert_allclose(language_pattern.activation[2], total / data["tokens"][here].sum())
    np.testing.assert_allclose(language_pattern.share[2], total / total.sum())


def test_blocks_that_see_fewer_tokens_have_no_smaller_share():
    lang, document = np.repeat(["eng", "heb"], 6), np.tile(np.arange(6), 2)
    tokens = np.tile([[3.0, 2.0]], (12, 1)) * np.arange(1, 13)[:, None]
    pattern = Pattern(lang, document, sums=tokens * [1.0, 3.0], tokens=tokens)
    np.testing.assert_allclose(pattern.activation, [[1, 3]] * 2)
    np.testing.assert_allclose(pattern.share, [[0.25, 0.75]] * 2)
    assert pattern.share_estimates()["heb"][1].value == pytest.approx(0.75)
    assert pattern.kappa_weighted([0.0, 4.0])["eng"].value == pytest.approx(3.0)
    assert pattern.activation_estimates()["eng"][1].value == pytest.approx(3.0)


def test_values_of_the_estimates_are_the_tables():
    language_pattern = pattern()
    for table, estimates in (
        (language_pattern.activation, language_pattern.activation_estimates()),
        (language_pattern.share, language_pattern.share_estimates()),
    ):
        assert tuple(estimates) == language_pattern.languages
        np.testing.assert_allclose([[estimate.value for estimate in row] for row in estimates.values()], table)
        assert all(
            estimate.low < estimate.value < estimate.high and estimate.n == 12
            for row in estimates.values()
            for estimate in row
        )


@pytest.mark.parametrize("parallel", [True, False])
def test_intervals_by_block_are_those_of_a_frame_of_that_block_alone(parallel):
    data, language_pattern = records(parallel=parallel), pattern(parallel=parallel)
    for weights, estimates in (
        (data["tokens"], language_pattern.activation_estimates()),
        (data["sums"].sum(axis=1), language_pattern.share_estimates()),
    ):
        alone = LanguageFrame(
            data["lang"], data["document"], values=data["sums"][:, 2], weights=weights, unit="ratio", resamples=500
        ).by_language()
        for lang in language_pattern.languages:
            got, want = estimates[lang][2], alone[lang]
            assert (got.value, got.low, got.high) == pytest.approx((want.value, want.low, want.high), rel=1e-9)


def test_both_effective_kurtoses_agree_with_theory_and_differ():
    language_pattern = pattern()
    weighted, mixture = language_pattern.kappa_weighted(KAPPA), language_pattern.kappa_mixture(PARTS)
    for lang, share in zip(language_pattern.languages, language_pattern.share, strict=True):
        assert weighted[lang].value == pytest.approx(kappa_weighted(share, KAPPA))
        assert mixture[lang].value == pytest.approx(kappa_mixture(share, PARTS))
        assert abs(weighted[lang].value - mixture[lang].value) > 1
        assert mixture[lang].low < mixture[lang].value < mixture[lang].high


def test_kappa_influence_is_the_derivative_of_the_mixture():
    share, step = np.array([0.2, 0.4, 0.1, 0.3]), 1e-6
    kappa, influence = kappa_mixture(share, PARTS), kappa_influence(share, PARTS)
    for block, unit in enumerate(np.eye(4)):
        moved = [kappa_mixture((1 - t) * share + t * unit, PARTS) for t in (step, -step)]
        assert influence[block] - kappa == pytest.approx((moved[0] - moved[1]) / (2 * step), rel=1e-6)


def test_influence_survives_extreme_scales_and_constants():
    large = [Moments(1, part.mean * 1e150, part.variance * 1e300, part.skewness, part.kappa) for part in PARTS]
    np.testing.assert_allclose(kappa_influence(np.ones(4), large), kappa_influence(np.ones(4), PARTS), rtol=1e-9)
    constant = [Moments(1, 0.1, 0.0, 0.0, 0.0)] * 3
    assert kappa_influence([0.3, 0.3, 0.4], constant).tolist() == [0, 0, 0]


def test_interval_of_the_mixture_agrees_with_resampling_the_nonlinear_statistic():
    data = records(("eng",), documents=60, seed=3)
    language_pattern = Pattern(data.pop("lang"), data.pop("document"), **data)
    estimate = language_pattern.kappa_mixture(PARTS)["eng"]
    counts = np.random.default_rng(1).multinomial(60, np.full(60, 1 / 60), size=2000)
    resampled = [kappa_mixture(row, PARTS) for row in counts @ data["sums"]]
    low, high = np.quantile(resampled, [0.025, 0.975])
    assert estimate.high - estimate.low == pytest.approx(high - low, rel=0.15)
    assert estimate.low == pytest.approx(low, abs=0.15 * (high - low))


def test_interval_of_the_mixture_covers_and_better_than_percentiles():
    samples, documents = 500, 15
    rng = np.random.default_rng(0)
    parts = [Moments(1, 0.0, part.variance, 0.0, part.kappa) for part in PARTS]
    second, fourth = np.array([(part.variance, (part.kappa + 3) * part.variance**2) for part in parts]).T

    def drawn(size):
        return np.array([0.3, 1, 1, 1]) * rng.lognormal(0, 0.5, (size, 4)) * rng.lognormal(0, 0.5, (size, 1))

    truth, sums = kappa_mixture(drawn(400_000).sum(axis=0), parts), drawn(samples * documents)
    lang = np.repeat([f"{i:03d}" for i in range(samples)], documents)  # every sample plays a language
    language_pattern = Pattern(lang, np.arange(lang.size), sums=sums, tokens=np.ones(lang.size), resamples=400)
    covered = np.mean([e.low <= truth <= e.high for e in language_pattern.kappa_mixture(parts).values()])
    resampled = rng.multinomial(documents, np.full(documents, 1 / documents), size=400) @ sums.reshape(samples, -1, 4)
    kappa = resampled.sum(axis=2) * (resampled @ fourth) / (resampled @ second) ** 2 - 3
    low, high = np.quantile(kappa, [0.025, 0.975], axis=1)
    percentile = np.mean((low <= truth) & (truth <= high))
    assert 0.92 < covered < 0.98
    assert percentile < covered


def test_fraction_of_none_some_and_all_blocks():
    language_pattern = pattern()
    assert [(e.value, e.low, e.high) for e in language_pattern.fraction([]).values()] == [(0, 0, 0)] * 3
    np.testing.assert_allclose(
        [e.value for e in language_pattern.fraction((1, 3)).values()], language_pattern.share[:, [1, 3]].sum(axis=1)
    )
    assert [(e.value, e.low, e.high) for e in language_pattern.fraction(range(4)).values()] == [(1, 1, 1)] * 3


def test_distances_are_total_variations():
    language_pattern = pattern()
    distances = language_pattern.distances()
    assert distances[0, 2] == pytest.approx(total_variation(language_pattern.share[0], language_pattern.share[2]))
    np.testing.assert_array_equal(distances, distances.T)
    assert (np.diag(distances) == 0).all()


def test_data_is_plain_and_the_same_every_time():
    first, again = (json.dumps(pattern().as_data()) for _ in range(2))
    assert first == again
    data = json.loads(first)
    assert data["languages"] == ["zho", "eng", "heb"]
    assert data["share"]["heb"][1]["value"] == pytest.approx(pattern().share[2, 1])


def test_the_seed_moves_limits_but_no_value():
    data = records()
    lang, document = data.pop("lang"), data.pop("document")
    one, two = (Pattern(lang, document, **data, seed=seed).fraction([0])["eng"] for seed in (0, 1))
    assert one.value == two.value
    assert one.low != two.low


def test_records_are_frozen_copies():
    data = records()
    language_pattern = Pattern(data["lang"], data["document"], sums=data["sums"], tokens=data["tokens"])
    before = language_pattern.share.copy()
    data["sums"][:] = 1.0
    np.testing.assert_array_equal(Pattern.share.func(language_pattern), before)
    with pytest.raises(ValueError, match="read-only"):
        language_pattern.sums[0, 0] = 1.0


def test_work_grows_with_the_languages_and_not_with_the_documents(count_calls):
    def calls(languages, documents):
        data = records(tuple(f"l{i:02d}" for i in range(languages)), documents=documents, blocks=24)

        def work():
            language_pattern = Pattern(data["lang"], data["document"], sums=data["sums"], tokens=data["tokens"])
            language_pattern.activation_estimates(), language_pattern.share_estimates(), language_pattern.distances()
            language_pattern.kappa_weighted(published_statistics().kurtosis["BLOOM-560M"])
            language_pattern.kappa_mixture(PARTS * 6)
            language_pattern.fraction((5, 21, 22))

        return count_calls(work)

    calls(20, 19)  # what is loaded or kept at the first call is not counted
    assert calls(20, 19) == calls(20, 38) < 80_000
    assert calls(20, 19) < 2 * calls(10, 19)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sums": -records()["sums"]}, "at least 0"),
        ({"sums": records()["sums"][0]}, "2 dimension"),
        ({"tokens": np.ones(3)}, "rows of sums"),
        ({"lang": np.arange(36)}, "language codes"),
        ({"document": np.zeros(36, dtype=int)}, "occurs twice"),
        ({"confidence": 1.0}, "confidence"),
        ({"sums": records()["sums"] * (records()["lang"] != "eng")[:, None]}, "eng has no activation"),
        ({"tokens": 1.0 * (records()["lang"] != "heb")}, "heb has no tokens"),
    ],
)
def test_bad_records_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        changed(**changes)


def test_bad_arguments_are_refused():
    language_pattern = pattern()
    for call, message in (
        (lambda: language_pattern.kappa_weighted([1.0, 2.0]), "number of blocks"),
        (lambda: language_pattern.kappa_mixture(PARTS[:3]), "number of blocks"),
        (lambda: language_pattern.kappa_mixture([*PARTS[:3], Moments(1, 0, 1.0, 0, np.inf)]), "infinite kappa"),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_few_documents_have_no_interval():
    few, whole = pattern(documents=4), pattern(documents=8)
    assert not any(estimate.bounded for estimate in few.fraction([0]).values())
    assert not any(estimate.bounded for row in few.share_estimates().values() for estimate in row)
    assert all(estimate["low"] is None for row in few.as_data()["share"].values() for estimate in row)
    assert all(estimate.bounded for row in whole.share_estimates().values() for estimate in row)
