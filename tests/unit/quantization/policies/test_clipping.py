"""Policies of clipping: aciq, kappa and laaciq."""

from typing import Any

import pytest

from fairbits.core.errors import InputError
from fairbits.quantization.evidence import Evidence


def test_kappa_is_on_the_symmetric_grid(llama: Evidence, make_plan: Any, schemes: Any) -> None:
    plan = make_plan("kappa", llama, bits=3, group="channel")
    assert {scheme.grid for scheme in schemes(plan)} == {"symmetric"}
    assert plan.settings["grid"] == "symmetric"
    assert any("4 bits only" in note for note in plan.notes)
    with pytest.raises(InputError, match="kappa does not take grid"):
        make_plan("kappa", llama, grid="twos")


def test_aciq_has_two_distributions(llama: Evidence, make_plan: Any, schemes: Any) -> None:
    assert {scheme.clip for scheme in schemes(make_plan("aciq", llama, distribution="laplace"))} == {"laplace"}
    with pytest.raises(InputError, match="one of gaussian, laplace"):
        make_plan("aciq", llama, distribution="cauchy")


def test_laaciq_of_one_language_saves_all_thresholds(llama: Evidence, make_plan: Any, schemes: Any) -> None:
    plan = make_plan("laaciq", llama, language="he")
    assert plan.languages == {"eng_Latn": 0.0, "heb_Hebr": 1.0, "hin_Deva": 0.0}
    assert {scheme.objective for scheme in schemes(plan)} == {"mean"}
    assert plan.thresholds
    assert make_plan("laaciq", llama, objective="regret").settings["objective"] == "regret"
    with pytest.raises(InputError, match="objective is 'best'"):
        make_plan("laaciq", llama, objective="best")
    with pytest.raises(InputError, match="laaciq was given objective worst and language he; give only one of them"):
        make_plan("laaciq", llama, language="he", objective="worst")
    with pytest.raises(InputError, match="fra_Latn is not one of the languages"):
        make_plan("laaciq", llama, language="fra")


@pytest.mark.parametrize(
    ("options", "warns"), [({}, True), ({"objective": "regret"}, True), ({"objective": "mean"}, False)]
)
def test_the_worst_of_layers_is_not_the_worst_of_the_model(
    llama: Evidence, options: Any, warns: int, make_plan: Any
) -> None:
    assert (
        any("may not be best for the worst language" in note for note in make_plan("laaciq", llama, **options).notes)
        == warns
    )
    assert not any("may not be best" in note for note in make_plan("laaciq", llama, language="he").notes)
