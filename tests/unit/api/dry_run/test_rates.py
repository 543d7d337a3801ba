"""Rates are measured, and nothing is left behind."""

from collections.abc import Callable
from math import inf, isfinite
from pathlib import Path

import pytest
from fairbits.api.dry_run.rates import existing_directory, measure_rates, written_rate
from fairbits.api.run.preparation import estimate_run

from fairbits.api.dry_run import rates
from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "SECONDS", 0.001)


def test_all_rates_are_positive(reading_model: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    found = measure_rates(reading_model("llama"), device="cpu", out=tmp_path / "not" / "there")
    assert all(rate > 0 for rate in vars(found).values())
    assert found.moved == inf
    assert all(isfinite(rate) for name, rate in vars(found).items() if name != "moved")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    assert existing_directory(tmp_path / "a" / "b") == tmp_path
    with pytest.raises(InputError, match="cannot be written"):
        written_rate(tmp_path / "missing")


def test_a_dry_run_reads_no_weights_and_writes_nothing(
    reading_model: Callable[[str], Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("weights were read")

    checkpoint = Checkpoint(reading_model("llama").directory)
    monkeypatch.setattr(Checkpoint, "load", forbidden)
    monkeypatch.setattr(Checkpoint, "read", forbidden)
    found = estimate_run(
        checkpoint, out=tmp_path / "run", languages=["eng", "heb"], tokens=64, group=16, policy="fair", widths=[3]
    )
    assert list(tmp_path.iterdir()) == []
    names = [each.name for each in found.stages]
    assert names[:3] == ["fingerprint of the model", "audit", "quantize: fair"]
    assert "quantize: fair, learning end to end" in names
    assert {"evaluate gptq:mix=english, 4 bits", "evaluate fair, 3 bits"} <= set(names)
    assert found.seconds == pytest.approx(sum(map(found.time, found.stages)))
    data = found.as_data()
    assert data["seconds"] > 0
    assert len(data["stages"]) == len(names)
    assert data["rates"]["moved"] is None
