"""The two files of an audit."""

import hashlib
import json

import numpy as np
import pytest
from safetensors.numpy import load

from fairbits.api.audit import audit
from fairbits.auditing.audit_file import check_audit_target, round_floats
from fairbits.core.errors import InputError
from fairbits.models.scales.scheme import Scheme
from fairbits.text.corpus import Corpus

CORPUS = Corpus(
    "weather",
    {
        "heb": [f"ביום {i} באה הרוח מצפון והביאה גשם." for i in range(6)],
        "eng": [f"On day {i} the wind came from the north and brought {i} hours of rain." for i in range(6)],
    },
    {},
    parallel=True,
)


def run_audit(checkpoint):
    return audit(checkpoint, text=CORPUS, scheme=Scheme(3, 16), tokens=200, second_moments=True)


@pytest.fixture(scope="module")
def record(reading_model):
    return run_audit(reading_model("llama"))


@pytest.fixture
def saved(record, tmp_path):
    record.save(tmp_path / "audit.json")
    return json.loads((tmp_path / "audit.json").read_text()), (tmp_path / "audit.safetensors").read_bytes()


def test_blocks_add_up_to_the_damage_of_a_language(record):
    for form in ("kronecker", "token", "diagonal"):
        damage = record.damage[form]
        totals = [estimate.value for estimate in damage.estimates().values()]
        np.testing.assert_allclose(damage.by_block.sum(1), totals)
        np.testing.assert_allclose(damage.by_linear.sum(1), totals)
        np.testing.assert_array_equal(damage.sums, record.measured.damage[record.scheme][form])
    assert record.predicted is record.damage["kronecker"]


def test_estimates_lie_in_their_intervals(record):
    for table in (record.predicted.estimates(), record.bits_per_byte, record.kappa_weighted, record.kappa_mixture):
        assert list(table) == ["heb_Hebr", "eng_Latn"]
        for estimate in table.values():
            assert estimate.low <= estimate.value <= estimate.high
            assert estimate.n == 6


def test_files_say_what_was_measured(record, saved):
    data, arrays = saved
    assert data["schema"] == "fairbits.audit/1"
    assert data["arrays"] == {"file": "audit.safetensors", "sha256": hashlib.sha256(arrays).hexdigest()}
    assert list(data["languages"]) == ["heb_Hebr", "eng_Latn"]
    assert len(data["blocks"]) == 2
    assert data["scheme"] == {
        "bits": 3,
        "group": 16,
        "clip": "absmax",
        "grid": "symmetric",
        "name": "W3 group 16 absmax",
    }
    assert data["model"]["tokens"] == 200
    assert set(data["model"]["hashes"]) == {"heb_Hebr", "eng_Latn"}
    assert set(data["damage"]) == {"token", "diagonal", "kronecker"}
    nats = data["damage"]["kronecker"]["nats_per_token"]["heb_Hebr"]["value"]
    assert nats == pytest.approx(record.predicted.estimates()["heb_Hebr"].value, rel=1e-8)
    assert sum(data["damage"]["kronecker"]["by_block"]["heb_Hebr"]) == pytest.approx(nats, rel=1e-6)


def test_arrays_hold_the_sums_of_every_document(record, saved):
    arrays = load(saved[1])
    measured = record.measured
    for name in ("positions", "norm", "square", "nll", "entropy", "predicted", "size_bytes"):
        np.testing.assert_array_equal(arrays[f"documents/{name}"], getattr(measured, name))
    codes = np.array(measured.languages)[arrays["documents/language"]]
    np.testing.assert_array_equal(codes, measured.lang)
    np.testing.assert_array_equal(arrays["documents/id"], measured.document)
    np.testing.assert_array_equal(arrays["documents/damage kronecker"], record.predicted.sums)
    assert {name.partition("/")[0] for name in arrays} == {"documents", "channels", "gradients", "inputs"}
    assert {name.removeprefix("channels/") for name in arrays if name.startswith("channels/")} == set(measured.channels)


def test_the_same_bytes_twice(reading_model, record, tmp_path):
    record.save(tmp_path / "audit.json")
    (tmp_path / "again").mkdir()
    run_audit(reading_model("llama")).save(tmp_path / "again" / "audit.json")
    for name in ("audit.json", "audit.safetensors"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_both_files_or_none(record, tmp_path):
    (tmp_path / "audit.safetensors").mkdir()  # cannot be replaced by a file
    with pytest.raises(InputError, match="not a regular file"):
        record.save(tmp_path / "audit.json")
    assert [path.name for path in tmp_path.iterdir()] == ["audit.safetensors"]
    (tmp_path / "audit.safetensors").rmdir()
    record.save(tmp_path / "audit.json")
    assert {path.name for path in tmp_path.iterdir()} == {"audit.json", "audit.safetensors"}


@pytest.mark.parametrize("where", ["nowhere/audit.json", "."])
def test_targets_are_checked_before_anything_runs(tmp_path, where):
    with pytest.raises(InputError, match=r"not a (directory|regular file)"):
        check_audit_target(tmp_path / where)


def test_a_file_that_belongs_to_no_audit_is_never_replaced(record, tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"the weights of a model")
    for path in (tmp_path / "model.json", weights, tmp_path / "audit.w3"):
        with pytest.raises(InputError, match=r"does not belong to an audit|does not end in \.json"):
            record.save(path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert weights.read_bytes() == b"the weights of a model"
    record.save(tmp_path / "audit.json")
    record.save(tmp_path / "audit.json")  # its own arrays it may replace


def test_numbers_are_rounded_to_nine_digits_and_nothing_else_changes():
    data = {"a": 0.1234567891234, "b": [1, 1e-20, ("x", 2.0)], "c": None, "d": True}
    assert round_floats(data) == {"a": 0.123456789, "b": [1, 1e-20, ["x", 2.0]], "c": None, "d": True}
    assert round_floats(data)["d"] is True
