"""Thresholds of activations, the hooks that apply them, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fairbits.core.errors import InputError
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.clip_formulas import banner_gaussian, banner_laplace
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.sample_clip import clip_sample
from fairbits.serve.overlays.activations import (
    ActivationQuantizer,
    ActivationRecord,
    ActivationTable,
    Magnitudes,
    activation_points,
    bin_counts,
    language_windows,
    record_activations,
)
from fairbits.text.corpus import TextRequest
from fairbits.text.included_texts import udhr

LANGUAGES = ["eng_Latn", "heb_Hebr"]


class Case:
    """A model with text in two languages, and what it shows."""

    def __init__(self, checkpoint: Checkpoint, *, sequence: int = 64) -> None:
        self.checkpoint, self.model = checkpoint, checkpoint.load()
        self.text: TokenizedText = tokenize_corpus(
            checkpoint, udhr(LANGUAGES), request=TextRequest(tokens=200, sequence=sequence)
        )
        self.record: ActivationRecord = record_activations(self.model, checkpoint.architecture, self.text)

    @cache  # noqa: B019 - a case lives as long as the module
    def table(self, bits: int) -> ActivationTable:
        return self.record.table(bits)

    def logits(self) -> Tensor:
        ids = torch.tensor([self.text.windows[0].main.ids])
        asked = {"decoder_input_ids": ids} if self.model.config.is_encoder_decoder else {}
        with torch.no_grad():
            logits: Tensor = self.model(input_ids=ids, **asked).logits
        return logits

    def inputs(self, module: str, text: TokenizedText) -> np.ndarray:
        """Returns what a module of a causal model sees of a text, one window at a time: nothing is padded."""
        seen: list[Tensor] = []
        handle = self.model.get_submodule(module).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        with torch.no_grad():
            for window in text.windows:
                self.model(input_ids=torch.tensor([window.main.ids]))
        handle.remove()
        return torch.cat([tensor.flatten() for tensor in seen]).numpy()


@pytest.fixture(scope="module")
def tiny(outer_blocks: Callable[[int], Checkpoint]) -> Case:
    """Returns four blocks of the embedded model: trained weights, a third of the work."""
    return Case(outer_blocks(4))


@pytest.fixture(scope="module")
def case(reading_model: Callable[[str], Checkpoint]) -> Callable[[str], Case]:
    """Returns the function that gives a small random model of a family with text."""
    cases: dict[str, Case] = {}

    def case(family: str) -> Case:
        if family not in cases:
            cases[family] = Case(reading_model(family), sequence=32)
        return cases[family]

    return case


LANGUAGES = ["eng_Latn", "heb_Hebr"]


def captured(model: nn.Module, module: str, run: Callable[[], Any]) -> tuple[Tensor, Tensor]:
    """Returns what a module is given without and with the hooks that are there before this one."""
    seen: list[Tensor] = []
    submodule = model.get_submodule(module)
    handles = [
        submodule.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()), prepend=first)
        for first in (True, False)
    ]
    run()
    for handle in handles:
        handle.remove()
    return seen[0], seen[1]


def shared(table: ActivationTable) -> tuple[str, ...]:
    """Returns query, key and value of a block."""
    return next(modules for modules in table.modules.values() if len(modules) == 3)


def rounded(x: Tensor, alpha: float, bits: int) -> Tensor:
    grid = Grid(bits)
    step = np.float32(alpha) / np.float32(grid.highest)
    return torch.from_numpy(grid.quantize(x.numpy(), step)).float()


def error(x: np.ndarray, alpha: float, bits: int) -> float:
    grid = Grid(bits)
    return float(np.square(x - grid.quantize(x, grid.step(alpha))).sum())


@pytest.mark.parametrize("bits", [8, 6, 4, 2])
@pytest.mark.parametrize("column", [1, 3, 15])
def test_a_threshold_costs_no_more_than_half_a_percent_above_the_exact_one(tiny: Any, bits: int, column: int) -> None:
    table = tiny.table(bits)
    x = tiny.inputs(table.modules[table.points[column]][0], language_windows(tiny.text, "heb_Hebr"))
    exact = clip_sample(x, Grid(bits))
    assert exact.value <= error(x, table.row("heb_Hebr")[column], bits) * (1 + 1e-6)
    assert error(x, table.row("heb_Hebr")[column], bits) <= 1.005 * exact.value


def test_the_language_blind_row_weighs_languages_the_same(tiny: Any) -> None:
    text = replace(
        tiny.text,
        windows=language_windows(tiny.text, "eng_Latn").windows + language_windows(tiny.text, "heb_Hebr").windows[:1],
    )
    table = record_activations(tiny.model, tiny.checkpoint.architecture, text).table(4)
    column = 7
    parts = [tiny.inputs(table.modules[table.points[column]][0], language_windows(text, code)) for code in LANGUAGES]
    h = np.concatenate([np.full(part.size, 1 / part.size) for part in parts])
    exact = clip_sample(np.concatenate(parts), Grid(4), importance=h)
    total = sum(error(part, table.blind[column], 4) / part.size for part in parts)
    assert total == pytest.approx(exact.value, rel=5e-3)
    assert len(parts[1]) < len(parts[0]) / 3
    assert table.blind[column] == pytest.approx(float(Grid(4).alpha(exact.step)), rel=0.02)


def test_formulas_take_the_moments_of_the_activations(tiny: Any) -> None:
    laplace, gaussian, absmax = (tiny.record.table(4, clip) for clip in ("laplace", "gaussian", "absmax"))
    x = tiny.inputs(laplace.modules[laplace.points[2]][0], language_windows(tiny.text, "eng_Latn")).astype(np.float64)
    assert laplace.row("eng_Latn")[2] == pytest.approx(banner_laplace(np.abs(x).mean(), 4), rel=1e-3)
    assert gaussian.row("eng_Latn")[2] == pytest.approx(banner_gaussian(np.sqrt(np.square(x).mean()), 4), rel=1e-3)
    assert absmax.row("eng_Latn")[2] == pytest.approx(np.abs(x).max(), rel=2e-3)


def test_bins_keep_the_mean_magnitude() -> None:
    x = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    magnitudes = Magnitudes.from_counts(bin_counts(x))
    assert float(magnitudes.share @ magnitudes.values) == pytest.approx(float(x.abs().mean()), rel=1e-3)
    assert Magnitudes.from_counts(bin_counts(torch.zeros(3))).alpha(8) == 0


def test_every_input_of_the_blocks_is_a_point_and_the_head_is_none(tiny: Any, case: Callable[[str], Any]) -> None:
    assert len(tiny.record.modules) == 16  # attention, its output, and two of the mlp, in 4 blocks
    assert not tiny.record.left_out
    llama = case("llama").record
    # o, down; gate up; q k v
    assert sorted(len(modules) for modules in llama.modules.values()) == [1, 1, 1, 1, 2, 2, 3, 3]
    assert not any("head" in module for modules in llama.modules.values() for module in modules)


def test_what_modules_do_not_show_is_left_out_with_a_reason(case: Callable[[str], Any]) -> None:
    record = case("mixtral").record
    assert any("experts" in reason for reason in record.left_out.values())
    assert all("attn" in module for modules in record.modules.values() for module in modules)


@pytest.mark.parametrize("family", ["gpt2", "llama", "mt5", "xlmr", "gemma3"])
def test_other_families_switch_and_come_back(case: Callable[[str], Any], family: str) -> None:
    family_case = case(family)
    before = family_case.logits()
    with ActivationQuantizer(family_case.model, family_case.record.table(3)) as quantizer:
        blind = family_case.logits()
        quantizer.use("heb_Hebr")
        hebrew = family_case.logits()
    assert not torch.equal(before, blind)
    assert not torch.equal(blind, hebrew)
    assert torch.equal(before, family_case.logits())


@pytest.mark.parametrize("language", ["heb_Hebr", None])
def test_a_row_is_looked_up_and_no_hook_is_made(tiny: Any, language: str | None) -> None:
    table = tiny.table(4)
    point, module = table.points[6], table.modules[table.points[6]][0]
    with ActivationQuantizer(tiny.model, table) as quantizer:
        submodule = tiny.model.get_submodule(module)
        hooks, place = dict(submodule._forward_pre_hooks), quantizer._row.data_ptr()
        quantizer.use("eng_Latn")
        quantizer.use(language)
        assert dict(submodule._forward_pre_hooks) == hooks
        assert quantizer._row.data_ptr() == place
        x, quantized = captured(tiny.model, module, tiny.logits)
    expected = rounded(x, table.row(language)[table.points.index(point)], 4)
    torch.testing.assert_close(quantized, expected, rtol=1e-6, atol=0)
    assert not torch.equal(x, quantized)


def test_rows_of_languages_differ(tiny: Any) -> None:
    table = tiny.table(4)
    assert not np.array_equal(table.row("eng_Latn"), table.row("heb_Hebr"))
    assert table.extra_bytes == 2 * 16 * 4


def test_maps_that_share_an_input_get_one_rounded_tensor(case: Callable[[str], Any]) -> None:
    llama = case("llama")
    table = llama.record.table(4)
    inputs: list[Tensor] = []
    with ActivationQuantizer(llama.model, table):
        handles = [
            llama.model.get_submodule(name).register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
            for name in shared(table)
        ]
        llama.logits()
    for handle in handles:
        handle.remove()
    assert len(inputs) == 3
    assert inputs[0] is inputs[1] is inputs[2]


def test_an_input_changed_in_place_is_rounded_again(case: Callable[[str], Any]) -> None:
    llama = case("llama")
    table = llama.record.table(4)
    first, second = (llama.model.get_submodule(name) for name in shared(table)[:2])
    x = torch.ones(1, 1, 32)
    with torch.no_grad(), ActivationQuantizer(llama.model, table):
        first(x)
        x.zero_()
        assert not second(x).any()


def test_inference_mode_gives_the_same(tiny: Any) -> None:
    ids = torch.tensor([tiny.text.windows[0].main.ids])
    with ActivationQuantizer(tiny.model, tiny.table(4)) as quantizer:
        quantizer.use("heb_Hebr")
        expected = tiny.logits()
        with torch.inference_mode():
            assert torch.equal(tiny.model(input_ids=ids).logits, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_rounding_keeps_the_type(tiny: Any, dtype: torch.dtype) -> None:
    table = tiny.table(4)
    module = tiny.model.get_submodule(table.modules[table.points[0]][0])
    x = torch.linspace(-3, 3, 256).to(dtype)[None]
    with ActivationQuantizer(tiny.model, table):
        (hook,) = module._forward_pre_hooks.values()
        (quantized,), _ = hook(module, (x,), {})
    step = table.blind[0] / 7
    assert quantized.dtype == dtype
    torch.testing.assert_close((quantized.double() / step).round(), quantized.double() / step, rtol=0.01, atol=0)
    assert (quantized.double() - x.double()).abs().max() <= max(0.51 * step, 3.0 - 6.9 * step)


def test_closing_removes_every_hook_and_gives_the_same_logits(tiny: Any) -> None:
    before, table = tiny.logits(), tiny.table(4)
    quantizer = ActivationQuantizer(tiny.model, table)
    assert not torch.equal(before, tiny.logits())
    quantizer.close()
    quantizer.close()  # twice is as good as once
    assert torch.equal(before, tiny.logits())
    assert not any(module._forward_pre_hooks for module in tiny.model.modules())
    assert not any(module._forward_pre_hooks_with_kwargs for module in tiny.model.modules())


def test_a_language_without_thresholds_is_refused(tiny: Any) -> None:
    with (
        ActivationQuantizer(tiny.model, tiny.table(8)) as quantizer,
        pytest.raises(InputError, match="language 'fra_Latn' has no thresholds; available are eng_Latn, heb_Hebr"),
    ):
        quantizer.use("fra_Latn")


@pytest.mark.parametrize("bits", [1, 9, True])
def test_bits_beyond_the_grids_are_refused(tiny: Any, bits: int) -> None:
    with pytest.raises(InputError, match="bits is"):
        tiny.record.table(bits)


def test_an_unknown_formula_is_refused(tiny: Any) -> None:
    with pytest.raises(InputError, match="clip is 'cauchy'"):
        tiny.record.table(8, "cauchy")  # type: ignore[arg-type]


def test_a_language_without_text_is_refused(tiny: Any) -> None:
    empty = language_windows(tiny.text, "eng_Latn")
    with pytest.raises(InputError, match="the text has nothing in heb_Hebr"):
        record_activations(tiny.model, tiny.checkpoint.architecture, empty)


def test_activations_that_are_not_finite_are_refused(tiny: Any) -> None:
    model = tiny.checkpoint.load()
    with torch.no_grad():
        model.get_submodule(next(iter(tiny.record.modules.values()))[0]).weight[0, 0] = torch.nan
    with pytest.raises(InputError, match="is NaN or infinite on the calibration text"):
        record_activations(model, tiny.checkpoint.architecture, tiny.text)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_point_that_is_always_0_is_refused(tiny: Any) -> None:
    nothing = Magnitudes.from_counts(bin_counts(torch.zeros(4)))
    seen = {code: (nothing, *parts[1:]) for code, parts in tiny.record.seen.items()}
    with pytest.raises(InputError, match="is 0 everywhere in the text of eng_Latn"):
        replace(tiny.record, seen=seen).table(8)


def test_inputs_are_not_rounded_twice(tiny: Any) -> None:
    table = tiny.table(8)
    with (
        ActivationQuantizer(tiny.model, table),
        pytest.raises(InputError, match="is already rounded; close the other"),
    ):
        ActivationQuantizer(tiny.model, table)


def test_the_table_of_another_model_is_refused(tiny: Any, case: Callable[[str], Any]) -> None:
    with pytest.raises(InputError, match="the model has no module"):
        ActivationQuantizer(case("llama").model, tiny.table(8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"languages": ["eng_Latn"]}, "alpha has shape"),
        ({"languages": ["eng_Latn", "eng_Latn"]}, "languages names 'eng_Latn' twice"),
        ({"modules": {"a": ["x"], "b": ["x"]}}, "modules names 'x' twice"),
        ({"bits": 12}, "bits is 12"),
    ],
)
def test_a_table_that_does_not_fit_its_tensors_is_refused(tiny: Any, change: dict[str, Any], message: str) -> None:
    table = tiny.table(8)
    with pytest.raises(InputError, match=message):
        replace(table, **change)


def test_thresholds_must_be_above_0_and_there(tiny: Any) -> None:
    table = tiny.table(8)
    blind = table.blind.copy()
    blind[0] = 0
    with pytest.raises(InputError, match="thresholds are float32 and above 0"):
        replace(table, blind=blind)


def test_a_model_without_modules_to_watch_is_refused(tiny: Any) -> None:
    with pytest.raises(InputError, match="no linear layer in a block"):
        activation_points(tiny.checkpoint.architecture, nn.Linear(2, 2))
