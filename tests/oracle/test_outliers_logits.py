"""The embedded model with outliers computes what it computed, on text in four scripts."""

import pytest
import torch
from scipy import stats

from fairbits.models.checkpoint import Checkpoint
from fairbits_research.outliers.outlier_writer import write_with_outliers

KAPPA = {3: 125.0, 7: 148.0, 10: 164.0}  # as published for three layers of BLOOM
TEXTS = ("The river is wide and slow.", "Река широкая и медленная.", "הנהר רחב ואיטי.", "这条河又宽又慢。")


@pytest.fixture(scope="module")
def tiny() -> Checkpoint:
    return Checkpoint("embedded:tiny")


def logits(checkpoint: Checkpoint) -> torch.Tensor:
    tokenizer, model = checkpoint.tokenizer(), checkpoint.load()
    with torch.no_grad():
        return torch.cat([model(tokenizer(text, return_tensors="pt").input_ids).logits[0] for text in TEXTS])


@pytest.fixture(scope="module")
def before(tiny) -> torch.Tensor:
    return logits(tiny)


@pytest.mark.parametrize(("route", "atol"), [("norm", 0.0), ("value", 1e-4)])
def test_equal_logits_and_the_published_kurtosis(tiny, before, tmp_path, route, atol):
    write_with_outliers(tiny, tmp_path / "new", KAPPA, route=route)
    written = Checkpoint(tmp_path / "new")
    for block, target in KAPPA.items():
        weights = [written.read(name).double().flatten() for name in written.architecture.blocks[block].linears]
        assert stats.kurtosis(torch.cat(weights).numpy()) == pytest.approx(target, rel=0.02)
    assert before.abs().max() > 5
    torch.testing.assert_close(logits(written), before, rtol=0, atol=atol)
