import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fairbits.core.errors import InputError
from fairbits.kurtosis.redundancy import effective_dimension, miller_madow, redundancy
from fairbits_research.theory.redundancy_theorem import redundancy as exact_redundancy

LN2 = math.log(2)


def measured(**other: Any) -> dict[str, Any]:
    """Six documents of Hebrew and six of English, 4 tokens each; Hebrew costs 3 bits a token and English 1."""
    bits = np.concatenate([np.full(6, 12.0), [3, 5, 4, 4, 2, 6]])
    arguments = {
        "lang": np.repeat(["heb", "eng"], 6),
        "document": np.tile(np.arange(6), 2),
        "tokens": np.full(12, 4),
        "nll": bits * LN2,
        "entropy": np.concatenate([np.full(6, 10.0), np.full(6, 4.0)]) * LN2,
        "unigrams": [[12, 12, 0], [24, 0, 0]],
        "mean_squares": {"blocks.0": [[3, 1], [1, 1]], "blocks.1": [[1, 0], [5, 5]]},
    }
    return arguments | other


def test_the_numbers_by_hand() -> None:
    by_language = redundancy(["heb", "eng"], **measured())
    heb, eng = by_language["heb"], by_language["eng"]
    assert heb.unigram_entropy == pytest.approx(1 + 1 / (2 * 24 * LN2))
    assert eng.unigram_entropy == 0
    assert (heb.loss.value, eng.loss.value) == pytest.approx((3, 1))
    assert heb.as_written.value == pytest.approx(1 + 1 / (48 * LN2) - 2 * 3)
    assert (heb.predictive_entropy.value, eng.predictive_entropy.value) == pytest.approx((2.5, 1))
    assert (heb.calibration_gap.value, eng.calibration_gap.value) == pytest.approx((0.5, 0), abs=1e-15)
    assert (heb.effective_dimension, eng.effective_dimension) == pytest.approx(((1.6 + 1) / 2, 2))
    assert heb.effective_dimension_full is None
    assert heb.loss.low == pytest.approx(3) == heb.loss.high  # every document alike
    assert eng.loss.low < 1 < eng.loss.high


def test_the_interval_of_r_is_that_of_the_loss_turned_round() -> None:
    eng = redundancy(["heb", "eng"], **measured())["eng"]
    assert (eng.as_written.low, eng.as_written.high) == pytest.approx((-2 * eng.loss.high, -2 * eng.loss.low))
    assert eng.as_written.n == 6


def test_rows_follow_the_order_of_the_languages() -> None:
    turned = measured(unigrams=[[24, 0, 0], [12, 12, 0]], mean_squares={"blocks.0": [[1, 1], [3, 1]]})
    by_language = redundancy(["eng", "heb"], **turned)
    assert list(by_language) == ["eng", "heb"]
    assert by_language["heb"].effective_dimension == pytest.approx(1.6)
    assert by_language["eng"].unigram_entropy == 0


def test_second_moments_are_averaged_over_their_points() -> None:
    narrow, wide = [[[2, 1], [1, 2]], np.eye(2)], [np.ones((3, 3)), np.eye(3)]
    by_language = redundancy(["heb", "eng"], **measured(second_moments={"a": narrow, "b": wide}))
    assert by_language["heb"].effective_dimension_full == pytest.approx((1.6 + 1) / 2)
    assert by_language["eng"].effective_dimension_full == pytest.approx((2 + 3) / 2)


def test_r_of_a_perfect_model_is_that_of_the_exact_table() -> None:
    joint = np.array([[0.4, 0.1], [0.1, 0.4]])
    conditional = joint / joint.sum(axis=1, keepdims=True)
    loss = -float((joint * np.log(conditional)).sum())  # nats per token of a model that knows the law
    tokens = np.full(5, 10_000_000)
    english = redundancy(
        ["eng"],
        lang=["eng"] * 5,
        document=np.arange(5),
        tokens=tokens,
        nll=tokens * loss,
        entropy=tokens * loss,
        unigrams=[joint.sum(axis=0) * tokens.sum()],
        mean_squares={"blocks.0": [[1.0]]},
    )["eng"]
    assert english.as_written.value == pytest.approx(exact_redundancy(joint), abs=1e-6)
    assert english.calibration_gap.value == pytest.approx(0, abs=1e-12)


def test_miller_madow_takes_most_of_the_bias_away() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(40))
    truth = -float((p * np.log2(p)).sum())
    samples = rng.multinomial(200, p, size=2000)
    plain = np.array([-(q * np.log2(q)).sum() for q in (c[c > 0] / 200 for c in samples)])
    corrected = np.array([miller_madow(c) for c in samples])
    assert plain.mean() < truth - 0.1
    assert abs(corrected.mean() - truth) < 0.25 * (truth - plain.mean())


@settings(max_examples=50, deadline=None)
@given(arrays(np.float64, (7, 4), elements=st.floats(-10, 10)).filter(lambda x: np.abs(x).max() > 0.1))
def test_effective_dimension_of_matrices(x) -> None:
    H = x.T @ x / len(x)
    eigenvalues = np.maximum(np.linalg.eigvalsh(H), 0)
    assert effective_dimension(H) == pytest.approx(effective_dimension(eigenvalues))
    assert 1 - 1e-9 <= effective_dimension(H) <= effective_dimension(np.diag(H)) + 1e-9 <= 4 + 2e-9


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_effective_dimension_has_no_unit(size) -> None:
    assert effective_dimension([3 * size, size]) == pytest.approx(1.6)


def test_data_is_json_and_the_same_again() -> None:
    once, again = (redundancy(["heb", "eng"], **measured())["eng"].as_data() for _ in range(2))
    assert json.dumps(once) == json.dumps(again)
    assert once["loss"]["n"] == 6


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"nll": np.full(11, 1.0)}, "values has shape"),
        ({"nll": np.full(12, -1.0)}, "nll holds -1"),
        ({"entropy": np.full(11, 1.0)}, "entropy has shape"),
        ({"entropy": np.full(12, np.nan)}, "entropy holds 12 NaN"),
        ({"tokens": np.full(12, 5)}, "unigrams count 24 tokens of heb and its documents hold 30"),
        ({"unigrams": [[12, 12, 0]]}, "unigrams has shape"),
        ({"unigrams": [24, 24]}, "2 dimension"),
        ({"unigrams": [[25, -1], [24, 0]]}, "at least 0"),
        ({"document": np.zeros(12, dtype=int)}, "occurs twice"),
        ({"mean_squares": {"a": [[1, 1], [0, 0]]}}, r"mean_squares\['a'\] of eng holds mean squares of 0 only"),
        ({"mean_squares": {"a": [[1, 1], [-1, 2]]}}, "of eng holds a negative mean square"),
        ({"confidence": 1.0}, "confidence"),
    ],
)
def test_bad_input(other, message) -> None:
    with pytest.raises(InputError, match=message):
        redundancy(["heb", "eng"], **measured(**other))
