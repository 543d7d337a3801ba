"""`embedded:tiny?outliers=…`: the same function with the kurtosis that was asked for."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.cache import cache_directory
from fairbits.models.weight_moments import weight_moments
from fairbits.text.included_texts import udhr

ASKED = {3: 125.0, 7: 148.0, 10: 164.0}
TARGET = "embedded:tiny?outliers=3:125,7:148,10:164"


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """An empty cache for this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield cache_directory()


@pytest.fixture(scope="module")
def with_outliers(cache) -> Checkpoint:
    checkpoint = Checkpoint(TARGET)
    assert checkpoint.directory.parent == cache
    return checkpoint


@pytest.mark.long
def test_the_kurtosis_is_reached_and_no_other_block_changes(with_outliers) -> None:
    plain, rescaled = (weight_moments(each).blocks for each in (Checkpoint("embedded:tiny"), with_outliers))
    for block, (before, after) in enumerate(zip(plain, rescaled, strict=True)):
        if block in ASKED:
            assert after.kappa == pytest.approx(ASKED[block], rel=0.02)
        else:
            assert after.kappa == before.kappa < 10


@torch.no_grad()
def test_logits_are_those_of_the_plain_model(with_outliers) -> None:
    plain = Checkpoint("embedded:tiny")
    tokenizer, models = with_outliers.tokenizer(), (plain.load(), with_outliers.load())
    for code, documents in udhr(["eng", "heb", "hin", "jpn"]).evaluation.items():
        ids = torch.tensor([tokenizer(documents[2]).input_ids])
        expected, got = (model(ids).logits for model in models)
        assert expected.std() > 1  # else anything would be near
        assert (got - expected).abs().max() < 1e-4, code


def test_a_second_opening_writes_nothing(with_outliers, cache) -> None:
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    again = Checkpoint(TARGET)
    assert (again.directory, again.fingerprint) == (with_outliers.directory, with_outliers.fingerprint)
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*")} == before
    assert again.notes
    assert again.fingerprint != Checkpoint("embedded:tiny").fingerprint


@pytest.mark.long
def test_threads_that_open_it_at_once_get_one_whole_model(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = "embedded:tiny?outliers=1:50"
    with ThreadPoolExecutor(3) as pool:
        opened = list(pool.map(lambda _: Checkpoint(target), range(3)))
    assert len({each.directory for each in opened}) == 1
    assert len({each.fingerprint for each in opened}) == 1
    assert list(cache_directory().iterdir()) == [opened[0].directory]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("embedded:huge?outliers=3:125", "does not name an embedded model; available: embedded:tiny"),
        ("embedded:tiny?outliers=12:125", "block is 12; it must be 0 to 11"),
        ("embedded:tiny?outliers=99999999999999999999:125", "block is 99999999999999999999; it must be 0 to 11"),
        ("embedded:tiny?outliers=3:125,3:125", "names block 3 twice"),
        ("embedded:tiny?outliers=3:high", "'high' in block 3; it must be a number"),
        ("embedded:tiny?outliers=3:-125", "κ of block 3 is -125; it must be finite, above 0"),
        ("embedded:tiny?outliers=3:0", "κ of block 3 is 0; it must be finite, above 0"),
        ("embedded:tiny?outliers=3:1e300", "block 3"),
        ("embedded:tiny?outliers=3=125", "must read embedded:tiny\\?outliers=BLOCK:KAPPA"),
    ],
)
def test_bad_requests_are_refused_and_leave_nothing(target, message, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(InputError, match=message):
        Checkpoint(target)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))
