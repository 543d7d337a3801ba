"""The laboratory: damage paired by document, weights put back bit for bit, variants that compute the same."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fairbits.core.errors import InputError
from fairbits.models.device import resolve_device
from fairbits.models.embedded import LANGUAGES, TRAINING_TOKENS, training_shares
from fairbits.quantization.gptq.block_rounding import matrix
from fairbits.quantization.search.block_sensitivity import NOT_ROUNDED
from fairbits.text.language_codes import find_languages
from fairbits_research.experiments.laboratory import (
    Laboratory,
    ModelLab,
    Setting,
    language_values,
)

SETTING = Setting(tokens=192, calibration=192, languages=("eng", "heb", "swh"), shares={"eng_Latn": 0.5})


@pytest.fixture(scope="module")
def laboratory() -> Laboratory:
    return Laboratory(SETTING)


@pytest.fixture(scope="module")
def lab(laboratory: Laboratory) -> ModelLab:
    return laboratory.lab()


@pytest.mark.long
def test_fewer_bits_cost_more_and_nothing_costs_nothing(lab: ModelLab) -> None:
    none = lab.rounding_damage(NOT_ROUNDED)
    assert np.abs(language_values(none)).max() == 0
    two, eight = lab.rounding_damage(2), lab.rounding_damage(8)
    assert two.languages == ("eng_Latn", "heb_Hebr", "swh_Latn")
    assert language_values(two).min() > 10 * np.abs(language_values(eight)).max() > 0


@pytest.mark.long
def test_weights_are_restored(lab: ModelLab) -> None:
    name = lab.linear_layers[0][0].name
    first = lab.weights_damage([(name, torch.zeros_like(matrix(lab.checkpoint, lab.linear_layers[0][0])))])
    assert language_values(first).max() > 0
    assert np.abs(lab.trial.added_nll()).max() == 0


@pytest.mark.long
def test_widths_by_block_are_those_blocks(lab: ModelLab) -> None:
    """Only block 2 at 2 bits is what rounding its maps alone gives; the others are as they are."""
    by_mapping = lab.rounding_damage({2: 2})
    by_sequence = lab.rounding_damage([NOT_ROUNDED, NOT_ROUNDED, 2, *[NOT_ROUNDED] * (lab.n_blocks - 3)])
    assert by_mapping is by_sequence, "the same question is asked once"
    assert 0 < language_values(by_mapping).mean() < language_values(lab.rounding_damage(2)).mean()


@pytest.mark.long
def test_a_policy_is_carried_out_with_its_text(lab: ModelLab) -> None:
    hebrew = language_values(lab.policy_damage("gptq", 3, mix={"heb_Hebr": 1.0}))
    other = language_values(lab.policy_damage("gptq", 3, mix={"eng_Latn": 1.0}))
    assert hebrew[1] < other[1], "Hebrew loses less where it is calibrated on"


@pytest.mark.long
def test_a_variant_computes_the_same(laboratory: Laboratory, lab: ModelLab) -> None:
    before = dict(lab.reference_bits())
    variant = ModelLab(laboratory.with_outliers({3: 60}), SETTING, laboratory.corpus, laboratory.report)
    assert variant.kappa[3] == pytest.approx(60, rel=0.05)
    assert variant.reference_bits() == pytest.approx(before, abs=1e-3)


def test_what_is_not_known_is_said() -> None:
    with pytest.raises(InputError, match="training share of heb_Hebr"):
        _ = Laboratory(SETTING).shares
    nested = Laboratory(Setting(model="embedded:tiny?outliers=3:60"))
    with pytest.raises(InputError, match="itself a variant"):
        nested.with_outliers({3: 9})
    assert sum(Laboratory(Setting()).shares.values()) == pytest.approx(1)


def test_a_device_is_checked_where_a_setting_is_made() -> None:
    with pytest.raises(InputError, match="device is 'tpu'"):
        Setting(device="tpu")
    assert Setting().device == resolve_device("auto")


def test_the_training_tokens_are_those_of_the_training() -> None:
    history = Path(__file__).parents[4] / "training" / "history.json"
    counted = json.loads(history.read_text(encoding="utf-8"))["tokens"]
    names = {find_languages([name])[0].code: count for name, count in counted.items()}
    assert names == dict(zip(LANGUAGES["tiny"], TRAINING_TOKENS["tiny"], strict=True))
    assert sum(training_shares("embedded:tiny?outliers=3:9").values()) == pytest.approx(1)
    assert training_shares("./model") is None
