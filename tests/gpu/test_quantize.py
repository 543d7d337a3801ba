"""Quantizing on a GPU: codes as good as those of the CPU, and no more memory than it says."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fairbits
from fairbits import Checkpoint, Plan
from fairbits.api.quantize import calibration_text
from fairbits.evaluation.reference import ReferenceModel
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.models.scales.float_scales import AnyGrid
from fairbits.models.scales.grid import FLOAT_GRIDS, Grid
from fairbits.models.scales.groups import Codes, divisors
from fairbits.models.swapped_model import SwappedModel
from fairbits.quantization.gptq import columns, columns_cpu, columns_gpu, engine
from fairbits.quantization.gptq.block_rounding import RoundedBlock
from fairbits.quantization.gptq.columns_cpu import Panel
from fairbits.quantization.gptq.engine import round_model
from fairbits.text.corpus import TextRequest
from random_models import SHAPES, write_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
LANGUAGES = ["en", "fi", "sw"]
GPTQ = {"policy": "gptq", "languages": LANGUAGES, "tokens": 1024, "sequence": 256, "group": 32, "device": "cpu"}


@pytest.fixture(scope="module")
def tiny() -> Checkpoint:
    return Checkpoint("embedded:tiny")


@pytest.fixture(scope="module")
def plan(tiny: Checkpoint) -> Plan:
    return fairbits.plan(tiny, **GPTQ)


def layers(blocks: list[RoundedBlock]) -> dict[str, Codes]:
    return {name: codes for block in blocks for name, codes in block.layers.items()}


def equal_share(one: dict[str, Codes], other: dict[str, Codes]) -> float:
    assert one.keys() == other.keys()
    same = sum(int((codes.codes == other[name].codes).sum()) for name, codes in one.items())
    return same / sum(codes.codes.numel() for codes in one.values())


def divergences(checkpoint: Checkpoint, rounded: list[dict[str, Codes]]) -> list[float]:
    """Returns the mean KL(p ‖ p̂) per token of a text that calibration has not seen, for each of these codes."""
    corpus = fairbits.udhr(LANGUAGES)
    text = tokenize_corpus(checkpoint, corpus, request=TextRequest("evaluation", 2048, 256), least=1)
    means = []
    with ReferenceModel.on_text(checkpoint, text, device="cuda") as reference:
        for layers in rounded:
            swapped = SwappedModel.load(checkpoint, device="cuda")
            swapped.replace(layers)
            answers = reference.compare(swapped.model, device="cuda")
            means.append(float(answers.kl.sum() / answers.predicted.sum()))
    return means


@pytest.mark.parametrize("scales", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("width", "out"), [(640, 300), (160, 48)])
@pytest.mark.parametrize("grid", [Grid(4, "twos"), *FLOAT_GRIDS.values()])
def test_the_kernel_rounds_as_the_cpu_does(grid: AnyGrid, scales: torch.dtype, width: int, out: int) -> None:
    """Up to 512 columns in float64, above in float32."""
    torch.manual_seed(0)
    X = torch.randn(4 * width, width, device="cuda")
    X[:, 1:] += 0.5 * X[:, :-1]
    factor, _ = columns.factorize(X.T @ X / len(X))
    assert factor is not None
    W = torch.randn(out, width, device="cuda")
    steps = (W.reshape(out, -1, 32).abs().amax(2) / (7.5 if grid.bits == 4 else 448)).to(scales).T.contiguous()
    weights, group = columns._reorder(W, factor), (factor.order // 32).int()
    rounded = []
    for round_panel in (columns_cpu.round_panel, columns_gpu.round_panel):
        wanted, codes = weights[:96].clone(), torch.empty(96, out, dtype=torch.int8, device="cuda")
        feedback, divide_by = factor.feedback[:96, :96], divisors(steps).to(weights.dtype)
        errors = torch.empty_like(wanted)
        panel = Panel(wanted, weights[:96], feedback, steps, divide_by, group[:96], codes, errors)
        round_panel(panel, grid)
        rounded.append(panel)
    expected, kernel = rounded
    assert (expected.codes == kernel.codes).float().mean() > 0.999
    assert (expected.errors - kernel.errors).abs().median() == 0
    torch.testing.assert_close(kernel.wanted[0], expected.wanted[0])
    assert (kernel.wanted - expected.wanted).abs().median() < 1e-5


@pytest.mark.parametrize("scheme", ["NVFP4A16", "MXFP4", "FP8_BLOCK", "FP8_DYNAMIC"])
@pytest.mark.parametrize("policy", ["rtn", "mse"])
def test_formats_that_read_no_text_have_the_same_codes(tiny: Checkpoint, policy: str, scheme: str) -> None:
    rounding_plan = fairbits.plan(tiny, policy=policy, scheme=scheme, device="cpu")
    cpu, gpu = (layers(list(round_model(tiny, rounding_plan, device=device))) for device in ("cpu", "cuda"))
    assert equal_share(cpu, gpu) > 0.9999


@pytest.mark.parametrize("policy", ["rtn", "mse"])
def test_what_reads_no_text_has_the_same_codes(tiny: Checkpoint, policy: str) -> None:
    rounding_plan = fairbits.plan(tiny, policy=policy, group=32, device="cpu")
    cpu, gpu = (layers(list(round_model(tiny, rounding_plan, device=device))) for device in ("cpu", "cuda"))
    assert all(codes.codes.device.type == "cpu" for codes in gpu.values())
    assert equal_share(cpu, gpu) > 0.9999


def test_gptq_is_as_good_as_on_the_cpu(tiny: Checkpoint, plan: Plan) -> None:
    text = calibration_text(tiny, plan, None)
    cpu, gpu, native = (
        layers(list(round_model(tiny, plan, text=text, device=device, dtype=dtype)))
        for device, dtype in (("cpu", None), ("cuda", torch.float32), ("cuda", None))
    )
    shares = equal_share(cpu, gpu), equal_share(cpu, native)
    damage = divergences(tiny, [cpu, gpu, native])
    print(f"equal codes: float32 {shares[0]:.4f}, own type {shares[1]:.4f}; KL {damage}")
    # a code that differs changes what later columns of its row compensate for, and so do later blocks
    assert min(shares) > 0.85
    assert damage[1:] == pytest.approx([damage[0]] * 2, rel=0.05)


def test_states_in_main_memory_are_as_good(tiny: Checkpoint, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    text = calibration_text(tiny, plan, None)
    on_gpu = layers(list(round_model(tiny, plan, text=text, device="cuda")))
    monkeypatch.setattr(engine, "GPU_WALK_STATES_BYTES", 0)
    apart = layers(list(round_model(tiny, plan, text=text, device="cuda")))
    assert equal_share(on_gpu, apart) > 0.85  # batches have other sizes, and sums other orders
    first, second = divergences(tiny, [on_gpu, apart])
    assert second == pytest.approx(first, rel=0.05)


def test_an_interrupted_run_goes_on_to_the_same_bytes(
    tiny: Checkpoint, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairbits.models.io.checkpoint_writer import QuantizedWriter

    fairbits.quantize(tiny, plan, out=tmp_path / "whole", device="cuda")
    add, left = QuantizedWriter.add, [3]

    def broken(self: QuantizedWriter, *args: object, **kwargs: object) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        add(self, *args, **kwargs)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(QuantizedWriter, "add", broken)
        with pytest.raises(KeyboardInterrupt):
            fairbits.quantize(tiny, plan, out=tmp_path / "cut", device="cuda")
    fairbits.quantize(tiny, plan, out=tmp_path / "cut", device="cuda", resume=True)
    for file in sorted((tmp_path / "whole").iterdir()):
        assert file.read_bytes() == (tmp_path / "cut" / file.name).read_bytes(), file.name


def test_memory_does_not_grow_with_the_number_of_blocks(tmp_path: Path) -> None:
    """Blocks of 33 MB of weights each, in bfloat16: 8 of them and 24."""
    text = {"languages": LANGUAGES, "tokens": 1024, "sequence": 256}
    for policy, options in (("rtn", {}), ("gptq", text)):
        few, many = (peak_of(tmp_path / f"{policy}-{blocks}", blocks, policy, options) for blocks in (8, 24))
        print(f"{policy}: {few / 1e6:.0f} MB and {many / 1e6:.0f} MB")
        assert many < few + 2 * 33e6


def peak_of(place: Path, blocks: int, policy: str, options: dict[str, object]) -> int:
    """Returns the most GPU memory that quantizing a model with this many blocks takes."""
    model = Checkpoint(write_model(place / "model", replace(SHAPES["tiny"], hidden=1024, intermediate=4096), blocks))
    plan = fairbits.plan(model, policy=policy, **options)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    fairbits.quantize(model, plan, out=place / "out", device="cuda")
    return torch.cuda.max_memory_allocated()
