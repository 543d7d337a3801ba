"""The step that carries out a plan into a directory: whole, resumable, refused before anything is written."""

import dataclasses
import errno
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fairbits.api.make_plan import plan
from fairbits.api.quantize import check_quantize, draft_device, draft_plan, quantize
from fairbits.core.errors import InputError
from fairbits.core.locks import lock_file
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import resolve_device
from fairbits.quantization.plan import Plan
from fairbits.text.included_texts import udhr

LANGUAGES = ["eng", "heb"]
SMALL = {"bits": 4, "group": 16, "languages": LANGUAGES, "tokens": 64, "sequence": 32}


@pytest.fixture(scope="module")
def llama(reading_model: Callable[[str], Checkpoint]) -> Checkpoint:
    return reading_model("llama")


@pytest.fixture(scope="module")
def gptq(llama: Checkpoint) -> Plan:
    return plan(llama, policy="gptq", **SMALL)


def contents(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def test_every_outcome_is_in_the_plan_of_the_directory(llama: Checkpoint, gptq: Plan, tmp_path: Path) -> None:
    result = quantize(llama, gptq, out=tmp_path / "w4")
    saved = Plan.load(tmp_path / "w4" / "plan.json")
    assert saved == result
    assert [layer.name for layer in saved.results] == [layer.name for layer in saved.quantized]
    for layer in saved.results:
        assert list(layer.error) == ["eng_Latn", "heb_Hebr"]
        assert 0 < max(layer.error.values()) < 0.1
        assert 0 < layer.weight_error < 0.1
        assert 0 < layer.alpha[0] <= layer.alpha[1] <= layer.alpha[2]


def test_text_of_one_language_is_that_which_all_had(llama: Checkpoint, tmp_path: Path) -> None:
    # Amharic has no preamble, so that the text of all languages is without it
    english = plan(llama, policy="gptq", mix="english", **{**SMALL, "languages": ["eng", "amh"]})
    result = quantize(llama, english, out=tmp_path / "w4")
    assert list(result.results[0].error) == ["eng_Latn"]


@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_interrupted_run_goes_on_to_the_same_bytes(
    llama: Checkpoint, gptq: Plan, tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantize(llama, gptq, out=tmp_path / "whole")
    from fairbits.models.io.checkpoint_writer import QuantizedWriter

    added = QuantizedWriter.add
    left = [after]

    def add(self, *args, **kwargs) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        added(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(QuantizedWriter, "add", add)
        with pytest.raises(KeyboardInterrupt):
            quantize(llama, gptq, out=tmp_path / "cut")
    assert not (tmp_path / "cut").exists()
    if after > 1:
        with pytest.raises(InputError, match="continue it with --resume"):
            quantize(llama, gptq, out=tmp_path / "cut")
        assert draft_plan(tmp_path / "cut") == gptq
    quantize(llama, gptq, out=tmp_path / "cut", resume=True)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut", "whole"]


def test_a_draft_of_another_plan_is_not_continued(
    llama: Checkpoint, gptq: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairbits.models.io.checkpoint_writer import QuantizedWriter

    with monkeypatch.context() as patch:
        patch.setattr(QuantizedWriter, "finish", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            quantize(llama, gptq, out=tmp_path / "w4")
    other = plan(llama, policy="gptq", **{**SMALL, "tokens": 96})
    with pytest.raises(InputError, match="begun for another plan"):
        quantize(llama, other, out=tmp_path / "w4", resume=True)
    assert draft_device(tmp_path / "w4") == resolve_device("auto")
    with monkeypatch.context() as patch:  # a GPU has come in the meantime
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        assert resolve_device("auto") == "cuda"
        with pytest.raises(InputError, match="begun for another device"):
            quantize(llama, gptq, out=tmp_path / "w4", resume=True, device="cuda")
        assert quantize(llama, gptq, out=tmp_path / "w4", resume=True).results  # auto continues where it was
    assert draft_device(tmp_path / "w4") is None


def test_refusals_leave_nothing_behind(llama: Checkpoint, gptq: Plan, tmp_path: Path) -> None:
    other = udhr(LANGUAGES)
    shorter = dataclasses.replace(other, calibration={code: texts[1:] for code, texts in other.calibration.items()})
    with pytest.raises(InputError, match="made with other text in eng_Latn, heb_Hebr"):
        quantize(llama, gptq, out=tmp_path / "w4", text=shorter)
    with pytest.raises(InputError, match="device"):
        quantize(llama, gptq, out=tmp_path / "w4", device="quantum")
    with pytest.raises(InputError, match="has other weights"):
        quantize(llama, dataclasses.replace(gptq, fingerprint="0"), out=tmp_path / "w4")
    assert list(tmp_path.iterdir()) == []


def test_what_can_be_told_before_planning_is_told(
    llama: Checkpoint, reading_model: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    check_quantize(llama, tmp_path / "w4", bits=4, group=16)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(InputError, match="not empty"):
        check_quantize(llama, tmp_path / "full", group=16)
    with pytest.raises(InputError, match="root of all files"):
        check_quantize(llama, "/", group=16)
    with pytest.raises(InputError, match="Conv1D"):
        check_quantize(reading_model("gpt2"), tmp_path / "w4", group=16)
    with pytest.raises(InputError, match="device"):
        check_quantize(llama, tmp_path / "w4", group=16, device="quantum")
    assert draft_plan(tmp_path / "w4") is None


def test_a_norm_that_is_not_finite_is_no_perfect_layer(saved: Callable[..., Checkpoint], tmp_path: Path) -> None:
    import transformers as t

    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = t.LlamaForCausalLM(t.LlamaConfig(vocab_size=1024, **size))
    with torch.no_grad():
        model.model.layers[0].input_layernorm.weight[0] = float("nan")
    checkpoint = saved(model)
    rtn_plan = plan(checkpoint, policy="rtn", **SMALL)
    with pytest.raises(InputError, match="NaN or infinity on the calibration text"):
        quantize(checkpoint, rtn_plan, out=tmp_path / "out")


def test_a_run_that_was_finished_can_be_resumed_and_leaves_no_draft(
    llama: Checkpoint, gptq: Plan, tmp_path: Path
) -> None:
    out, draft = tmp_path / "w4", tmp_path / ".w4.partial"
    finished_plan = quantize(llama, gptq, out=out)
    before = contents(out)
    for left in ("state.json", "done/block-00000.json", "learning/state.safetensors"):  # killed while it was removed
        (draft / left).parent.mkdir(parents=True, exist_ok=True)
        (draft / left).touch()
    assert quantize(llama, gptq, out=out, resume=True) == finished_plan
    assert not draft.exists()
    (draft / "done").mkdir(parents=True)
    with pytest.raises(InputError, match="exists and is not empty"):
        quantize(llama, gptq, out=out)
    assert not draft.exists()
    with pytest.raises(InputError, match="exists and is not empty"):
        quantize(llama, dataclasses.replace(gptq, settings={}), out=out, resume=True)
    assert (contents(out), sorted(path.name for path in tmp_path.iterdir())) == (before, ["w4"])


def test_two_runs_cannot_write_the_same_directory(llama: Checkpoint, gptq: Plan, tmp_path: Path) -> None:
    with lock_file(tmp_path / ".w4.lock", tmp_path / "w4"):
        for refused in (
            lambda: quantize(llama, gptq, out=tmp_path / "w4"),
            lambda: check_quantize(llama, tmp_path / "w4", group=16),
        ):
            with pytest.raises(InputError, match=r"another run .* is using"):
                refused()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_ends_the_run_and_the_run_goes_on_later(
    llama: Checkpoint, gptq: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are written by threads; the problem reaches the caller, and nothing is half-written."""
    from fairbits.models.io import checkpoint_writer as writing

    write, left = writing.write_tensors, [2]

    def full(path: Path, *args: Any, **options: Any) -> str:
        left[0] -= 1
        if left[0] < 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, *args, **options)

    quantize(llama, gptq, out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(writing, "write_tensors", full)
        with pytest.raises(
            InputError, match=r"No space left on device\); make room there, then continue with --resume"
        ):
            quantize(llama, gptq, out=tmp_path / "cut")
    assert not (tmp_path / "cut").exists()
    assert not list(tmp_path.rglob("*.part"))
    ticks: list[tuple[str, int]] = []
    quantize(
        llama, gptq, out=tmp_path / "cut", resume=True, progress=lambda stage, done, _: ticks.append((stage, done))
    )
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    rounding = [done for stage, done in ticks if stage == "rounding blocks"]
    assert rounding == sorted(rounding)
    assert [stage for stage, _ in ticks] == sorted((stage for stage, _ in ticks))  # rounding, then writing what is kept
