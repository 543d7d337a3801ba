"""Too little GPU memory: refused early, or explained midway, and resumed to the same bytes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fairbits
from fairbits.api import quantize as quantize_module
from fairbits.api.dry_run import estimate_quantize
from fairbits.core.errors import InputError, MemoryLimitError
from fairbits.core.units import MIB
from fairbits.models.device import free_gpu_memory

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
EMBEDDED = "embedded:tiny"
SETTING = {"languages": ["en", "fi", "sw"], "tokens": 2048, "sequence": 256, "group": 64}


@pytest.fixture
def limited() -> Iterator[object]:
    """Gives a function that leaves this process so many MiB of GPU memory."""

    def limit(mebibytes: float) -> None:
        torch.cuda.empty_cache()
        total = torch.cuda.mem_get_info()[1]
        wanted = torch.cuda.memory_allocated() + mebibytes * MIB
        torch.cuda.set_per_process_memory_fraction(min(wanted / total, 1.0))

    yield limit
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_the_limit_of_this_process_counts(limited) -> None:
    limited(64)
    assert free_gpu_memory("cuda") == pytest.approx(64 * MIB, rel=0.05)


def test_the_estimate_is_near_the_peak(tmp_path: Path) -> None:
    plan = fairbits.plan(EMBEDDED, **SETTING)
    estimate = estimate_quantize(fairbits.Checkpoint(EMBEDDED), plan=plan, out=tmp_path, device="cuda")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    fairbits.quantize(EMBEDDED, plan, out=tmp_path / "w4", device="cuda")
    peak = torch.cuda.max_memory_allocated() - before
    assert 0.4 * peak < estimate.held.gpu < 2.5 * peak


def test_what_cannot_fit_is_refused(limited, tmp_path: Path) -> None:
    plan = fairbits.plan(EMBEDDED, **SETTING)
    limited(4)
    with pytest.raises(InputError, match=r"quantize needs about .* of GPU memory, and .* are free"):
        fairbits.quantize(EMBEDDED, plan, out=tmp_path / "w4", device="cuda")
    assert list(tmp_path.iterdir()) == []


def test_memory_that_runs_out_is_explained_and_resumed(limited, tmp_path: Path, monkeypatch) -> None:
    plan = fairbits.plan(EMBEDDED, **SETTING)
    whole = fairbits.quantize(EMBEDDED, plan, out=tmp_path / "whole", device="cuda")
    monkeypatch.setattr(quantize_module, "refuse_what_cannot_fit", lambda *_args, **_named: None)
    limited(20)
    with pytest.raises(
        MemoryLimitError, match=r"the memory of cuda ran out .* more were wanted; by estimate"
    ) as caught:
        fairbits.quantize(EMBEDDED, plan, out=tmp_path / "w4", device="cuda")
    assert "\n" not in str(caught.value)
    caught.value.__traceback__ = None
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert fairbits.quantize(EMBEDDED, plan, out=tmp_path / "w4", resume=True).results == whole.results
    for one in sorted((tmp_path / "whole").glob("*.safetensors")):
        assert one.read_bytes() == (tmp_path / "w4" / one.name).read_bytes()
