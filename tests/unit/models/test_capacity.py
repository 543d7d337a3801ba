"""Free memory and disk, as the system and its containers state them."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from fairbits.models import device as capacity
from fairbits.models.device import free_capacity, free_memory


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the directory of control groups of a system with 8 kB free."""
    monkeypatch.setattr(capacity.psutil, "virtual_memory", lambda: SimpleNamespace(available=8192))
    monkeypatch.setattr(capacity, "CONTROL_GROUP", tmp_path)
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
    found = free_capacity("cpu", out=tmp_path, scratch=tmp_path)
    assert found.gpu is None
    assert found.shared
    assert found.disk > 0
