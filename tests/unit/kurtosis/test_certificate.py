import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbits.core.errors import InputError
from fairbits.kurtosis.certificate import activation_weighted, certificate
from fairbits_research.theory.bounds import total_variation, tv_bound

LANGUAGES = ("eng", "heb", "hin")
BLOCK_OF = {"q": 0, "up": 0, "down": 1, "head": None, "norm": 1}


def case(seed=0, *, languages=3, spread=1.0):
    rng = np.random.default_rng(seed)
    widths = {"q": 6, "head": 3, "up": 6, "down": 9}
    h = {name: rng.lognormal(0, spread, (languages, width)) for name, width in widths.items()}
    error = {name: rng.lognormal(rng.normal(), spread, width) for name, width in widths.items()}
    return h, error


def flat(h, error):
    """All channels of all linears side by side: p of every language, and m."""
    joined = np.concatenate(list(h.values()), axis=1)
    return joined / joined.sum(axis=1, keepdims=True), np.concatenate([error[name] for name in h])


def test_weighted_error_is_the_diagonal_part_of_the_output_error():
    rng = np.random.default_rng(0)
    W, X = rng.normal(size=(5, 6)), rng.normal(size=(4000, 6)) * rng.lognormal(size=6)
    change = np.round(W * 2) / 2 - W
    weighted = activation_weighted(
        {"q": np.mean(X**2, axis=0)[None]}, {"q": np.sum(change**2, axis=0)}, block_of=BLOCK_OF, languages=["eng"]
    )
    H = np.diag(np.diag(X.T @ X / len(X)))
    assert weighted.by_linear[0, 0] == pytest.approx(np.trace(change @ H @ change.T))
    assert weighted.by_linear[0, 0] == pytest.approx(np.mean(np.sum((X @ change.T) ** 2, axis=1)), rel=0.1)


def test_sums_by_linear_and_block_and_the_normalised_damage():
    h, error = case()
    weighted = activation_weighted(h, error, block_of=BLOCK_OF, languages=LANGUAGES)
    assert weighted.linears == ("q", "head", "up", "down")
    assert weighted.blocks == (0, 1, None)
    assert weighted.by_linear[1, 3] == pytest.approx(h["down"][1] @ error["down"])
    np.testing.assert_allclose(weighted.by_block[:, 0], weighted.by_linear[:, 0] + weighted.by_linear[:, 2])
    np.testing.assert_allclose(weighted.by_block.sum(axis=1), weighted.by_linear.sum(axis=1))
    p, m = flat(h, error)
    np.testing.assert_allclose(weighted.damage, p @ m)
    np.testing.assert_allclose(certificate(h, error, languages=LANGUAGES).damage, p @ m)


def test_damage_does_not_know_how_loud_a_language_is():
    h, error = case()
    louder = {name: channels * np.array([1.0, 50.0, 1.0])[:, None] for name, channels in h.items()}
    one, two = (certificate(activations, error, languages=LANGUAGES) for activations in (h, louder))
    np.testing.assert_allclose(one.damage, two.damage)
    np.testing.assert_allclose(one.bound, two.bound, atol=1e-14)


def test_bound_is_that_of_the_theory_over_all_channels():
    h, error = case(1)
    cert = certificate(h, error, languages=LANGUAGES)
    p, m = flat(h, error)
    for a in range(3):
        for b in range(3):
            assert cert.distance[a, b] == pytest.approx(total_variation(p[a], p[b]), abs=1e-14)
            assert cert.bound[a, b] == pytest.approx(tv_bound(p[a], p[b], errors=m), abs=1e-14)


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.floats(0, 3))
def test_certificate_is_never_violated(seed, languages, spread):
    h, error = case(seed, languages=languages, spread=spread)
    cert = certificate(h, error, languages=[str(i) for i in range(languages)])
    slack = 1e-12 * max(float(m.max()) for m in error.values())
    assert (cert.actual <= cert.bound_by_linear + slack).all()
    assert (cert.bound_by_linear <= cert.bound).all()
    assert cert.worst.actual <= cert.certified + slack
    assert cert.worst.actual == pytest.approx(np.ptp(cert.damage), abs=slack)


def test_bound_is_attained_when_all_that_moves_goes_from_the_least_to_the_largest_error():
    h = {"q": [[0.5, 0.2, 0.1], [0.1, 0.2, 0.5]], "up": [[0.2], [0.2]]}
    error = {"q": [1.0, 2.0, 9.0], "up": [4.0]}
    worst = certificate(h, error, languages=["eng", "heb"]).worst
    assert (worst.worse, worst.better) == ("heb", "eng")
    assert worst.actual == pytest.approx(0.4 * 8)
    assert worst.tightness == pytest.approx(1)
    assert worst.bound_by_linear == pytest.approx(worst.bound)


def test_bound_by_linear_is_attained_where_the_plain_one_is_loose():
    h = {"q": [[0.4, 0.1], [0.1, 0.4]], "up": [[0.5], [0.5]]}
    error = {"q": [1.0, 2.0], "up": [1000.0]}  # the large error is seen alike, so it cannot part the languages
    worst = certificate(h, error, languages=["eng", "heb"]).worst
    assert worst.actual == pytest.approx(0.3)
    assert worst.bound_by_linear == pytest.approx(0.3)
    assert worst.bound == pytest.approx(0.3 * 999)
    assert worst.tightness == pytest.approx(1 / 999)


def test_equal_languages_have_no_gap_and_a_tight_bound():
    cert = certificate({"q": [[1.0, 2.0], [2.0, 4.0]]}, {"q": [0.1, 0.7]}, languages=["eng", "heb"])
    assert (cert.worst.actual, cert.worst.bound, cert.worst.tightness, cert.certified) == (0, 0, 1, 0)


def test_data_is_plain():
    h, error = case()
    cert = certificate(h, error, languages=LANGUAGES)
    data = json.loads(json.dumps(cert.as_data()))
    assert data["worst"]["worse"] in LANGUAGES
    assert data["certified"] == cert.certified
    weighted = activation_weighted(h, error, block_of=BLOCK_OF, languages=LANGUAGES)
    data = json.loads(json.dumps(weighted.as_data()))
    assert data["blocks"] == [0, 1, None]
    assert data["by_block"]["heb"] == weighted.by_block[1].tolist()


@pytest.mark.parametrize(
    ("h", "error", "message"),
    [
        ({"q": np.ones((3, 2))}, {"q": np.ones(3)}, "input channels"),
        ({"q": np.ones((2, 2))}, {"q": np.ones(2)}, "input channels"),
        ({"q": -np.ones((3, 2))}, {"q": np.ones(2)}, "at least 0"),
        ({"q": np.ones((3, 2))}, {"q": [1.0, np.nan]}, "NaN"),
        ({"q": [[1.0], [0.0], [1.0]]}, {"q": [1.0]}, "heb is 0"),
        ({"q": np.full((3, 2), 1.7e308)}, {"q": [0.1, 0.1]}, "float64"),
    ],
)
def test_bad_input_is_refused(h, error, message):
    with pytest.raises(InputError, match=message):
        certificate(h, error, languages=LANGUAGES)
    with pytest.raises(InputError, match=message):
        activation_weighted(h, error, block_of=BLOCK_OF, languages=LANGUAGES)
