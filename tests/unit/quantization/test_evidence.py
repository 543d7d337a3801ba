"""What policies read: the table of sensitivities, κ of an audit, and which layers are rounded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.quantization.evidence import Evidence, Sensitivity, audited_kappa


def test_sensitivity_is_read_by_its_bits() -> None:
    table = np.arange(12.0).reshape(2, 3, 2) / 7
    sensitivity = Sensitivity("measured", ("eng_Latn", "heb_Hebr"), (4, 8), table)
    assert sensitivity.at(8).tolist() == table[:, :, 1].tolist()
    data = sensitivity.as_data()
    assert data["nats_per_token"]["heb_Hebr"]["4"] == [0.8571, 1.143, 1.429]
    assert json.loads(json.dumps(data)) == data


def test_block_weights_are_quantizable_weights(reading_model: Callable[[str], Checkpoint]) -> None:
    llama, mixtral = (Evidence(reading_model(family)) for family in ("llama", "mixtral"))
    attention = 2 * 32 * 32 + 2 * 16 * 32
    assert llama.block_weights == (attention + 3 * 32 * 48,) * 2
    assert mixtral.block_weights == (attention + 3 * 3 * 32 * 48,) * 2  # three experts, not the router
    outside = [weight for weight in llama.checkpoint.architecture.weights.values() if weight.block is None]
    assert not any(weight.is_quantizable for weight in outside)


def test_evidence_without_text_asks_for_it(reading_model: Callable[[str], Checkpoint]) -> None:
    with pytest.raises(InputError, match="needs text of every language"):
        Evidence(reading_model("llama")).sensitivity((4,), "measured")


def test_kappa_of_an_audit(tmp_path: Path, audit_data: Any) -> None:
    file = tmp_path / "audit.json"
    file.write_text(json.dumps(audit_data("abc0" * 16, [1.5, 200.0])))
    assert audited_kappa(file, "abc0" * 16).tolist() == [1.5, 200.0]
    with pytest.raises(InputError, match="other weights"):
        audited_kappa(file, "xyz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "other/1"}, "has the schema 'other/1'"),
        ({"blocks": [{}]}, r"is damaged: blocks\.0\.block is missing"),
        ({"blocks": 3}, "is damaged: blocks is 3"),
        ({"blocks": []}, "is damaged: blocks must be 0 … 1, in this order"),
        ({"patterns": {}}, "is damaged: patterns lacks 'block norm'"),
        ({"damage": {}}, "is damaged: damage lacks 'kronecker'"),
        ({"languages": {}}, r"is damaged: model\.hashes and languages differ in 'eng_Latn'"),
    ],
)
def test_an_audit_that_does_not_fit_is_refused(
    tmp_path: Path, audit_data: Any, changes: dict[str, Any], message: str
) -> None:
    (tmp_path / "audit.json").write_text(json.dumps(audit_data("abc0" * 16, [1.5, 200.0]) | changes))
    with pytest.raises(InputError, match=message):
        audited_kappa(tmp_path / "audit.json", "abc0" * 16)


def test_a_file_that_is_not_an_audit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    for name in ("broken.json", "missing.json"):
        with pytest.raises(InputError, match="it must be an audit: write one with fairbits audit --out"):
            audited_kappa(tmp_path / name, "abc0" * 16)
