import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fairbits.api.compare import compare
from fairbits.api.evaluate import evaluate
from fairbits.api.make_plan import plan
from fairbits.api.overlay import overlay
from fairbits.api.quantize import quantize
from fairbits.api.run import run
from fairbits.api.sweep import sweep
from fairbits.core.errors import InputError
from fairbits.models import device
from fairbits.models.device import (
    autocast,
    autocast_dtype,
    compute_dtype,
    fixed_seed,
    free_capacity,
    free_memory,
    gpu_note,
    is_gpu,
    move,
    resolve_device,
)
from fairbits.serve.overlays.adaptive_model import AdaptiveModel
from fairbits_research.experiments.laboratory import Setting

VERBS = (AdaptiveModel, Setting, compare, evaluate, overlay, plan, quantize, run, sweep)


def test_the_processor_is_always_there() -> None:
    assert resolve_device("cpu") == "cpu"


@pytest.mark.parametrize("device", ["foo", "", "cpu:7", "meta", "cuda:99", "CPU", None, 0])
def test_other_devices_are_refused_by_name(device) -> None:
    with pytest.raises(InputError, match=r"device is .*torch has here: cpu"):
        resolve_device(device)


def test_devices_that_torch_counts_are_allowed(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [resolve_device(device) for device in ("cuda", "cuda:1")] == ["cuda", "cuda:1"]
    with pytest.raises(InputError, match="cpu, cuda, cuda:0, cuda:1"):
        resolve_device("cuda:2")


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Makes torch say that there are this many GPUs."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"Card of {device}")


def test_auto_is_the_gpu_if_there_is_one(monkeypatch) -> None:
    with_gpus(monkeypatch, 0)
    assert resolve_device("auto") == "cpu"
    with_gpus(monkeypatch, 2)
    assert resolve_device("auto") == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # it is counted, but its driver is too old
    assert resolve_device("auto") == "cpu"


def test_auto_continues_on_the_device_of_what_was_started(monkeypatch) -> None:
    with_gpus(monkeypatch, 2)
    assert [resolve_device("auto", earlier=device) for device in ("cpu", "cuda:1")] == ["cpu", "cuda:1"]
    assert resolve_device("cuda", earlier="cpu") == "cuda"
    assert resolve_device("auto", earlier="cuda:7") == "cuda"  # no longer here
    with_gpus(monkeypatch, 0)
    assert resolve_device("auto", earlier="cuda") == "cpu"


def test_a_gpu_has_a_note_and_the_processor_has_none(monkeypatch) -> None:
    with_gpus(monkeypatch, 2)
    assert gpu_note("cuda:1") == "device: cuda:1 (Card of cuda:1)"
    assert gpu_note("cpu") is None


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_auto_is_the_default_of_every_verb(verb) -> None:
    assert inspect.signature(verb).parameters["device"].default == "auto"


def test_a_gpu_computes_in_half_the_bytes() -> None:
    assert [is_gpu(device) for device in ("cpu", "cuda", "cuda:1", torch.device("meta"))] == [False, True, True, False]
    assert (compute_dtype("cpu"), compute_dtype("cuda:1")) == (torch.float32, torch.bfloat16)


def test_a_type_holds_within_its_context_only() -> None:
    with autocast("cpu"):
        assert autocast_dtype("cpu") == torch.float32
    with autocast("cpu", torch.bfloat16):
        assert autocast_dtype("cpu") == torch.bfloat16
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    assert autocast_dtype("cpu") == torch.float32


def test_a_model_is_moved_itself() -> None:
    model = torch.nn.Linear(2, 2)
    assert move(model, "cpu") is model


def test_a_seed_decides_what_is_drawn_and_leaves_no_trace() -> None:
    with fixed_seed(3, "cpu"):
        first = torch.rand(4)
    torch.manual_seed(7)
    with fixed_seed(3, torch.device("cpu")):
        assert torch.equal(torch.rand(4), first)
    after = torch.rand(4)
    torch.manual_seed(7)
    with fixed_seed(None, "cpu"):
        assert torch.equal(torch.rand(4), after)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the directory of control groups of a system with 8 kB free."""
    monkeypatch.setattr(device.psutil, "virtual_memory", lambda: SimpleNamespace(available=8192))
    monkeypatch.setattr(device, "CONTROL_GROUP", tmp_path)
    return tmp_path


def write_group(directory: Path, limit: tuple[str, str], used: tuple[str, str]) -> None:
    directory.mkdir(exist_ok=True)
    for name, value in (limit, used):
        (directory / name).write_text(f"{value}\n")
    (directory / "memory.stat").write_text("anon 100\nactive_file 200\ninactive_file 300\n")


@pytest.mark.usefixtures("system")
def test_free_memory_is_what_the_system_says() -> None:
    assert free_memory() == 8192


@pytest.mark.parametrize(
    ("folder", "limit", "used"),
    [("", "memory.max", "memory.current"), ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes")],
)
def test_the_limit_of_a_container_counts(folder: str, limit: str, used: str, system: Path) -> None:
    write_group(system / folder, (limit, "4000"), (used, "1500"))
    assert free_memory() == 4000 - 1500 + 500


def test_a_container_without_a_limit_has_what_the_system_has(system: Path) -> None:
    write_group(system, ("memory.max", "max"), ("memory.current", "1500"))
    assert free_memory() == 8192


def test_capacity_of_the_cpu_has_no_gpu_memory(tmp_path: Path) -> None:
    capacity = free_capacity("cpu", out=tmp_path, scratch=tmp_path)
    assert capacity.gpu is None
    assert capacity.shared
    assert capacity.disk > 0
