"""Evidence about a small model as it would be measured, and plans that are made of it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization.evidence import Evidence, How, LanguageWeights, Sensitivity
from fairbits.quantization.plan import Calibration, LayerPlan, Plan
from fairbits.quantization.policies import decide

LANGUAGES = ("eng_Latn", "heb_Hebr", "hin_Deva")
TEXT = Calibration("text", dict.fromkeys(LANGUAGES, "0"), 512, 64, 3)


def sensitivity_of(bits: Sequence[int], how: How) -> Sensitivity:
    """Block 1 is vital to Hebrew, block 0 a little to the others; 4^−bits as rounding errors go."""
    cost = np.array([[2.0, 1.0], [1.0, 9.0], [2.0, 1.0]])
    return Sensitivity(how, LANGUAGES, tuple(bits), cost[:, :, None] * 4.0 ** -np.array(bits), ())


def damage_of(allocations: Sequence[Sequence[int]]) -> np.ndarray:
    sensitivity = sensitivity_of(range(2, 9), "measured")
    rows = [sum(sensitivity.at(bits)[:, block] for block, bits in enumerate(allocation)) for allocation in allocations]
    return np.array(rows)


@pytest.fixture
def llama(reading_model: Callable[[str], Checkpoint]) -> Evidence:
    """Returns evidence about a small Llama: its second block is vital to Hebrew."""
    return Evidence(
        reading_model("llama"),
        LANGUAGES,
        kappa=lambda: np.array([3.0, 150.0]),
        sensitivity=sensitivity_of,
        damage=damage_of,
        minimax=lambda: LanguageWeights({"eng_Latn": 0.2, "heb_Hebr": 0.5, "hin_Deva": 0.3}, ({"pi": {}},), ("found",)),
    )


@pytest.fixture(scope="session")
def damage() -> Any:
    """Returns the function that gives the damage to every language under some allocations."""
    return damage_of


@pytest.fixture
def unmeasured(reading_model: Callable[[str], Checkpoint]) -> Evidence:
    """Evidence that must not be requested."""

    def request(*_: object) -> Any:
        raise AssertionError("evidence was requested")

    measures = dict.fromkeys(("kappa", "sensitivity", "damage", "minimax", "alphas"), request)
    return Evidence(reading_model("llama"), LANGUAGES, **measures)


@pytest.fixture(scope="session")
def make_plan() -> Callable[..., Plan]:
    """Returns the function that makes a policy's plan."""

    def make_plan(name: str, evidence: Evidence, **options: Any) -> Plan:
        return decide(name, evidence, calibration=TEXT, **{"group": 16, **options})

    return make_plan


def layers_in_blocks(plan: Plan) -> list[LayerPlan]:
    return [layer for layer in plan.quantized if layer.block is not None]


@pytest.fixture(scope="session")
def rounded_layers() -> Callable[[Plan], list[LayerPlan]]:
    """Returns the function that gives the layers of the blocks that a plan rounds."""
    return layers_in_blocks


@pytest.fixture(scope="session")
def schemes() -> Callable[[Plan], list[Scheme]]:
    """Returns the function that gives how the layers of the blocks are rounded."""
    return lambda plan: [layer.scheme for layer in layers_in_blocks(plan) if layer.scheme is not None]


@pytest.fixture(scope="session")
def block_bits() -> Callable[[Plan], list[set[int | None]]]:
    """Returns the function that gives the bits in each of two blocks."""
    return lambda plan: [{layer.bits for layer in layers_in_blocks(plan) if layer.block == block} for block in (0, 1)]
