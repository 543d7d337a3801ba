"""The audit on a GPU gives what the CPU gives, as a whole and in blocks."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fairbits
from fairbits import Checkpoint
from fairbits.forward import statistics as run
from fairbits.forward.fisher import SignDraws
from fairbits.forward.statistics import ActivationStatistics, collect_statistics, column_errors
from fairbits.models.scales.scheme import Scheme
from fairbits.text.corpus import TextRequest
from fairbits.text.reading import open_corpus

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
LANGUAGES = ["en", "fi", "sw"]
REQUEST = TextRequest("calibration", 1024, 256, 0)
SCHEME = Scheme(3, 64)
EMBEDDED = "embedded:tiny"


@pytest.fixture(scope="module")
def bfloat16(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """The embedded model, stored in bfloat16."""
    source, directory = Checkpoint(EMBEDDED), tmp_path_factory.mktemp("bfloat16")
    source.load().bfloat16().save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source.directory / name, directory)
    return Checkpoint(directory)


def measured(checkpoint: Checkpoint, device: str, *, blocks: bool, **options: Any) -> ActivationStatistics:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "WHOLE_MODEL_BYTES", 0 if blocks else 2**60)
        corpus = open_corpus(None, LANGUAGES)
        return collect_statistics(checkpoint, corpus, request=REQUEST, schemes=(SCHEME,), device=device, **options)


def check_close(actual: ActivationStatistics, expected: ActivationStatistics, rtol: float) -> None:
    """Compares sums over languages, in which errors of rounding average out."""
    assert actual.notes == ()
    np.testing.assert_allclose(actual.nll, expected.nll, rtol=rtol)
    for name, channels in expected.channels.items():
        np.testing.assert_allclose(actual.channels[name].sum(1), channels.sum(1), rtol=rtol, err_msg=name)
    for form, damage in expected.damage[SCHEME].items():
        for code in expected.languages:
            rows = expected.lang == code
            ours, theirs = actual.damage[SCHEME][form][rows].sum(), damage[rows].sum()
            np.testing.assert_allclose(ours, theirs, rtol=rtol, err_msg=f"{form} {code}")


@pytest.mark.parametrize("blocks", [False, True])
def test_float32_on_the_gpu_is_that_of_the_cpu(blocks: bool) -> None:
    checkpoint = Checkpoint(EMBEDDED)
    actual = measured(checkpoint, "cuda", blocks=blocks, second_moments=True)
    assert actual.dtype == "float32"
    expected = measured(checkpoint, "cpu", blocks=False, second_moments=True)
    check_close(actual, expected, rtol=1e-3)
    for name, moments in expected.inputs.items():
        np.testing.assert_allclose(
            actual.inputs[name], moments, rtol=1e-2, atol=1e-3 * np.abs(moments).max(), err_msg=name
        )


@pytest.mark.parametrize("blocks", [False, True])
def test_bfloat16_on_the_gpu_is_close_to_float32_on_the_cpu(blocks: bool, bfloat16: Checkpoint) -> None:
    actual = measured(bfloat16, "cuda", blocks=blocks)
    assert actual.dtype == "bfloat16"
    check_close(actual, measured(bfloat16, "cpu", blocks=False), rtol=2e-2)


def test_directions_of_the_gpu_are_those_of_the_cpu() -> None:
    gpu, cpu = SignDraws(3), SignDraws(3)
    for width in (1000, 64, 7):
        torch.testing.assert_close(gpu.draw(50, width, "cuda").cpu(), cpu.draw(50, width), rtol=0, atol=0)


def test_both_passes_draw_the_same_on_the_gpu() -> None:
    checkpoint = Checkpoint(EMBEDDED)
    blocks, whole = (measured(checkpoint, "cuda", blocks=blocks) for blocks in (True, False))
    check_close(blocks, whole, rtol=1e-3)


def test_errors_of_columns_are_those_of_the_cpu() -> None:
    checkpoint = Checkpoint(EMBEDDED)
    linears = tuple(checkpoint.architecture.blocks[0].linears)
    here, there = (column_errors(checkpoint, linears, scheme=SCHEME, device=device) for device in ("cpu", "cuda"))
    for name, errors in here.items():
        np.testing.assert_allclose(there[name], errors, rtol=1e-4, err_msg=name)


def test_the_verb_follows_the_device(bfloat16: Checkpoint, tmp_path: Path) -> None:
    on_gpu = fairbits.audit(bfloat16, languages=LANGUAGES, tokens=512, device="cuda")
    assert on_gpu.model.dtype == "bfloat16"
    on_gpu.save(tmp_path / "audit.json")
    expected = fairbits.audit(bfloat16, languages=LANGUAGES, tokens=512, device="cpu")
    ours, theirs = (audit.predicted.estimates() for audit in (on_gpu, expected))
    for code, estimate in theirs.items():
        assert ours[code].value == pytest.approx(estimate.value, rel=0.05)
