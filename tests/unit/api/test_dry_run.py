"""A little of the work is done for real, the times follow, and nothing is left behind."""

from collections.abc import Callable
from math import isfinite
from pathlib import Path

import pytest

from fairbits.api import dry_run, measured_rates
from fairbits.api.dry_run import estimate_audit, estimate_quantize
from fairbits.api.run.run_settings import estimate_run
from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import TextRequest

SMALL = {"languages": ["eng", "heb"], "tokens": 64, "group": 16}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_rates, "SECONDS", 0.001)


@pytest.fixture(scope="module")
def llama(reading_model: Callable[[str], Checkpoint]) -> Checkpoint:
    return Checkpoint(reading_model("llama").directory)


def test_a_dry_run_writes_nothing_and_does_not_read_the_whole_model(
    llama: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("the whole model was read")

    monkeypatch.setattr(Checkpoint, "load", forbidden)
    monkeypatch.setattr(Checkpoint, "_bytes", forbidden)  # of which the fingerprint is made
    estimate = estimate_run(llama, out=tmp_path / "run", policy="fair", more_bits=[3], audit=True, **SMALL)
    assert list(tmp_path.iterdir()) == []
    names = [stage.name for stage in estimate.stages]
    assert names[:3] == ["fingerprint of the model", "audit", "quantize: fair, 4 bits"]
    assert "quantize: fair, 4 bits, learning end to end" in names
    assert {"evaluate rtn, 4 bits", "evaluate fair, 3 bits"} <= set(names)
    assert estimate.dropped.keys() == {"--no-audit", "--baselines none", "--more-bits none"}
    assert 0 < sum(estimate.dropped.values()) < estimate.seconds
    data = estimate.as_data()
    assert data["seconds"] > 0
    assert len(data["stages"]) == len(names)
    assert all(rate > 0 and isfinite(rate) for rate in data["rates"].values())
    assert {"forward", "observed", "gradients", "compared", "learned fair", "rounded rtn"} <= data["rates"].keys()


def test_time_is_the_sum_of_work_over_rates_unless_writing_takes_longer(llama: Checkpoint, tmp_path: Path) -> None:
    estimate = estimate_quantize(llama, out=tmp_path, device="cpu", policy="rtn", bits=4, group=16)
    (stage,) = (stage for stage in estimate.stages if stage.name == "quantize")
    parts = estimate.parts(stage)
    assert parts.keys() == {"rounded rtn", "written"}
    assert estimate.time(stage) == max(parts.values())
    assert estimate.seconds == pytest.approx(sum(map(estimate.time, estimate.stages)))


@pytest.mark.parametrize("family", ["mt5", "mixtral"])
def test_other_architectures_are_measured(
    family: str, reading_model: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    model = reading_model(family)
    estimate = estimate_quantize(model, out=tmp_path, device="cpu", policy="gptq", bits=4, **SMALL)
    assert estimate.seconds > 0


def test_a_class_that_cannot_walk_in_blocks_is_estimated_by_its_operations(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: object, **__: object) -> None:
        raise InputError("it cannot be passed in blocks")

    monkeypatch.setattr(measured_rates, "lockstep", cannot)
    request = TextRequest("calibration", 64, 32)
    estimate = estimate_audit(llama, out=None, device="cpu", languages=["eng", "heb"], text=None, request=request)
    assert estimate.rates["observed"] > 0


def test_a_directory_that_cannot_be_written_is_named(llama: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "existing_directory", lambda _: Path("/proc"))
    with pytest.raises(InputError, match=r"/proc cannot be written .*; give another directory with --out"):
        estimate_quantize(llama, out="/proc/model", device="cpu", policy="rtn", bits=4, group=16)
