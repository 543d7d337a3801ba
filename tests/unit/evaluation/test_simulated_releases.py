"""Releases that are drawn from a pilot: their truth, their spread, and their counts."""

import numpy as np
import pytest

from fairbits.evaluation.simulated_releases import PilotDocuments, RescaledDocuments, moved, propensities
from fairbits.stats.frame import LanguageFrame

LANGUAGES = ("eng_Latn", "heb_Hebr")
WEIGHTS = np.array([20.0, 30.0, 50.0, 60.0, 80.0, 20.0, 40.0, 30.0])


def frame(*, parallel: bool, rates: tuple[float, ...] = (0.05, 0.2), seed: int = 0) -> LanguageFrame:
    rng, n = np.random.default_rng(seed), 10 * len(WEIGHTS)
    weights = np.tile(WEIGHTS, 10 * len(rates))
    rate = np.repeat(rates, n) * rng.gamma(4, 1 / 4, n * len(rates))
    document = np.tile(np.arange(n), len(rates)) if parallel else np.arange(n * len(rates))
    values = rng.binomial(weights.astype(int), np.minimum(rate, 1)).astype(float)
    return LanguageFrame(np.repeat(LANGUAGES, n), document, values=values, weights=weights, unit="ratio", least=0.0)


def shares(release: LanguageFrame) -> dict[str, float]:
    lang = release.lang
    return {
        code: release.values[lang == code].sum() / release.weights[lang == code].sum() for code in release.languages
    }


def truth(documents: RescaledDocuments) -> dict[str, float]:
    return {
        documents.frame.languages[column]: float(
            (group.values[:, i] * (group.weights[:, i] if documents.counts else 1)).sum() / group.weights[:, i].sum()
        )
        for group in documents.groups
        for i, column in enumerate(group.columns.tolist())
    }


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("worst", [0.02, 0.5])
def test_the_truth_is_what_was_asked_for(parallel: bool, counts: bool, worst: float) -> None:
    pilot = PilotDocuments(frame(parallel=parallel), counts)
    true = truth(pilot.rescaled(worst))
    assert true["heb_Hebr"] == pytest.approx(worst, rel=1e-9)
    assert true["eng_Latn"] / worst == pytest.approx(pilot.damage["eng_Latn"] / pilot.damage["heb_Hebr"], rel=1e-9)
    rng = np.random.default_rng(1)
    drawn = [shares(pilot.rescaled(worst).draw(2, rng))["heb_Hebr"] for _ in range(100)]
    assert np.mean(drawn) == pytest.approx(worst, abs=4 * np.std(drawn) / 10)


@pytest.mark.parametrize("times", [0.5, 1, 3, 40])
def test_releases_are_valid_and_have_the_amount_that_was_asked_for(times: float) -> None:
    pilot = frame(parallel=True)
    release = PilotDocuments(pilot, counts=True).rescaled(0.9).draw(times, np.random.default_rng(0))
    assert (release.values <= release.weights).all()
    assert (release.values % 1 == 0).all()
    assert release.weights.sum() == pytest.approx(times * pilot.weights.sum(), rel=0.1)
    by_language = [release.document[release.lang == code].tolist() for code in release.languages]
    assert by_language[0] == by_language[1]
    assert len(by_language[0]) <= 400


@pytest.mark.parametrize("counts", [True, False])
def test_the_spread_is_that_of_the_text_and_not_of_the_sample(counts: bool) -> None:
    """Pilots of 8 documents, at their own damage: the mean variance of releases is that of samples of the text."""
    truth_of_text, rng = 0.2, np.random.default_rng(3)
    tokens = np.full(8, 50.0)

    def sample() -> LanguageFrame:
        rate = np.minimum(truth_of_text * rng.gamma(9, 1 / 9, 8), 1)
        values = rng.binomial(50, rate).astype(float)
        return LanguageFrame(np.full(8, "eng_Latn"), np.arange(8), values=values, weights=tokens, resamples=200)

    means = [s.values.sum() / 400 for s in (sample() for _ in range(4000))]
    variances = []
    for _ in range(150):
        documents = PilotDocuments(sample(), counts).rescaled(truth_of_text)
        releases = [documents.draw(1, rng) for _ in range(12)]
        variances.append(np.var([shares(release)["eng_Latn"] for release in releases], ddof=1))
    assert np.mean(variances) == pytest.approx(np.var(means), rel=0.2)


def test_propensities_do_not_vary_where_counts_vary_as_tosses_do() -> None:
    rng = np.random.default_rng(0)
    tokens = np.full(2000, 50.0)
    even = propensities(rng.binomial(50, 0.2, 2000).astype(float), tokens)
    assert even.std() < 0.02
    uneven = propensities(rng.binomial(50, rng.uniform(0.1, 0.3, 2000)).astype(float), tokens)
    assert uneven.std() == pytest.approx(0.2 / 12**0.5, rel=0.1)


def test_moved_rates_have_the_share_and_stay_rates() -> None:
    rates, tokens = np.array([1e-6, 0.1, 0.5, 0.9]), np.array([10.0, 20.0, 30.0, 40.0])
    for share in (1e-5, 0.3, 0.99):
        changed = moved(rates, tokens, share=share)
        assert changed @ tokens / 100 == pytest.approx(share, rel=1e-6)
        assert ((changed > 0) & (changed < 1)).all()
        assert (np.diff(changed) > 0).all()
