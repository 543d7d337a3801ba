"""What vLLM made of every checkpoint next to transformers, as `make test-vllm` has left it in build/vllm."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from vllm_cases import Case, cases
from vllm_check import OUT, RESULTS
from vllm_table import STAND_IN, lines, worst_loss

LOGITS, LOSS = 1e-2, 1e-3
"""The most that logits, and the loss of a language in nats per token, may differ."""

LOGITS_OF_EMBEDDED = 5e-2
"""The same for the embedded model in float16: its logits are up to 22. Unquantized it differs by .041."""

FILE = OUT / f"{RESULTS}.json"
if not FILE.exists():
    pytest.skip("no results of vLLM; `make test-vllm` makes them", allow_module_level=True)

FOUND = json.loads(FILE.read_text("utf-8"))
ALL = cases()


def result_of(case: Case) -> Mapping[str, Any]:
    """Returns what was found in a case."""
    wanted = {
        key: getattr(case, key) for key in ("family", "bits", "group", "embeddings", "policy", "dtype", "damaged")
    }
    return next(result for result in FOUND["cases"] if result.items() >= wanted.items())


def named(chosen: list[Case]) -> Any:
    return pytest.mark.parametrize("case", chosen, ids=[case.name for case in chosen])


def loads(case: Case) -> bool:
    """Returns whether vLLM is expected to load it: all but quantized embeddings."""
    return case.embeddings in ("keep", "head 4")


def test_every_case_was_tried() -> None:
    assert len(FOUND["cases"]) == len(ALL) == len({case.name for case in ALL})


@named([case for case in ALL if loads(case) and not case.damaged and case.dtype != "bfloat16"])
def test_logits_and_the_loss_of_every_language_are_those_of_transformers(case: Case) -> None:
    result = result_of(case)
    assert "error" not in result, result["error"]
    assert result["logits"]["spread"] > 0.5  # else any two models would agree
    assert result["logits"]["most"] < (LOGITS_OF_EMBEDDED if case.family == "embedded" else LOGITS)
    assert len(result["losses"]) == 6
    assert worst_loss(result) < LOSS
    assert result["equal"] >= result["prompts"] - (
        case.dtype == "float16"
    )  # rounding may decide one between two tokens


@named([case for case in ALL if case.dtype == "bfloat16" and case.bits is not None])
def test_bfloat16_differs_as_the_model_before_quantization_does(case: Case) -> None:
    result, plain = result_of(case), result_of(Case(case.family, None, dtype="bfloat16"))
    assert result["kernels"] == ["CPUWNA16LinearKernel"]
    assert result["logits"]["mean"] < 2 * plain["logits"]["mean"]
    assert worst_loss(result) < 2 * worst_loss(plain) + LOSS


@named([case for case in ALL if loads(case) and case.bits is not None and not case.damaged])
def test_vllm_computes_four_bits_with_a_kernel_of_its_own(case: Case) -> None:
    kernels = result_of(case)["kernels"]
    native = case.bits == 4 and case.dtype != "float32"
    assert (STAND_IN in kernels) != native
    assert ("CPUWNA16LinearKernel" in kernels) == native


@named([case for case in ALL if not loads(case)])
def test_a_quantized_embedding_does_not_load_as_quantize_warns(case: Case) -> None:
    assert "error" in result_of(case)


def test_one_damaged_scale_is_noticed() -> None:
    damaged = result_of(Case("llama", damaged=True))
    intact = result_of(Case("llama"))
    assert damaged["logits"]["most"] > LOGITS
    assert damaged["logits"]["mean"] > 3 * intact["logits"]["mean"]
    assert worst_loss(damaged) > worst_loss(intact)


def test_the_table_has_a_row_for_every_case() -> None:
    assert sum(line.startswith("| ") for line in "\n".join(lines(FOUND)).splitlines()) == 1 + len(ALL) - 1
