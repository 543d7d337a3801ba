import json

import numpy as np
import pytest

from fairbits.auditing.damage import PredictedDamage
from fairbits.models.scales.scheme import Scheme

LINEARS = ("a.q", "a.up", "b.q", "b.up", "b.down")
BLOCKS = (0, 0, 2, 2, 2)


def make_damage(seed=0, *, documents=12, **changes):
    rng = np.random.default_rng(seed)
    fields = {
        "scheme": Scheme(3),
        "form": "token",
        "languages": ("heb", "eng"),  # not in alphabetical order
        "linears": LINEARS,
        "blocks": BLOCKS,
        "lang": np.repeat(["heb", "eng"], documents),
        "document": np.tile(np.arange(documents), 2),
        "sums": rng.lognormal(0, 0.5, (2 * documents, 5)) * np.repeat([3.0, 1.0], documents)[:, None],
        "predicted": rng.integers(20, 60, 2 * documents).astype(float),
        "size_bytes": rng.integers(80, 200, 2 * documents).astype(float),
    }
    return PredictedDamage(**fields | changes)


def test_blocks_and_linears_add_up_to_the_total():
    damage = make_damage()
    totals = [estimate.value for estimate in damage.estimates().values()]
    assert damage.by_linear.shape == (2, 5)
    assert damage.by_block.shape == (2, 3)
    np.testing.assert_allclose(damage.by_linear.sum(1), totals)
    np.testing.assert_allclose(damage.by_block.sum(1), totals)
    np.testing.assert_allclose(damage.by_block[:, 0], damage.by_linear[:, :2].sum(1))
    assert (damage.by_block[:, 1] == 0).all()


def test_documents_add_up_to_the_language():
    damage = make_damage()
    estimates = damage.estimates()
    assert list(estimates) == ["heb", "eng"]
    for code, estimate in estimates.items():
        rows = damage.lang == code
        assert estimate.value == pytest.approx(damage.sums[rows].sum() / damage.predicted[rows].sum())
        assert estimate.n == 12
        assert estimate.low < estimate.value < estimate.high
    assert estimates["heb"].low > estimates["eng"].high


def test_bits_per_byte_and_nats_per_token_are_the_same_damage():
    damage = make_damage()
    nats, bits = damage.nats_per_token.by_language(), damage.bits_per_byte.by_language()
    for code in damage.languages:
        rows = damage.lang == code
        whole = nats[code].value * damage.predicted[rows].sum()
        assert bits[code].value * damage.size_bytes[rows].sum() * np.log(2) == pytest.approx(whole)


def test_intervals_narrow_with_documents():
    few, many = (make_damage(documents=n).estimates()["heb"] for n in (8, 200))
    assert many.high - many.low < 0.4 * (few.high - few.low)


def test_equal_documents_leave_no_doubt():
    same = make_damage(sums=np.ones((24, 5)), predicted=np.full(24, 50.0)).estimates()["eng"]
    assert same.low == pytest.approx(same.high) == pytest.approx(0.1)


def test_data_is_json_and_in_the_order_of_the_languages():
    damage = make_damage()
    data = json.loads(json.dumps(damage.as_data(), allow_nan=False))
    assert data["form"] == "token"
    assert list(data["nats_per_token"]) == list(data["by_block"]) == ["heb", "eng"]
    assert data["nats_per_token"]["heb"]["value"] == pytest.approx(sum(data["by_linear"]["heb"]))
    assert sum(data["by_block"]["eng"]) == pytest.approx(sum(data["by_linear"]["eng"]))
    assert data == json.loads(json.dumps(make_damage().as_data()))
