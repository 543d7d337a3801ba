"""What does not fit is refused, with a setting that fits; what runs out midway is explained."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fairbits.api import fit
from fairbits.api import quantize as quantize_module
from fairbits.api.evaluate import evaluate
from fairbits.api.fit import Workload, existing_directory, halves, overall, shortages, within_memory
from fairbits.api.make_plan import plan
from fairbits.api.memory_needed import Held, Stage
from fairbits.api.quantize import quantize
from fairbits.api.run import run
from fairbits.cli.lazy_group import explain
from fairbits.core.errors import InputError, MemoryLimitError
from fairbits.core.units import GB
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import Capacity

ROOM = Capacity(gpu=None, ram=10 * GB, disk=100 * GB, scratch=100 * GB, shared=True)
SMALL = {"group": 16, "languages": ["eng", "heb"], "tokens": 64, "sequence": 32}


def workload(ram_per_token: float, tokens: int = 4096) -> Workload[int]:
    """Returns a job that holds RAM in proportion to its tokens."""
    return Workload(
        tokens,
        lambda count: [Stage("rounding", {}, Held(ram=ram_per_token * count))],
        lambda count: [[(f"--tokens {fewer}", fewer) for fewer in halves(count, least=256)]],
    )


def refuse(job: Workload[int]) -> None:
    """Raises if a job cannot fit."""
    with within_memory(job, device="cpu"):
        pass


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Returns a function that leaves the machine with less than it has."""

    def leave(**changes: int | None) -> None:
        monkeypatch.setattr(fit, "free_capacity", lambda *_args, **_named: replace(ROOM, **changes))

    return leave


@pytest.fixture(scope="module")
def llama(reading_model: Callable[[str], Checkpoint]) -> Checkpoint:
    return reading_model("llama")


def test_the_largest_setting_that_fits_is_named(little: Callable[..., None]) -> None:
    little(ram=2 * GB)
    refuse(workload(GB / 4096))
    message = r"rounding needs about 8.19 GB of RAM, and 2 GB are free; it fits with --tokens 512$"
    with pytest.raises(InputError, match=message):
        refuse(workload(GB / 512 * 1.024))


def test_what_no_setting_lowers_is_said(little: Callable[..., None]) -> None:
    little(ram=GB // 1000)
    message = r"with less text it still needs 128 MB: use a machine with more memory"
    with pytest.raises(InputError, match=message):
        refuse(workload(GB / 2048 * 1.024))


def test_an_estimate_that_may_be_too_high_is_not_refused(little: Callable[..., None]) -> None:
    little(ram=int(0.9 * GB))
    refuse(workload(GB / 4096))
    memory_shortages = shortages(workload(GB / 4096).stages(), replace(ROOM, ram=int(0.9 * GB)))
    assert [shortage.certain for shortage in memory_shortages] == [False]


def test_disk_is_what_is_written_and_temporary_files() -> None:
    stages = [Stage("a", {}, Held(written=60 * GB)), Stage("b", {}, Held(written=30 * GB, scratch=20 * GB))]
    assert overall(stages) == Held(written=90 * GB, scratch=20 * GB)
    assert [shortage.needed for shortage in shortages(stages, ROOM)] == [110 * GB]
    assert shortages(stages, replace(ROOM, shared=False)) == ()
    assert shortages(stages, replace(ROOM, shared=False, scratch=GB))[0].what.endswith("(TMPDIR)")


def test_a_directory_need_not_exist(tmp_path: Path) -> None:
    assert existing_directory(tmp_path / "a" / "b") == tmp_path


def test_unknown_memory_refuses_nothing(little: Callable[..., None]) -> None:
    little(ram=None)
    refuse(workload(GB))


def test_commands_refuse_before_they_write(little: Callable[..., None], llama: Checkpoint, tmp_path: Path) -> None:
    gptq_plan = plan(llama, policy="gptq", **SMALL)
    quantize(llama, gptq_plan, out=tmp_path / "w4")
    little(ram=1000)
    with pytest.raises(InputError, match=r"quantize needs about .* of RAM, and 1 kB are free; with less text"):
        quantize(llama, gptq_plan, out=tmp_path / "other")
    with pytest.raises(InputError, match=r"evaluate the .* model needs about .* of RAM"):
        evaluate(tmp_path / "w4", reference=llama, languages=["eng", "heb"], tokens=64)
    with pytest.raises(InputError, match=r"needs about .* of RAM"):
        run(llama, out=tmp_path / "run", **SMALL)
    little(disk=1000)
    with pytest.raises(InputError, match="disk space for what it writes, and 1 kB are free; free some space"):
        quantize(llama, gptq_plan, out=tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["w4"]


def test_memory_that_runs_out_midway_is_explained_and_can_be_resumed(
    llama: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gptq_plan = plan(llama, policy="gptq", **SMALL | {"tokens": 2048})
    original = quantize_module.execute_plan

    def fail_after_a_block(*args, progress=None, **named):  # type: ignore[no-untyped-def]
        blocks = original(*args, progress=progress, **named)
        yield next(blocks)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of …")

    monkeypatch.setattr(quantize_module, "execute_plan", fail_after_a_block)
    with pytest.raises(MemoryLimitError) as caught:
        quantize(llama, gptq_plan, out=tmp_path / "w4", device="cpu")
    message = str(caught.value)
    assert message.startswith("the memory of this machine ran out while rounding blocks: 2.15 GB more were wanted; ")
    assert "; by estimate it fits with --tokens " in message
    text, code = explain(caught.value, "quantize")
    assert code == 2
    assert text.endswith(
        "run the same command with --resume to continue after the last finished block as soon as more memory is free"
    )
    monkeypatch.setattr(quantize_module, "execute_plan", original)
    assert quantize(llama, gptq_plan, out=tmp_path / "w4", resume=True).results


def test_other_errors_pass() -> None:
    with pytest.raises(ZeroDivisionError), within_memory(workload(1.0), device="cpu"):
        raise ZeroDivisionError


def test_the_stage_is_that_which_was_reported_last() -> None:
    seen: list[tuple[str, float, float]] = []

    def work() -> None:
        with within_memory(workload(1.0), device="cpu", progress=lambda *call: seen.append(call)) as show:
            show("opening", 0, 1)
            show("reading text", 3, 9)
            raise MemoryError

    with pytest.raises(MemoryLimitError, match="ran out while reading text; by estimate it fits with --tokens 2048"):
        work()
    assert seen == [("opening", 0, 1), ("reading text", 3, 9)]
