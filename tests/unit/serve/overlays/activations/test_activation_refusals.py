"""What activation thresholds refuse."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fairbits.core.errors import InputError
from fairbits.serve.overlays.activations import (
    ActivationQuantizer,
    ActivationTable,
    Magnitudes,
    activation_points,
    bin_counts,
    language_windows,
    record_activations,
)


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
    nothing = Magnitudes.of(bin_counts(torch.zeros(4)))
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
    ("change", "said"),
    [
        ({"languages": ["eng_Latn"]}, "alpha has shape"),
        ({"languages": ["eng_Latn", "eng_Latn"]}, "language eng_Latn is in the table 2 times"),
        ({"points": {"a": ["x"], "b": ["x"]}}, "module x is in the table 2 times"),
        ({"bits": 12}, "bits is 12"),
    ],
)
def test_a_table_that_does_not_fit_its_tensors_is_refused(tiny: Any, change: dict[str, Any], said: str) -> None:
    table = tiny.table(8)
    with pytest.raises(InputError, match=said):
        ActivationTable.of(table.tensors(), replace(table.saved(), **change))


def test_thresholds_must_be_above_0_and_there(tiny: Any) -> None:
    table = tiny.table(8)
    tensors = table.tensors()
    tensors["blind"][0] = 0
    with pytest.raises(InputError, match="thresholds are float32 and above 0"):
        ActivationTable.of(tensors, table.saved())
    with pytest.raises(InputError, match="lack 'blind'"):
        ActivationTable.of({"alpha": tensors["alpha"]}, table.saved())


def test_a_model_without_modules_to_watch_is_refused(tiny: Any) -> None:
    with pytest.raises(InputError, match="no linear layer in a block"):
        activation_points(tiny.checkpoint.architecture, nn.Linear(2, 2))
